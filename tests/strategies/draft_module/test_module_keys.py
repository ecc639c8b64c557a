"""A module's keys never change what is emitted, so no test of exactness finds a wrong one: they are recomputed here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ssd_infer.engine.model_view import cache_keyword
from ssd_infer.engine.session import Feedback, Proposal
from ssd_infer.models.draft_modules.bodies import run_body
from ssd_infer.models.draft_modules.heads_form import HeadsModule
from ssd_infer.models.draft_modules.hearing import listening
from ssd_infer.models.draft_modules.module import DraftModule
from ssd_infer.models.draft_modules.mtp_form import MtpModule
from ssd_infer.models.draft_modules.rollout import step_arguments
from ssd_infer.strategies.draft_module.module_draft import ModuleDraft
from ssd_infer.strategies.draft_module.module_keys import Block, ModuleKeys
from tests.strategies.draft_module.modules import DRAFTS, Recorder, follow, make, paths, prompts, tiny

WITH_KEYS = ("exit", "mtp")
SHAPES: dict[str, dict[str, Any]] = {
    "chain": {"gamma": 3},
    "tree": {"gamma": 3, "tree": 6, "shares": [0.5, 0.3, 0.1]},
    "stop": {"gamma": 5, "confidence": 0.3},
}


@torch.no_grad()
def recomputed(model: Any, module: DraftModule, tokens: list[int]) -> Tensor:
    """Return keys `(H, n, D)` of the module over committed `tokens`, by the model's own forward pass."""
    last = len(model.get_decoder().layers)
    with listening(model, (0, module.spec.exit_layer or last)) as heard:
        model(torch.tensor([tokens]), use_cache=False)
    states, given = heard.states[module.spec.exit_layer or last], heard.positional(module)
    if isinstance(module, MtpModule):
        states = module.joined(states[:, :-1], heard.states[0][:, 1:])
        given = step_arguments(given, 1, states)
    kept = Recorder()
    run_body(module.body, states, given | {cache_keyword(module.body.forward): kept, "use_cache": True})
    assert kept.keys is not None
    return kept.keys[0]


class KeysCompared:
    """Compares, at every proposal, the keys of verified states with recomputed ones."""

    def __init__(self, model: Any) -> None:
        """Nothing was seen yet."""
        self.model, self.apart, self.rounds, self.alone, self.batches = model, 0.0, 0, 0, set[int]()

    def __call__(self, drafter: ModuleDraft, proposal: Proposal) -> None:
        """Look at all rows."""
        keys, session = drafter.keys, drafter.session
        if proposal.forwards == 0:
            self.alone += 1  # of copies, for which the module did not run
            return
        known = 0 if drafter.form == "mtp" else 1
        assert keys.lengths == [length + known for length in session.lengths]
        held = keys.cache.held(0)[0]
        for at, row in enumerate(session.rows):
            wanted = recomputed(self.model, drafter.module, row.tokens)
            assert wanted.shape[1] == keys.lengths[at]
            self.apart = max(self.apart, float((held[at, :, : keys.lengths[at]] - wanted).abs().max()))
        self.rounds += 1
        self.batches.add(len(session.rows))


@pytest.mark.parametrize("form", WITH_KEYS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_keys_after_every_round_are_those_of_the_committed_text(form: str, shape: str, family: str) -> None:
    kinds = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 8}
    model = tiny(family, **(kinds if family == "gemma3_text" else {}))
    make(model, form)
    seen = KeysCompared(model)
    follow(model, DRAFTS[form], SHAPES[shape], prompts(), seen)
    assert seen.rounds > 4
    assert len(seen.batches) > 1 or form == "exit", "rows must have ended at different times"
    assert seen.apart < 1e-4


@pytest.mark.parametrize("form", WITH_KEYS)
@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_keys_are_complete_after_rounds_of_copies_too(form: str, shape: str) -> None:
    model = tiny()
    make(model, form)
    rows = [(one * 9)[:20] for one in prompts((3, 2, 4))]
    seen = KeysCompared(model)
    params = {"tree": 1} | SHAPES[shape] | {"trust": 1, "copy": 3}
    follow(model, f"{DRAFTS[form]}+ngram", params, rows, seen, new=40)
    assert seen.alone > 0
    assert seen.rounds > 0
    assert seen.apart < 1e-4


def _pathless(self: ModuleDraft, feedback: Feedback) -> None:
    feedback.path = None
    _observe(self, feedback)


def _drafted_kept(self: ModuleKeys, block: Block, hidden: Tensor | None = None) -> Tensor:
    """Run on a block, and leave what drafting had written where verified states stand."""
    if self.module.thin or self.cache._keys[0] is None:
        return _run_block(self, block, hidden)
    before = self.cache.held(0)[0].clone()
    out = _run_block(self, block, hidden)
    self.cache.held(0)[0].copy_(before)
    return out


_observe, _run_block = ModuleDraft.observe, ModuleKeys.run_block


def test_keys_that_ignore_the_accepted_path_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny()
    make(model, "exit", noise=0.0)
    monkeypatch.setattr(ModuleDraft, "observe", _pathless)
    seen = KeysCompared(model)
    follow(model, "exit_module", SHAPES["tree"], prompts(), seen, new=32)
    assert seen.apart > 1e-3


def test_keys_of_its_own_output_left_in_place_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("gemma3_text")
    make(model, "mtp")
    monkeypatch.setattr(ModuleKeys, "run_block", _drafted_kept)
    seen = KeysCompared(model)
    follow(model, "mtp", SHAPES["chain"], prompts(), seen)
    assert seen.apart > 1e-3


@torch.no_grad()
def scores_after(model: Any, module: DraftModule, committed: list[int], drafts: list[int]) -> Tensor:
    """Return the logits `(K,)` from which the token after `drafts` is drafted, by whole forward passes."""
    last = len(model.get_decoder().layers)
    with listening(model, (0, module.spec.exit_layer or last)) as heard:
        model(torch.tensor([committed + drafts]), use_cache=False)
    given, states = heard.positional(module), heard.states[module.spec.exit_layer or last]
    if isinstance(module, HeadsModule):
        return module.logits(module.over_block(states)[len(drafts)])[0, len(committed) - 2]
    if not isinstance(module, MtpModule):
        return module.logits(module.over_block(states, given))[0, -1]  # type: ignore[operator]
    step = len(drafts) + 1
    return module.logits(module.rollout(states, heard.states[0], given, step)[-1])[0, len(committed) - 2]


@pytest.mark.parametrize("form", DRAFTS)
@pytest.mark.parametrize("body", ["rank", "attention", "layer"])
@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_what_is_drafted_is_what_training_sees(form: str, body: str, shape: str) -> None:
    """Every drafted token is among the best of what the module's training side makes of the same text."""
    model = tiny()
    module = make(model, form, "rank" if form == "heads" else body, rows=40)
    compared = 0

    def seen(drafter: ModuleDraft, proposal: Proposal) -> None:
        nonlocal compared
        for at, row in enumerate(drafter.session.rows):
            tokens = proposal.tokens[at].tolist()
            for way, node in paths(proposal, at):
                logits = scores_after(model, module, row.tokens, [tokens[before] for before in way])
                assert module.ids is not None
                column = int((module.ids == tokens[node]).nonzero())
                better = int((logits > logits[column] + 1e-4).sum())
                assert better <= (0 if shape == "chain" else 3), (at, node, better)
                compared += 1

    follow(model, DRAFTS[form], SHAPES[shape] | {"head": "own"}, prompts((5, 1, 9)), seen, new=8)
    assert compared > 30
