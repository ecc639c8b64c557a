"""`generate` for masked-diffusion models: `ssd_infer.generate` calls it with its own arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ssd_infer.checkpoint.load import Loaded
from ssd_infer.engine.model_view import evaluating
from ssd_infer.engine.request import Request, check_vocabulary, read_request
from ssd_infer.engine.streaming import Stream, streaming
from ssd_infer.errors import ConfigError, Problem
from ssd_infer.families.diffusion.block_loop import Run, decode
from ssd_infer.families.diffusion.decoding import lay_out, start
from ssd_infer.families.diffusion.denoiser import Denoiser
from ssd_infer.families.diffusion.reader import Reader
from ssd_infer.families.diffusion.settings import SamplerSettings
from ssd_infer.strategies.diffusion_strategy import Draft
from ssd_infer.strategies.fewer_steps.fewer_steps import check_draft, resolve
from ssd_infer.strategies.inputs import module_of
from ssd_infer.strategies.run import GenerateOutput


def generate(
    model: nn.Module | Loaded,
    input_ids: Any,
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
    sampler: Mapping[str, Any] | SamplerSettings | None = None,
    generation_rules: Literal["model", "off"] = "model",
    **rules: Any,
) -> GenerateOutput:
    """Decode with a masked-diffusion model, stepwise (`draft=None`) or `fewer_steps`; the output is the same.

    `sampler` overrides the fields of `SamplerSettings` saved with the model. Rows draw noise of their own from `seed`,
    keyed by what is revealed, so that a draft changes nothing when sampling either. `stats.report` holds every field
    of the sampler, `nfe` (forward calls) and `rows` (sequences evaluated). Rules of generation about the score of a
    next token mean nothing where tokens do not come one after the other: any is refused.

    Raises ConfigError for bad arguments and models of another kind, UnsupportedModelError for unknown backbones.
    """
    with streaming(streamer) as stream:
        problems: list[Problem] = []
        module = module_of(model, problems)
        request = read_request(
            module,
            problems,
            input_ids=input_ids,
            attention_mask=attention_mask,
            max_new_tokens=max_new_tokens,
            do_sample=do_sample,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            eos_token_id=eos_token_id,
            stop_sequences=stop_sequences,
            seed=seed,
            draft=draft,
            draft_params=draft_params,
            generation_rules=generation_rules,
            rules=rules,
            follows_rules=False,
        )
        problems += _misplaced(request) + stream.problems(len(request.prompts))
        settings = _settings(module, sampler, problems)
        if problems or module is None:
            raise ConfigError(problems)
        return _decode(module, request, settings, stream)


def _decode(module: nn.Module, request: Request, settings: SamplerSettings, stream: Stream) -> GenerateOutput:
    """Decode a checked request."""
    denoiser = Denoiser.of(module)
    check_vocabulary(request.prompts, denoiser.vocab_size)
    seed = int(torch.randint(2**62, ()).item()) if request.seed is None else request.seed
    prompts, length = request.prompts, request.max_new_tokens
    canvases = lay_out(denoiser, settings, prompts, length, request.stop.eos, seed)
    with evaluating(module):
        reader = Reader(denoiser, settings, request.sampling)
        resolved = resolve(
            module, request.draft, request.draft_params, settings, request.sampling, prompts, length
        )
        run = start(denoiser, settings, canvases, reader, resolved.drafter)
        sequences = decode(run, stream.emitter(prompts))
    return _output(run, settings, resolved, sequences)


def _settings(module: nn.Module | None, given: Any, problems: list[Problem]) -> SamplerSettings:
    """Return the sampler's settings; what is wrong with those given is added to `problems`."""
    try:
        return SamplerSettings.of(getattr(module, "config", None), given)
    except ConfigError as error:
        problems += error.problems
        return SamplerSettings()


def _misplaced(request: Request) -> list[Problem]:
    """Return what a request asks for that diffusion decoding has not."""
    problems = []
    if request.stop.sequences:
        rule = "are not supported by diffusion decoding, which reveals tokens out of order"
        remedy = "cut the output afterwards"
        problems.append(Problem("stop_sequences", rule, len(request.stop.sequences), remedy))
    try:
        if request.draft is not None:
            check_draft(request.draft, request.draft_params)
    except ConfigError as error:
        problems += error.problems
    return problems


def _output(
    run: Run, settings: SamplerSettings, resolved: Draft, sequences: list[list[int]]
) -> GenerateOutput:
    stats = run.stats
    stats.finish()
    seconds = run.clock.seconds()
    stats.total.seconds |= seconds
    nfe = sum(stats.total.forwards.values())
    stats.report = {
        "nfe": nfe,
        "rows": run.rows,
        "tokens_per_nfe": stats.total.emitted / nfe,
        "tokens_per_row": stats.total.emitted / run.rows,
        "sampler": settings.described(run.memory.kind, run.memory.canvases[0].width),
        "cache_exact": run.memory.exact,
        "warnings": warnings(settings, run.reader.sampled),
        **(run.drafter.report() if run.drafter else {}),
    }
    name = None if resolved.drafter is None else "fewer_steps"
    return GenerateOutput(sequences, stats, name, resolved.params, resolved.note)


def warnings(settings: SamplerSettings, sampled: bool) -> list[str]:
    """Return what a reader of the output must know."""
    found = []
    if sampled and settings.noise_dtype == "float32":
        found.append(
            "noise in float32 is cut near 16.6, which lowers the effective temperature and flatters generative "
            "perplexity (2409.02908); use noise_dtype=float64"
        )
    if settings.lossy:
        found.append(f"not one token a step: the sampler {settings.lossy}")
    return found
