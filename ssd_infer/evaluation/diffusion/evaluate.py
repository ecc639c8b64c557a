"""Report on a diffusion checkpoint: stepwise decoding, every draft of `fewer_steps` against it, quality."""

from __future__ import annotations

import logging
from typing import Any

from ssd_infer.config.evaluation import EvalSettings
from ssd_infer.engine.sampling import SamplingParams
from ssd_infer.errors import ConfigError
from ssd_infer.evaluation import report_folder
from ssd_infer.evaluation.batch_exactness import batch_deadline
from ssd_infer.evaluation.bench import EvalContext, Say, open_context, torch_threads
from ssd_infer.evaluation.carried import show
from ssd_infer.evaluation.contenders import Contender, one_line
from ssd_infer.evaluation.diffusion.diffusion_contenders import baseline, lossy_peer, resolved_contender
from ssd_infer.evaluation.diffusion.diffusion_figures import figures
from ssd_infer.evaluation.diffusion.diffusion_quality import generative_perplexity, quality
from ssd_infer.evaluation.diffusion.exactness import exact_in_batches
from ssd_infer.evaluation.losslessness import LosslessResult, judge_greedy
from ssd_infer.evaluation.measure import measure
from ssd_infer.evaluation.progress import quiet_libraries
from ssd_infer.evaluation.runner import assemble, samples
from ssd_infer.evaluation.section import Section, again, shortfalls, stand_in
from ssd_infer.evaluation.strategies import Absent
from ssd_infer.evaluation.stream import both
from ssd_infer.evaluation.summary import scoreboard, share_plain
from ssd_infer.families.diffusion.denoiser import Denoiser
from ssd_infer.families.diffusion.settings import SamplerSettings
from ssd_infer.report.write import check_writable, write_report, writing
from ssd_infer.strategies.fewer_steps.call_report import call_plots
from ssd_infer.strategies.fewer_steps.drafts import DRAFTERS
from ssd_infer.strategies.fewer_steps.fewer_steps import NAME
from ssd_infer.strategies.registry import basics
from ssd_infer.strategies.study import Sampling
from ssd_infer.tuning.budget import Deadline, OutOfTime, stopping

logger = logging.getLogger(__name__)

QUALITY_SHARE, PREPARING_SHARE = 0.15, 0.12
"""Shares: of the time limit after which quality must be done, and of what is left for one draft's calibration."""
UNRESOLVED = (
    "not measured: its calibration did not end in its share of the time limit; raise max_minutes, or ask for this "
    "draft alone"
)
OTHERS = (
    "it drafts for models that decode autoregressively, and this checkpoint is a diffusion language model"
)


def evaluate(settings: EvalSettings, say: Say | None = None) -> dict[str, Any]:
    """Measure every draft of `fewer_steps` on `settings.checkpoint`, write the report files, and return the report.

    `say` receives one line a phase (None: the log does). Raises SSDError when checkpoint, prompts or place of the
    report are unusable; a draft that fails is a row with its reason.
    """
    folder = report_folder(settings)
    check_writable("out", folder)
    with torch_threads(settings.threads), quiet_libraries():
        bench = open_context(settings, say or logger.info)
        sampler = SamplerSettings.of(bench.model.config)
        Denoiser.of(bench.model)
        bench.say("bounding the likelihood of held-out text")
        found = quality(bench)
        sections = []
        for turn, temperature in enumerate(settings.temperatures, start=1):
            sampling = (
                Sampling(float(temperature), settings.top_k, settings.top_p) if temperature else Sampling()
            )
            share = QUALITY_SHARE + (1 - QUALITY_SHARE) * turn / len(settings.temperatures)
            sections.append(_section(bench, sampling, sampler, bench.budget.deadline(0.97 * share)))
        report = assemble(bench, sections, found)
        _show_calls(report["strategies"])
    with writing("out", folder):
        write_report(report, folder, list(samples(sections)))
    return report


def _section(bench: EvalContext, sampling: Sampling, sampler: SamplerSettings, deadline: Deadline) -> Section:
    """Resolve the drafts, time everybody against stepwise decoding, and judge by equality of tokens."""
    settings = bench.settings
    absent = [Absent(name + sampling.suffix, "not_applicable", OTHERS) for name in basics() if name != NAME]
    strategies: list[Contender] = []
    predicted: dict[str, float] = {}
    bench.say(f"calibrating drafts at temperature {sampling.temperature:g}")
    for row, params in _wanted(settings).items():
        name = row + sampling.suffix
        try:
            with stopping(bench.model, deadline.part(PREPARING_SHARE)):
                contender, gain = resolved_contender(bench, name, params, sampling, sampler)
        except ConfigError:
            raise
        except OutOfTime:
            absent.append(Absent(name, "not_applicable", UNRESOLVED, here=True))
            continue
        except Exception as error:  # noqa: BLE001  one draft that fails must not cost the others their rows
            absent.append(Absent(name, "failed", one_line(error)))
            continue
        strategies.append(contender)
        if gain is not None:
            predicted[name] = gain
    peers = [lossy_peer(bench, sampling, sampler)] if settings.peers else []
    plain = baseline(bench, sampling, sampler)
    contenders = [plain, again(plain, sampling), *strategies, *peers]
    stand_in(contenders)
    bench.say(f"decoding with {len(contenders)} contenders at temperature {sampling.temperature:g}")
    found = measure(
        contenders,
        bench.units,
        settings.repeats,
        settings.max_new_tokens,
        settings.seed,
        bench.device,
        deadline,
    )
    bench.notes += shortfalls(found, settings.max_new_tokens, f"temperature {sampling.temperature:g}")
    share_plain(found, contenders)
    board = scoreboard(found, contenders, sampling, settings.seed)
    absent = absent if sampling.greedy else [row for row in absent if row.status == "failed" or row.here]
    section = Section(sampling, contenders, absent, found, board)
    _judge(section)
    more = exact_in_batches(bench, strategies, sampling, sampler, batch_deadline(bench.budget))
    section.verdicts |= {name: both(section.verdicts[name], result) for name, result in more.items()}
    how = SamplingParams(not sampling.greedy, sampling.temperature or 1.0, sampling.top_k, sampling.top_p)
    for contender in contenders:
        if contender.failure is None and found.of(contender.name) and contender.kind != "again":
            section.more[contender.name] = figures(bench, contender, found, sampler, how)
            if contender.name in predicted:
                section.more[contender.name]["predicted_by_calibration"] = predicted[contender.name]
    _add_perplexity(bench, section)
    return section


def _show_calls(strategies: list[dict[str, Any]]) -> None:
    """Draw the first measured curve of call costs: all drafts call the same model."""
    row = next((row for row in strategies if row["extra"].get("calls")), None)
    if row is not None:
        show(row, [], call_plots(row["extra"]["calls"]))


def _add_perplexity(bench: EvalContext, section: Section) -> None:
    """Add what the checkpoint thinks of its own outputs, once: lossless rows share them."""
    baseline_ = next(item for item in section.contenders if item.kind == "baseline")
    prompts = {(unit.index, row): prompt for unit in bench.units for row, prompt in enumerate(unit.prompts)}
    outputs = section.found.outputs(baseline_.name)
    texts = [(prompts[key[1:]], tokens) for key, tokens in outputs.items() if key[0] == 0]
    found = generative_perplexity(bench.model, texts)
    for name, more in section.more.items():
        if section.verdicts.get(name, LosslessResult("pass", "")).verdict == "pass":
            more["generative_perplexity"] = found


def _wanted(settings: EvalSettings) -> dict[str, dict[str, Any]]:
    """Return row name → draft parameters: the draft asked for, or the automatic choice and every drafter by name."""
    if settings.draft != "all":
        variant = settings.draft.partition(":")[2]
        given = {**({"drafter": variant} if variant else {}), **settings.draft_params}
        return {settings.draft: given} if settings.draft.startswith(NAME) else {}
    return {NAME: {}} | {f"{NAME}:{name}": {"drafter": name} for name in DRAFTERS}


def _judge(section: Section) -> None:
    """Compare every output with stepwise decoding's: equal token by token, sampled ones under the same keyed noise."""
    reference = next(item for item in section.contenders if item.kind == "baseline")
    expected = {reference.name: section.found.outputs(reference.name)}
    for item in section.contenders:
        if item.kind in ("baseline", "again") or item.failure is not None:
            continue
        result = judge_greedy(section.found.outputs(item.name), expected)
        if not section.sampling.greedy:
            detail = result.detail.replace("greedy:", "sampling, same keyed noise:", 1)
            result = LosslessResult(result.verdict, detail, result.extra)
        section.verdicts[item.name] = result
