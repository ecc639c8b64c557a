"""`generate` for masked-diffusion models: `ssd_infer.generate` calls it with its own arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ssd_infer.checkpoint.load import Loaded
from ssd_infer.engine.clock import Clock
from ssd_infer.engine.model_view import evaluating
from ssd_infer.engine.request import Request, check_vocabulary, read_request
from ssd_infer.engine.stats import Stats
from ssd_infer.engine.streaming import Stream, streaming
from ssd_infer.errors import ConfigError, Problem
from ssd_infer.families.diffusion.block_loop import Lane, Run, decode
from ssd_infer.families.diffusion.canvases import DualMemory, FullMemory
from ssd_infer.families.diffusion.denoiser import Denoiser
from ssd_infer.families.diffusion.exact import ExactMemory
from ssd_infer.families.diffusion.memory import Memory
from ssd_infer.families.diffusion.noise import mix_int
from ssd_infer.families.diffusion.reader import Reader
from ssd_infer.families.diffusion.settings import SamplerSettings
from ssd_infer.families.diffusion.state import Canvas
from ssd_infer.families.diffusion.step import Stepper
from ssd_infer.strategies.fewer_steps.drafts import StateDrafter
from ssd_infer.strategies.fewer_steps.fewer_steps import Draft, check_draft, resolve
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
) -> GenerateOutput:
    """Decode with a masked-diffusion model, stepwise (`draft=None`) or `fewer_steps`; the output is the same.

    `sampler` overrides the fields of `SamplerSettings` saved with the model. Rows draw noise of their own from `seed`,
    keyed by what is revealed, so that a draft changes nothing when sampling either. `stats.report` holds every field
    of the sampler, `nfe` (forward calls) and `rows` (sequences evaluated).

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
        settled = resolve(
            module, request.draft, request.draft_params, settings, request.sampling, prompts, length
        )
        run = start(denoiser, settings, canvases, reader, settled.drafter)
        sequences = decode(run, stream.emitter(prompts))
    return _output(run, settings, settled, sequences)


def _settings(module: nn.Module | None, given: Any, problems: list[Problem]) -> SamplerSettings:
    """Return the sampler's settings; what is wrong with those given is added to `problems`."""
    try:
        return SamplerSettings.of(getattr(module, "config", None), given)
    except ConfigError as error:
        problems += error.problems
        return SamplerSettings()


def start(
    denoiser: Denoiser,
    settings: SamplerSettings,
    canvases: Sequence[Canvas],
    reader: Reader,
    drafter: StateDrafter | None,
) -> Run:
    """Return a decoding of `canvases` that has made no call yet."""
    lanes = [Lane(index, canvas, canvas.first()) for index, canvas in enumerate(canvases)]
    stats = Stats.empty(len(lanes))
    for lane, row in zip(lanes, stats.rows, strict=True):
        lane.stats = row
    memory = memory_for(denoiser, settings, canvases)
    return Run(memory, Stepper(settings), reader, drafter, lanes, stats, Clock(denoiser.device))


def memory_for(denoiser: Denoiser, settings: SamplerSettings, canvases: Sequence[Canvas]) -> Memory:
    """Return the memory `settings.cache` asks for; ConfigError where the model has no such thing."""
    kind = settings.cache
    if kind == "auto":
        kind = "exact" if denoiser.block_causal else "none"
    if kind == "exact":
        if not denoiser.block_causal:
            rule = "needs a model trained in blocks (objective bd3lm or complementary_block)"
            raise ConfigError(
                [Problem("sampler.cache", rule, "exact", "use cache=none, or dual (approximate)")]
            )
        return ExactMemory(denoiser, canvases, settings.layout)
    if kind == "dual":
        if denoiser.block_causal:
            rule = "is for models that see the whole canvas; this one was trained in blocks"
            raise ConfigError([Problem("sampler.cache", rule, "dual", "use cache=exact")])
        return DualMemory(denoiser, canvases)
    return FullMemory(denoiser, canvases)


def lay_out(
    denoiser: Denoiser,
    settings: SamplerSettings,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    eos: frozenset[int],
    seed: int,
) -> list[Canvas]:
    """Return each row's canvas; ConfigError where blocks or steps do not divide it, or it outgrows the model.

    Models trained in blocks keep them: aligned to the first position, so a prompt may end inside one and the last
    may reach past the limit. Other canvases are prompt ‖ M^G, which blocks of `block_length` must divide.
    """
    aligned = denoiser.block_causal
    width = block_width(denoiser, settings, max_new_tokens)
    problems = _misfits(denoiser, settings, prompts, max_new_tokens, width)
    if problems:
        raise ConfigError(problems)
    return [
        Canvas(
            tuple(prompt),
            len(prompt) + max_new_tokens,
            width,
            denoiser.mask,
            eos,
            mix_int(seed + mix_int(row)) >> 2,
            aligned,
        )
        for row, prompt in enumerate(prompts)
    ]


def block_width(denoiser: Denoiser, settings: SamplerSettings, max_new_tokens: int) -> int:
    """Return the tokens of a block."""
    trained = int(denoiser.config.block_size or 0)
    if denoiser.block_causal:
        return trained
    return settings.block_length or trained or max_new_tokens


def _misfits(
    denoiser: Denoiser,
    settings: SamplerSettings,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    width: int,
) -> list[Problem]:
    """Return what does not fit together."""
    found = []
    if denoiser.block_causal and settings.block_length not in (None, width):
        rule = f"must be the {width} the model was trained with"
        found.append(Problem("sampler.block_length", rule, settings.block_length, "leave it out"))
    if not denoiser.block_causal and max_new_tokens % width:
        rule = f"must divide max_new_tokens, {max_new_tokens}"
        found.append(Problem("sampler.block_length", rule, width, f"try {_divisor(max_new_tokens, width)}"))
    blocks = -(-max_new_tokens // width)
    if settings.steps is not None and settings.rule == "schedule" and settings.steps % blocks:
        rule = f"must be a multiple of the {blocks} blocks (total steps, not steps per block)"
        found.append(
            Problem("sampler.steps", rule, settings.steps, f"try {-(-settings.steps // blocks) * blocks}")
        )
    longest = max(map(len, prompts)) + max_new_tokens
    room = getattr(denoiser.config, "max_position_embeddings", None)
    if room and longest > room:
        rule = f"must leave prompt and output within the model's {room} positions"
        found.append(
            Problem(
                "max_new_tokens", rule, max_new_tokens, f"the longest prompt has {longest - max_new_tokens}"
            )
        )
    found += [
        Problem(f"input_ids[{index}]", "must not hold the mask token", denoiser.mask)
        for index, prompt in enumerate(prompts)
        if denoiser.mask in prompt
    ]
    return found


def _divisor(length: int, near: int) -> int:
    """Return the largest divisor of `length` not above `near`."""
    return next(width for width in range(min(near, length), 0, -1) if length % width == 0)


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
    run: Run, settings: SamplerSettings, settled: Draft, sequences: list[list[int]]
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
    name = None if settled.drafter is None else "fewer_steps"
    return GenerateOutput(sequences, stats, name, settled.params, settled.note)


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
