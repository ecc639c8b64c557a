"""Set up a decoding: where blocks lie, what a call may reuse, and a run that has made no call yet."""

from __future__ import annotations

from collections.abc import Sequence

from ssd_infer.engine.clock import Clock
from ssd_infer.engine.stats import Stats
from ssd_infer.errors import ConfigError, Problem
from ssd_infer.families.diffusion.block_loop import Lane, Run
from ssd_infer.families.diffusion.canvases import DualMemory, FullMemory
from ssd_infer.families.diffusion.denoiser import Denoiser
from ssd_infer.families.diffusion.draft import StateDrafter
from ssd_infer.families.diffusion.exact import ExactMemory
from ssd_infer.families.diffusion.memory import Memory
from ssd_infer.families.diffusion.noise import mix_int
from ssd_infer.families.diffusion.reader import Reader
from ssd_infer.families.diffusion.settings import SamplerSettings
from ssd_infer.families.diffusion.state import Canvas
from ssd_infer.families.diffusion.step import Stepper


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
