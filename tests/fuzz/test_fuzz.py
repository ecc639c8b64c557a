"""The fuzzer in the suite: a bounded share of what `make fuzz` does, the same cases in every run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import torch

from ssd_infer.engine.laws import Law
from ssd_infer.engine.session import Proposal
from ssd_infer.engine.target import Target
from ssd_infer.errors import Problem
from ssd_infer.strategies import registry as drafts
from ssd_infer.strategies.base import DraftParams, Strategy, at_least
from ssd_infer.strategies.info import StrategyInfo
from tests.fuzz import causal, law
from tests.fuzz.__main__ import all_arms
from tests.fuzz.campaign import Arm, Fault, campaign
from tests.fuzz.tally import Tally, table
from tests.registered import know_only

EXAMPLES, SEED, VARIANTS = 60, 4, range(2)
"""What an ordinary arm gets here; of the seeds, one whose cases find the fault that the fuzzer was written for."""
TALLIES: dict[str, Tally] = {}


@pytest.fixture(scope="module", autouse=True)
def report(request: pytest.FixtureRequest) -> Iterator[None]:
    """Print what was decoded, past any capture, so that a run that proves little is seen."""
    yield
    if TALLIES:
        capture = request.config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            print(f"\n{table(TALLIES)}")


@pytest.mark.parametrize("arm", all_arms(), ids=lambda arm: arm.name)
def test_no_case_differs_from_its_reference(arm: Arm) -> None:
    tally = TALLIES[arm.name] = Tally()
    campaign(arm, max(2, round(EXAMPLES * arm.share)), SEED, VARIANTS, tally)
    assert tally.decodings
    if arm.judged:
        assert tally.unfair() is None


def test_every_registered_draft_is_fuzzed() -> None:
    names = {arm.name for arm in all_arms()}
    assert set(drafts.registry()) <= names
    lossless = {name for name, strategy in drafts.registry().items() if strategy.lossless}
    assert {f"law {name}" for name in lossless} <= names


@dataclass(slots=True)
class EchoParams(DraftParams):
    """Parameters no other strategy has, of the types that parameters have."""

    times: int | Literal["auto"] = "auto"
    what: Literal["last", "first"] = "last"
    loud: bool = False

    def problems(self, target: Target | None) -> list[Problem]:
        return at_least("times", self.times, 1)


class Echo(Strategy):
    """A strategy from outside: the row's last or first token, again and again."""

    info = StrategyInfo("echo", "causal", "repetition")
    family = "toy"
    Params = EchoParams

    def __init__(self, session: Any, params: Any) -> None:
        super().__init__(session, params)
        self.params = params

    @classmethod
    def max_draft(cls, params: Any) -> int:
        return int(params.times)

    def propose(self, limit: int) -> Proposal:
        place = -1 if self.params.what == "last" else 0
        tokens = torch.tensor([[row.tokens[place]] for row in self.session.rows])
        return Proposal(tokens.expand(-1, min(self.params.times, limit)).contiguous())


class Trusting(Echo):
    """Wrong for all: what it drafts is never compared."""

    def propose(self, limit: int) -> Proposal:
        proposal = super().propose(limit)
        proposal.unverified = torch.ones_like(proposal.tokens, dtype=torch.bool)
        return proposal


class Overwriting(Echo):
    """Wrong for a ragged batch: hands over as its own states those of the neighbouring row."""

    def propose(self, limit: int) -> Proposal:
        session, proposal = self.session, super().propose(limit)
        ids = torch.cat([session.pending.unsqueeze(1), proposal.tokens], dim=1)
        window = session.window(ids.shape[1])
        hidden = session.run(session.target.embed_at(ids, window, session.cache), window, 0, 1)
        proposal.hidden, proposal.resume_layer = hidden.roll(1, dims=0), 1
        return proposal


class Raising(Echo):
    """Wrong at the end of a row: raises what is no refusal."""

    def propose(self, limit: int) -> Proposal:
        return super().propose(limit // (limit - 1))


class Lawless(Echo):
    """Wrong for sampling: says that its token was drawn evenly, though it always takes the same."""

    def propose(self, limit: int) -> Proposal:
        proposal = super().propose(limit)
        if not self.session.sampler.greedy:
            vocabulary = self.session.target.vocab_size
            proposal.law = Law(torch.full((*proposal.tokens.shape, vocabulary), 1 / vocabulary))
        return proposal


def _fuzz(monkeypatch: pytest.MonkeyPatch, strategy: type[Strategy], kind: Any, examples: int) -> Tally:
    """Register a strategy as `echo` and fuzz it; nothing else is told of it."""
    know_only(monkeypatch, None, strategy)
    (arm,) = [arm for arm in kind.arms() if arm.name.endswith("echo")]
    tally = Tally()
    campaign(arm, examples, SEED, VARIANTS, tally)
    return tally


def test_a_strategy_from_outside_is_fuzzed_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    tally = _fuzz(monkeypatch, Echo, causal, 30)
    assert tally.unfair() is None
    assert tally.accepted
    assert _fuzz(monkeypatch, Echo, law, 2).drafted


@pytest.mark.parametrize(
    ("strategy", "kind", "words"),
    [
        (Trusting, causal, "greedy"),
        (Overwriting, causal, "greedy"),
        (Raising, causal, "division"),
        (Lawless, law, "p-value"),
    ],
)
def test_a_wrong_strategy_is_found_and_its_script_shows_it(
    monkeypatch: pytest.MonkeyPatch, strategy: type[Strategy], kind: Any, words: str
) -> None:
    with pytest.raises(Fault, match=words) as caught:
        _fuzz(monkeypatch, strategy, kind, 60)
    script = str(caught.value).partition("# PYTHONPATH")[2]
    with pytest.raises((AssertionError, ZeroDivisionError), match=words):
        exec(f"#{script}", {})


class Idle(Echo):
    """Never drafts: nothing is wrong, and nothing was tested."""

    def propose(self, limit: int) -> Proposal:
        return self.session.empty()


def test_a_strategy_that_drafts_nothing_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "drafted in 0 of" in str(_fuzz(monkeypatch, Idle, causal, 10).unfair())
    assert "refused" in str(Tally(decodings=2, refusals=3, could=2, drafted=2).unfair())
