"""The Python interface: `load` a checkpoint, `generate` with any draft strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from ssd_infer import drafts
from ssd_infer.drafts.base import DraftParams, Resolved
from ssd_infer.engine.bridge import emitter
from ssd_infer.engine.loop import decode
from ssd_infer.engine.model_view import evaluating
from ssd_infer.engine.positions import beyond_positions
from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.stats import Stats
from ssd_infer.engine.stopping import StopRule
from ssd_infer.engine.target import Target
from ssd_infer.errors import ConfigError, Problem
from ssd_infer.inputs import Prompts, call_problems, check_vocabulary, eos_of, prompt_rows
from ssd_infer.kinds import generator, kind_of
from ssd_infer.loading import Loaded, load
from ssd_infer.sparse.plain import grouped_layers

__all__ = ["GenerateOutput", "Loaded", "generate", "load"]


@dataclass(slots=True)
class GenerateOutput:
    """What a `generate` call produced."""

    sequences: list[list[int]]
    """New token ids, one list a row; EOS included when produced, nothing after it."""
    stats: Stats
    draft: str | None = None
    """The strategy that really ran; None for plain decoding, also when a strategy fell back to it."""
    draft_params: dict[str, Any] = field(default_factory=dict)
    """Its parameters with every `auto` settled."""
    note: str = ""
    """Why a strategy fell back to plain decoding, or how `auto` was settled; and what to know of the text's length."""


def generate(
    model: nn.Module | Loaded,
    input_ids: Prompts,
    attention_mask: Tensor | None = None,
    *,
    draft: str | None = None,
    draft_params: Mapping[str, Any] | None = None,
    max_new_tokens: int,
    do_sample: bool = False,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    eos_token_id: int | Sequence[int] | Tensor | None = None,
    stop_sequences: Sequence[Sequence[int]] | None = None,
    seed: int | None = None,
    streamer: Any | None = None,
    sampler: Mapping[str, Any] | None = None,
) -> GenerateOutput:
    """Decode `input_ids` with the model drafting for itself; the output is that of plain decoding.

    `input_ids`: a left-padded `(B, T)` tensor with its `attention_mask`, or a list of rows of different lengths.
    `draft=None` is plain decoding. `eos_token_id=None` takes the model's own. `streamer` is called with
    `(row, new_tokens)` for every accepted block, or is a transformers streamer (one row only). Models of another
    kind than causal (`ssd_infer.kinds`) are decoded by their own engine under the same arguments; `sampler` overrides
    how a diffusion model reveals tokens (`ssd_infer.diffusion.settings.SamplerSettings`).

    Raises ConfigError for bad arguments and UnsupportedModelError for architectures the engine cannot split by layers.
    """
    module = model.model if isinstance(model, Loaded) else model
    kind = kind_of(getattr(module, "config", None))
    if kind != "causal":
        other: GenerateOutput = generator(kind)(
            model,
            input_ids,
            attention_mask,
            draft=draft,
            draft_params=draft_params,
            max_new_tokens=max_new_tokens,
            do_sample=do_sample,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            eos_token_id=eos_token_id,
            stop_sequences=stop_sequences,
            seed=seed,
            streamer=streamer,
            **({} if sampler is None else {"sampler": sampler}),
        )
        return other
    if sampler is not None:
        rule = "belongs to diffusion models; this one decodes autoregressively"
        raise ConfigError([Problem("sampler", rule, dict(sampler), "leave it out")])
    prompts = prompt_rows(input_ids, attention_mask)
    sampling = SamplingParams(do_sample, temperature, top_k, top_p)
    problems = call_problems(prompts, max_new_tokens, draft, draft_params, sampling)
    if problems:
        raise ConfigError(problems)
    target = Target.of(module)
    check_vocabulary(prompts, target.vocab_size)
    strategy = None if draft is None else drafts.get(draft)
    stop = StopRule.of(eos_of(module, eos_token_id), stop_sequences)
    with evaluating(module):
        resolved = (
            Resolved(None) if strategy is None else strategy.settle(target, draft_params, prompts, do_sample)
        )
        if resolved.params is None:
            strategy = None
        chooser = Sampler(sampling, target.device, seed)
        emit = emitter(streamer, prompts)
        sequences, stats = decode(
            target, prompts, strategy, resolved.params, max_new_tokens, chooser, stop, emit, grouped_layers
        )
    if streamer is not None and hasattr(streamer, "end"):
        streamer.end()
    settled = {} if resolved.params is None else _as_dict(resolved.params)
    longest = max(map(len, prompts)) + max_new_tokens
    notes = filter(None, (resolved.note, beyond_positions(module, longest)))
    return GenerateOutput(
        sequences, stats, None if strategy is None else strategy.name, settled, "; ".join(notes)
    )


def _as_dict(params: DraftParams) -> dict[str, Any]:
    return {name: getattr(params, name) for name in type(params).__dataclass_fields__}
