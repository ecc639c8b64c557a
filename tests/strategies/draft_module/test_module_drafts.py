"""Drafts with modules: the greedy text and the law of sampling, whatever body, head, tree and family."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ssd_infer
from ssd_infer.engine.prefilled import Prefilled, prefill
from ssd_infer.engine.target import Target
from ssd_infer.strategies import registry
from ssd_infer.strategies.draft_module.module_draft import ModuleDraft
from ssd_infer.tuning.costs import Curve, RoundCosts
from tests.strategies.draft_module.modules import BODIES, DRAFTS, FORMS, follow, make, prompts, tiny

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 8},
    "gemma3_text": {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 8},
    "gpt2": {},
    "bloom": {"attn_implementation": "eager"},
    "cohere": {"logit_scale": 0.25},
    "opt": {},
    "olmo2": {},
}
WAYS: list[dict[str, Any]] = [
    {"gamma": 3},
    {"gamma": 4, "tree": 7},
    {"gamma": 5, "confidence": 0.3},
    {"gamma": 3, "tree": 8, "head": "context", "head_size": 20},
    {"gamma": 3, "head": "lowrank", "head_size": 20},
]


def greedy(model: Any, rows: list[list[int]], draft: str | None = None, **params: Any) -> Any:
    """Decode greedily."""
    given = None if draft is None else {"confidence": 0.0} | params
    return ssd_infer.generate(
        model, rows, draft=draft, draft_params=given, max_new_tokens=20, eos_token_id=[]
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("form", DRAFTS)
def test_a_ragged_batch_of_eight_is_plain_decoding(family: str, form: str) -> None:
    model = tiny(family, **FAMILIES[family])
    plain = greedy(model, prompts()).sequences
    for number, body in enumerate(("rank",) if form == "heads" else ("rank", "attention", "layer")):
        make(model, form, body, rows=40 if number == 1 else 0)
        for params in WAYS[:3] if family != "llama" else WAYS:
            out = greedy(model, prompts(), DRAFTS[form], **params)
            assert out.sequences == plain, (body, params)
            assert out.stats.total.drafted > 50


@pytest.mark.parametrize("form", DRAFTS)
@pytest.mark.parametrize(
    "params", [{"tree": 1}, {"tree": 8}, {"tree": 8, "trust": 0}, {"tree": 8, "head": "own"}]
)
def test_copies_beside_a_module_are_plain_decoding(form: str, params: dict[str, Any]) -> None:
    model = tiny()
    make(model, form, rows=40)
    rows = [(one * 20)[:30] for one in prompts((3, 2, 4, 30, 1))]
    out = greedy(model, rows, f"{DRAFTS[form]}+ngram", gamma=3, copy=4, **params)
    assert out.sequences == greedy(model, rows).sequences
    assert out.stats.total.accepted > 0


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("params", [WAYS[0], WAYS[1], {"gamma": 4, "confidence": 0.3}])
@pytest.mark.parametrize("sampled", [False, True])
def test_a_module_as_it_begins_drafts_what_the_bare_exit_drafts(
    body: str, params: dict[str, Any], sampled: bool
) -> None:
    """The very same tokens, of the very same laws: every count agrees, and what is sampled does."""
    model = tiny()
    make(model, "exit", body, noise=0.0)
    given = {"confidence": 0.0, "head": "full"} | params
    ask: dict[str, Any] = {"max_new_tokens": 20, "eos_token_id": [], "do_sample": sampled, "seed": 3}
    one = ssd_infer.generate(model, prompts(), draft="exit_module", draft_params=given, **ask)
    bare = given | {"exit_layer": FORMS["exit"]["exit_layer"]}
    two = ssd_infer.generate(model, prompts(), draft="early_exit", draft_params=bare, **ask)
    assert one.sequences == two.sequences
    assert [row.trace for row in one.stats.rows] == [row.trace for row in two.stats.rows]
    assert one.stats.total.accepted > 0


def test_states_of_a_module_as_it_begins_are_those_of_the_exit_bit_for_bit() -> None:
    model = tiny()
    make(model, "exit", noise=0.0)
    compared = 0

    def seen(drafter: ModuleDraft, proposal: Any) -> None:
        nonlocal compared
        states = proposal.hidden[:, :1]
        block = drafter.keys.run(states, drafter.session.window(1))
        assert torch.equal(drafter.head.scores(block).logits, drafter.session.target.logits(states))
        compared += 1

    follow(model, "exit_module", WAYS[0], prompts(), seen)
    assert compared > 4


@pytest.mark.parametrize("form", DRAFTS)
def test_prompts_that_were_prefilled_elsewhere_are_made_up_for(form: str) -> None:
    """The draft then proposes what it proposes after a prefill of its own."""
    model = tiny()
    make(model, form)
    target, kind = Target.of(model), registry.get(DRAFTS[form])
    rows = prompts((5, 17, 9))
    params = kind.parse({"gamma": 3, "confidence": 0.0}, target)
    own: list[Any] = []
    follow(model, DRAFTS[form], WAYS[0], rows, lambda _, proposal: own.append(proposal.tokens))
    with torch.inference_mode():
        session = Prefilled(target, [prefill(target, row) for row in rows], 3, 16).session()
        before = session.cache.held(0)[0].clone()
        plan = kind.plan(session, params)
        session.layers = plan.layers
        plan.drafter.prefilled()
        plan.drafter.begin()
        assert torch.equal(session.cache.held(0)[0], before)
        session.begin_round()
        assert torch.equal(plan.drafter.propose(8).tokens, own[0])


@pytest.mark.parametrize("form", DRAFTS)
def test_auto_decodes_plainly_where_nothing_pays_and_drafts_where_it_does(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(layers=8)
    make(model, form, "rank", **({"exit_layer": 1} if form == "exit" else {}))
    found = {}
    for price in (1e-9, 10.0):
        costs = RoundCosts(1.0, price, Curve((1, 33), (1.0, 1.0)))
        monkeypatch.setattr(
            "ssd_infer.strategies.draft_module.module_options.chain_costs", lambda *_, costs=costs: costs
        )
        strategy = registry.get(DRAFTS[form])
        found[price] = strategy.prepare(Target.of(model), {"head": "full"}, prompts(), do_sample=True)
    assert found[10.0].params is None
    assert "plain decoding" in found[10.0].note
    cheap = found[1e-9]
    assert cheap.params is not None
    assert "auto" not in cheap.params.described().values()
    assert cheap.predicted_speedup > 1


@pytest.mark.parametrize("form", DRAFTS)
@pytest.mark.parametrize("tree", [1, 6])
def test_given_parameters_are_taken_without_measuring(
    form: str, tree: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny()
    make(model, form, rows=20)
    monkeypatch.setattr("ssd_infer.strategies.draft_module.module_choice.Choice", None)
    strategy = registry.get(DRAFTS[form])
    found = strategy.prepare(Target.of(model), {"gamma": 4, "tree": tree}, prompts(), do_sample=False)
    assert found.params.described()["head"] == "own"
    assert found.params.confidence == 0.0


def test_a_tree_that_is_asked_for_is_chosen_by_what_each_depth_is_worth() -> None:
    model = tiny()
    make(model, "mtp")
    strategy = registry.get("mtp")
    found = strategy.prepare(Target.of(model), {"tree": 8, "head": "full"}, prompts(), do_sample=True)
    assert "trees of 8 nodes" in found.note


def test_no_more_is_drafted_than_there_are_blocks() -> None:
    model = tiny()
    make(model, "heads", heads=2)
    strategy = registry.get("heads")
    assert strategy.prepare(Target.of(model), {"gamma": 9}, prompts(), do_sample=False).params.gamma == 2
    widths: set[int] = set()
    follow(model, "heads", {"gamma": 9}, prompts(), lambda _, proposal: widths.add(proposal.width))
    assert max(widths) == 2


@pytest.mark.parametrize("form", DRAFTS)
def test_a_model_that_changes_its_precision_takes_its_module_along(form: str) -> None:
    model = tiny()
    make(model, form, rows=20)
    greedy(model, prompts(), DRAFTS[form], gamma=3)
    wide = model.double()
    assert greedy(wide, prompts(), DRAFTS[form], gamma=3).sequences == greedy(wide, prompts()).sequences
