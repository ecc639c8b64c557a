"""The Python interface: `load` a checkpoint, `generate` with any draft strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack

from torch import Tensor, nn

from ssd_infer.checkpoint.kinds import kind_of
from ssd_infer.checkpoint.load import Loaded, load
from ssd_infer.engine.positions import beyond_positions
from ssd_infer.engine.request import read_request
from ssd_infer.engine.rule_values import GenerationRules
from ssd_infer.engine.streaming import streaming
from ssd_infer.engine.values import shown
from ssd_infer.errors import ConfigError, Problem
from ssd_infer.strategies.inputs import Prompts, module_of, strategy_of
from ssd_infer.strategies.registry import of_kind
from ssd_infer.strategies.run import GenerateOutput, run

__all__ = ["GenerateOutput", "Loaded", "generate", "load"]


def generate(
    model: nn.Module | Loaded,
    input_ids: Prompts,
    attention_mask: Tensor | Sequence[Any] | None = None,
    *,
    draft: str | None = None,
    draft_params: Mapping[str, Any] | None = None,
    max_new_tokens: int,
    do_sample: bool | None = False,
    temperature: float | None = 1.0,
    top_k: int | None = 0,
    top_p: float | None = 1.0,
    eos_token_id: int | Sequence[int] | Tensor | None = None,
    stop_sequences: Sequence[Sequence[int]] | None = None,
    seed: int | None = None,
    streamer: Any | None = None,
    sampler: Mapping[str, Any] | None = None,
    generation_rules: Literal["model", "off"] = "model",
    **rules: Unpack[GenerationRules],
) -> GenerateOutput:
    """Decode `input_ids` with the model drafting for itself; the output is that of plain decoding.

    `input_ids`: a left-padded `(B, T)` tensor with its `attention_mask`, or a list of rows of different lengths.
    `draft=None` is plain decoding. How tokens are chosen is what these arguments say: sampling settings saved in the
    model's generation config are not looked at, and None turns `temperature`, `top_k` or `top_p` off.
    `eos_token_id=None` takes the model's own, all of them; `[]` is none. `streamer` is called with
    `(row, new_tokens)` for every accepted block, or is a transformers streamer (one row only). Models of another
    kind than causal (`ssd_infer.checkpoint.kinds`) are decoded by their own engine under the same arguments;
    `sampler` overrides how a diffusion model reveals tokens (`ssd_infer.families.diffusion.settings`).

    A sampled row depends on `seed`, its place among the rows and its prompt, on no other row: the first of a batch is
    what the same prompt gives alone. Drafts that decide for a batch as a whole (`sparse_attention`,
    `early_exit+ngram`, `early_exit+del`, `swift`, `skip_set` with `adapt`, `reduced_experts` with `follow` or
    `at_hand`, and every `auto`) choose what is drafted by all rows, so with them other mates may lead to other draws of
    the same law.

    Rules of the model's generation config about the score of a next token (`repetition_penalty`, `suppress_tokens`,
    `min_p`, …: all in `ssd_infer.engine.rule_values.GenerationRules`) hold at every position, drafted or not, for each
    row as if it were alone; an argument of that name takes a rule's place, None switches it off, and
    `generation_rules="off"` switches off all of the model's own. Other rules (beams, guidance, watermarks, time limits)
    are refused by name.

    Raises ConfigError with everything that is wrong with the arguments, UnsupportedModelError for architectures the
    engine cannot split by layers, and NoTokenError where rules leave no token to draw.
    """
    arguments: dict[str, Any] = {
        "draft": draft,
        "draft_params": draft_params,
        "max_new_tokens": max_new_tokens,
        "do_sample": do_sample,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "eos_token_id": eos_token_id,
        "stop_sequences": stop_sequences,
        "seed": seed,
    }
    problems: list[Problem] = []
    module = module_of(model, problems)
    kind = kind_of(getattr(module, "config", None))
    if kind != "causal":  # whose own `generate` ends the streamer
        more: dict[str, Any] = {} if sampler is None else {"sampler": sampler}
        more |= rules if generation_rules == "model" else {"generation_rules": generation_rules, **rules}
        other: GenerateOutput = of_kind(kind).generate(
            model, input_ids, attention_mask, streamer=streamer, **arguments, **more
        )
        return other
    with streaming(streamer) as stream:
        if sampler is not None:
            rule = "belongs to diffusion models; this one decodes autoregressively"
            problems.append(Problem("sampler", rule, shown(sampler), "leave it out"))
        arguments |= {"input_ids": input_ids, "attention_mask": attention_mask}
        request = read_request(module, problems, generation_rules=generation_rules, rules=rules, **arguments)
        strategy = strategy_of(request, problems)
        problems += stream.problems(len(request.prompts))
        if problems or module is None:
            raise ConfigError(problems)
        done = run(module, request, strategy, stream)
    name = None if done.strategy is None else done.strategy.info.name
    longest = max(map(len, request.prompts)) + request.max_new_tokens
    notes = filter(None, (done.resolved.note, beyond_positions(module, longest)))
    params = done.resolved.params
    return GenerateOutput(
        done.sequences, done.stats, name, {} if params is None else params.described(), "; ".join(notes)
    )
