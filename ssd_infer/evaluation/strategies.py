"""Decide which strategies run on a checkpoint and with which parameters; whoever cannot run gets its reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ssd_infer.engine.target import Target
from ssd_infer.errors import ConfigError, UnsupportedModelError
from ssd_infer.evaluation.contenders import Contender, one_line, ours
from ssd_infer.report.rows import UNRESOLVED
from ssd_infer.strategies import registry as drafts
from ssd_infer.strategies.base import Resolved, Strategy
from ssd_infer.strategies.info import StrategyInfo, row_name
from ssd_infer.strategies.study import Sampling
from ssd_infer.tuning.budget import Budget, Deadline, OutOfTime, stopping


@dataclass(slots=True)
class Absent:
    """A row without figures: `status` not_applicable or failed, and one sentence why."""

    name: str
    status: str
    reason: str
    here: bool = False
    """Whether it is absent at this sampling setting for a reason of its own."""


@dataclass(slots=True)
class Candidates:
    """Who competes at one sampling setting, and who is absent."""

    contenders: list[Contender] = field(default_factory=list)
    absent: list[Absent] = field(default_factory=list)
    predicted: dict[str, float] = field(default_factory=dict)
    """Speedup each drafter expected of its `auto` choice, by contender name."""
    searches: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What resolving a strategy searched, and what that took, by contender name."""


def find_target(model: nn.Module) -> Target | str:
    """Return the engine's view of the model, or why it has none."""
    try:
        return Target.of(model)
    except UnsupportedModelError as error:
        return str(error)


def known_drafts(wanted: str = "all") -> dict[str, StrategyInfo]:
    """Return row name → strategy of those that have a row when `wanted` is asked for, in the order of a report."""
    asked = [wanted, row_name(wanted)]
    return {
        info.row: info
        for info in drafts.infos().values()
        if info.listed or info.group in asked or info.row in asked
    }


def check_draft(name: str, raw: Mapping[str, Any] | None = None, kind: str = "causal") -> None:
    """Raise ConfigError when `draft=name` names nothing that drafts for models of `kind`.

    Parameters `raw` of one strategy for causal models are checked as far as that needs no model.
    """
    problem = drafts.draft_problem(name, kind)
    if problem is not None:
        raise ConfigError([problem])
    found = drafts.find(name)
    if found is not None and found.kind == "causal" and name != found.group:
        drafts.get(found.name).parse(raw, None)


def select_candidates(
    model: nn.Module,
    target: Target | str,
    wanted: str,
    raw: dict[str, Any],
    sampling: Sampling,
    calibration: Sequence[list[int]],
    search_seconds: float = 60.0,
    batch_size: int = 0,
    deadline: Deadline | None = None,
) -> Candidates:
    """Resolve every strategy's parameters on `calibration` prompts; one that raises becomes a failed row.

    `search_seconds` bounds each search whose own bound is `auto`. A strategy whose `auto` goes by the batch is shown
    `batch_size` of the prompts, repeated where they are fewer; 0 shows it all. Each may take half of what is left until
    `deadline`, or its even share where that is more; one that needs longer is absent with that reason.
    """
    found = Candidates()
    known = known_drafts(wanted)
    deadline = deadline or Budget(0.0).deadline(1.0)
    for place, (name, info) in enumerate(known.items()):
        row = name + sampling.suffix
        if not is_wanted(wanted, info):
            reason = (
                f"not measured: it searches long; ask for draft={info.name} or draft={info.group}"
                if wanted == "all"
                else f"not measured: this run asked for draft={wanted} only"
            )
            found.absent.append(Absent(row, "not_applicable", reason))
        elif info.kind != "causal":
            found.absent.append(Absent(row, "not_applicable", info.needs))
        elif isinstance(target, str):
            found.absent.append(Absent(row, "not_applicable", target))
        else:
            strategy = drafts.get(info.name)
            given = raw if row_name(wanted) == name else {}
            turn = deadline.part(max(0.5, 1 / (len(known) - place)))
            limited = filled_in(strategy, given, min(search_seconds, 0.5 * turn.left))
            shown = _batch(calibration, batch_size) if strategy.by_batch else calibration
            entry = Entry(row, info.name, limited, by_hand=bool(given), alone=row_name(wanted) == info.row)
            _prepare(found, model, target, entry, sampling, shown, turn)
    found.absent = said_here(found.absent, sampling)
    return found


def said_here(absent: list[Absent], sampling: Sampling) -> list[Absent]:
    """Return who must be called absent at this setting: when sampling, the greedy row of the same name says most."""
    return [row for row in absent if sampling.greedy or row.status == "failed" or row.here]


@contextmanager
def attempt(found: Candidates, model: nn.Module, row: str, deadline: Deadline, late: str) -> Iterator[None]:
    """Make a row absent when the block fails or does not end by `deadline`, which has the reason `late`.

    One strategy that fails must not cost the others their rows; a ConfigError is the request's own fault and is raised.
    """
    try:
        with stopping(model, deadline):
            yield
    except ConfigError:
        raise
    except OutOfTime:
        found.absent.append(Absent(row, "not_applicable", late, here=True))
    except Exception as error:  # noqa: BLE001
        found.absent.append(Absent(row, "failed", one_line(error)))


def is_wanted(wanted: str, info: StrategyInfo) -> bool:
    """Tell whether `draft=wanted` asks for a strategy; a group's name asks for all of it."""
    return info.in_all if wanted == "all" else wanted == info.group or row_name(wanted) == info.row


def _batch(prompts: Sequence[list[int]], size: int) -> Sequence[list[int]]:
    """Return `size` prompts, the longest first since a batch is as wide as its longest; all for size 0."""
    longest = sorted(prompts, key=len, reverse=True)
    return [longest[turn % len(longest)] for turn in range(size)] or prompts


def filled_in(strategy: type[Strategy], raw: Mapping[str, Any], search_seconds: float) -> dict[str, Any]:
    """Return `raw` with what an evaluation gives the parameters left out, its bound on an open search among them."""
    raw = {**strategy.evaluated, **raw}
    open_ended = "search_seconds" in strategy.Params.__dataclass_fields__
    if open_ended and raw.get("search_seconds", "auto") == "auto":
        return raw | {"search_seconds": search_seconds}
    return raw


@dataclass(frozen=True, slots=True)
class Entry:
    """A strategy about to be resolved: its row, its drafter, and parameters, which may be given `by_hand`."""

    row: str
    draft: str
    raw: dict[str, Any]
    by_hand: bool
    alone: bool = False
    """Whether no other strategy was asked for."""


def _prepare(
    found: Candidates,
    model: nn.Module,
    target: Target,
    entry: Entry,
    sampling: Sampling,
    calibration: Sequence[list[int]],
    deadline: Deadline,
) -> None:
    strategy, row = drafts.get(entry.draft), entry.row
    reason = strategy.unsupported_reason(target)
    if reason is not None:
        found.absent.append(Absent(row, "not_applicable", reason))
        return
    with attempt(found, model, row, deadline, _unresolved(entry, deadline.left)):
        resolved = strategy.resolve(
            target, strategy.parse(entry.raw, target), list(calibration), not sampling.greedy
        )
        found.contenders.append(_contender(model, target, entry, sampling, untimed(resolved, entry.by_hand)))
        if resolved.search:
            found.searches[row] = resolved.search
        if resolved.predicted_speedup is not None:
            found.predicted[row] = resolved.predicted_speedup


def _unresolved(entry: Entry, seconds: float) -> str:
    remedy = "give its parameters" if entry.alone else f"ask for draft={entry.draft} alone"
    return f"{UNRESOLVED} ({seconds:.1f} s); raise max_minutes, or {remedy}"


def untimed(resolved: Resolved, by_hand: bool) -> Resolved:
    """Return plain decoding in place of automatic parameters that are predicted to lose; those by hand are tried."""
    predicted = resolved.predicted_speedup
    if resolved.params is None or by_hand or predicted is None or predicted >= 1.0:
        return resolved
    note = f"plain decoding: not timed, the predicted speedup is {predicted:.2f}"
    note = f"{note} ({resolved.note})" if resolved.note else note
    return Resolved(None, note, predicted, resolved.search)


def _contender(
    model: nn.Module, target: Target, entry: Entry, sampling: Sampling, resolved: Resolved
) -> Contender:
    strategy = drafts.get(entry.draft)
    plain = resolved.params is None
    params = {} if resolved.params is None else as_dict(resolved.params)
    return Contender(
        entry.row,
        "strategy",
        ours(model, None if plain else entry.draft, params, sampling),
        draft=entry.draft,
        params=params,
        note=resolved.note,
        plain=plain,
        claimed=resolved.params is None or strategy.claims(resolved.params),
        make_ready=readiness(target, strategy, params, sampling),
        extra_bytes=0 if resolved.params is None else strategy.extra_bytes(target, resolved.params),
    )


def as_dict(params: Any) -> dict[str, Any]:
    """Return a parameter dataclass as JSON-ready data."""
    return {
        name: list(value) if isinstance(value, (tuple, set, range)) else value
        for name, value in params.described().items()
    }


def own_peers(model: nn.Module, target: Target, sampling: Sampling, wanted: str) -> list[Contender]:
    """Return our own strategies that draft without the model: what combining them with a self-draft has to beat."""
    return [
        _own_peer(model, target, sampling, info)
        for info in drafts.infos().values()
        if info.kind == "causal" and not info.listed and not is_wanted(wanted, info)
    ]


def _own_peer(model: nn.Module, target: Target, sampling: Sampling, info: StrategyInfo) -> Contender:
    strategy = drafts.get(info.name)
    params = dict(strategy.evaluated)
    return Contender(
        f"{info.row}{sampling.suffix}",
        "peer",
        ours(model, info.name, params, sampling),
        draft=info.name,
        params=params,
        make_ready=readiness(target, strategy, params, sampling),
    )


def readiness(
    target: Target, strategy: type[Strategy], params: dict[str, Any], sampling: Sampling
) -> Callable[[list[Any]], object] | None:
    """Return what resolves the parameters that a decoding leaves open, as each decoding would; None where none are."""
    if "auto" not in params.values():
        return None

    def resolve(prompts: list[Any]) -> None:
        strategy.resolve(target, strategy.parse(params, target), prompts, not sampling.greedy)

    return resolve
