"""Token trees are verified as exactly as chains: greedy against `generate`, in families, batches and at every end."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from ssd_infer.engine.cache import RowCache
from ssd_infer.engine.kernels import plain
from ssd_infer.engine.loop import Decoding, decode
from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.session import Proposal, Session, open_session
from ssd_infer.engine.stats import Stats
from ssd_infer.engine.stopping import StopRule
from ssd_infer.engine.target import Target
from ssd_infer.engine.tree import Tree, TreeDraft
from ssd_infer.engine.tree_support import chains_only, tree_problems
from tests.conftest import build_model
from tests.engine.causal_families import tiny
from tests.engine.tree_drafts import KnowingTrees, decoded

NEW, NODES = 20, 9
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma3_text": {},
    "gemma4_text": {},
    "mistral": {"sliding_window": 6},
    "gpt2": {},
    "opt": {},
    "bloom": {},
    "gpt_oss": {},
    "deepseek_v2": {},
    "deepseek_v3": {},
    "phi3": {},
}


def rows(count: int, vocab: int = 97) -> list[list[int]]:
    """Return ragged prompts of 3 to 14 tokens."""
    draw = torch.Generator().manual_seed(4)
    sizes = torch.randint(3, 15, (count,), generator=draw).tolist()
    return [torch.randint(3, vocab, (size,), generator=draw).tolist() for size in sizes]


def greedy(model: Any, prompts: list[list[int]], new: int = NEW) -> list[list[int]]:
    """Return transformers' greedy continuations."""
    found = []
    for row in prompts:
        ids = torch.tensor([row])
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        found.append(out[0, len(row) :].tolist())
    return found


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> tuple[Any, list[list[int]], list[list[int]]]:
    """A model of each family, prompts and their greedy text."""
    model = tiny(request.param, **FAMILIES[request.param])
    prompts = rows(8)
    return model, prompts, greedy(model, prompts)


@pytest.mark.parametrize("shared", [True, False])
def test_greedy_is_what_generate_writes(
    family: tuple[Any, list[list[int]], list[list[int]]], shared: bool
) -> None:
    model, prompts, texts = family
    target = Target.of(model)
    assert chains_only(target) is None
    make = partial(KnowingTrees, texts=texts, nodes=NODES, shared=shared)
    found, stats, _ = decoded(target, prompts, make, NODES, NEW)
    assert found == texts
    assert stats.total.tau is not None
    assert stats.total.tau > 1.4, "trees that know the text must be accepted"
    for row, text in zip(prompts[:3], texts, strict=False):
        make = partial(KnowingTrees, texts=[text], nodes=NODES, shared=shared, seed=5)
        assert decoded(target, [row], make, NODES, NEW)[0] == [text]


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("shared", [True, False])
def test_an_end_inside_a_path_ends_the_row(batch: int, shared: bool) -> None:
    model = build_model(layers=3, vocab_size=19)
    prompts = rows(8, 19)[:batch]
    texts = greedy(model, prompts)
    target = Target.of(model)
    for end in {text[at] for text in texts for at in (3, 4, 7)}:
        wanted = [text[: text.index(end) + 1] if end in text else text for text in texts]
        for seed in range(3):
            make = partial(KnowingTrees, texts=texts, nodes=NODES, shared=shared, seed=seed)
            found, stats, _ = decoded(target, prompts, make, NODES, NEW, eos=frozenset({end}))
            assert found == wanted
            for row, text in zip(stats.rows, found, strict=True):
                assert row.emitted == len(text)
                assert row.accepted + row.rounds + 1 in (len(text), len(text) + 1)
                assert row.accepted <= row.drafted
                assert sum(row.per_position_accepted) == row.accepted


@pytest.mark.parametrize("new", range(1, 8))
def test_budgets_hold(new: int) -> None:
    model = build_model(layers=3, vocab_size=19)
    prompts = rows(4, 19)
    texts = greedy(model, prompts)
    make = partial(KnowingTrees, texts=texts, nodes=NODES, shared=False)
    assert decoded(Target.of(model), prompts, make, NODES, new)[0] == [text[:new] for text in texts]


class Checking(KnowingTrees):
    """Compare the cache with one of a single pass over the committed text, in every third round."""

    checked = 0

    def propose(self, limit: int) -> Proposal:
        """Look first, then draft."""
        session = self.session
        if session.rows[0].emitted > 3 * (self.checked + 1):
            self.checked += 1
            for at, (row, length) in enumerate(zip(session.rows, session.lengths, strict=True)):
                fresh = open_session(session.target, [row.tokens[:length]], 1, 0, session.sampler)
                Decoding(fresh, None, StopRule(), Stats.empty(1)).prefill()
                _same(session.cache, fresh.cache, at, length)
        return super().propose(limit)


def _same(kept: RowCache, fresh: RowCache, row: int, length: int) -> None:
    for layer in range(kept.num_layers):
        pairs = kept.stored(layer, length), fresh.stored(layer, length)
        assert (pairs[0] is None) == (pairs[1] is None)
        for one, other in zip(*(pair or () for pair in pairs), strict=True):
            torch.testing.assert_close(one[row], other[0], rtol=1e-4, atol=1e-4)
    for key, held in kept._beside.items():
        torch.testing.assert_close(held[row, :length], fresh._beside[key][0, :length], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "gemma4_text", "deepseek_v3"])
@pytest.mark.parametrize("shared", [True, False])
def test_the_cache_is_that_of_the_committed_text(name: str, shared: bool) -> None:
    model = tiny(name)
    prompts = rows(4)
    texts = greedy(model, prompts)
    for count in (4, 1):
        made: list[Checking] = []

        def make(session: Session, made: list[Checking] = made) -> Checking:
            made.append(Checking(session, texts, NODES, shared=shared))
            return made[-1]

        found, stats, _ = decoded(Target.of(model), prompts[:count], make, NODES, NEW)
        assert found == texts[:count]
        assert stats.total.accepted
        assert made[0].checked >= 4


def test_grouped_attention_sees_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "_FROM_SLOTS", 1)
    monkeypatch.setattr(plain, "_FROM_CAPACITY", 1)
    model = build_model(layers=3, vocab_size=37)
    prompts = rows(6, 37)
    texts = greedy(model, prompts)
    target = Target.of(model)
    for count in (6, 1):
        for shared in (True, False):
            make = partial(KnowingTrees, texts=texts, nodes=NODES, shared=shared)
            found, stats, session = decoded(target, prompts[:count], make, NODES, NEW)
            assert session.layers is not None
            assert found == texts[:count]
            assert stats.total.accepted


def test_a_chain_as_a_tree_is_the_chain() -> None:
    """Statistics of a tree in which every node has one child are those of the drafts one after another."""
    model = build_model(layers=3, vocab_size=37)
    target = Target.of(model)
    prompts, sampler = rows(3, 37), Sampler(SamplingParams(), torch.device("cpu"))
    texts = greedy(model, prompts)

    class Chains(KnowingTrees):
        def _shape(self, limit: int) -> list[int]:
            return list(range(min(4, limit)))

    class Plainly(Chains):
        def propose(self, limit: int) -> Any:
            found = super().propose(limit)
            found.tree = None
            return found

    both = [
        decoded(target, prompts, partial(kind, texts=texts, nodes=4, shared=True), 4, NEW)
        for kind in (Chains, Plainly)
    ]
    assert both[0][0] == both[1][0] == texts
    first, second = both[0][1], both[1][1]
    for row, other in zip(first.rows, second.rows, strict=True):
        assert row.histogram == other.histogram
        assert row.per_position_drafted == other.per_position_drafted
        assert (row.drafted, row.accepted, row.rounds) == (other.drafted, other.accepted, other.rounds)
    assert decode(target, prompts, None, None, NEW, sampler, StopRule())[0] == texts


def test_a_tree_knows_depths_ancestors_and_its_beginning() -> None:
    tree = Tree([[0, 0, 1, 1, 3], [0, -1, 1, 3, 4]], torch.device("cpu"))
    assert tree.levels == [[0, 1, 1, 2, 2, 3], [0, 1, 0, 2, 3, 4]]
    assert tree.depth == 4
    assert tree.ancestry[0, 5].tolist() == [True, True, False, True, False, True]
    assert tree.ancestry[1, 2].tolist() == [False, False, True, False, False, False]
    cut = Tree([[0, 0, 1, 2, 2, 3]], torch.device("cpu"))
    assert cut.until(2).parent_lists == [[0, 0, 1, 2, 2]]
    assert cut.until(3) is cut
    with pytest.raises(ValueError, match="parents come before"):
        Tree([[1]], torch.device("cpu"))
    draft = TreeDraft(tree, torch.tensor([[True] * 5, [True, False, True, True, False]]))
    assert draft.parents() == [[0, 0, 1, 1, 3], [0, -1, 1, 3, -1]]
    assert draft.within(torch.tensor([1, 3])).parents() == [[0, 0, -1, -1, -1], [0, -1, 1, 3, -1]]


@pytest.mark.parametrize(("name", "why"), [("lfm2", "recurrence"), ("llama4_text", "scales queries")])
def test_models_that_verify_chains_only_are_refused_in_words(name: str, why: str) -> None:
    model = tiny(name)
    target = Target.of(model)
    problem = tree_problems(target, 8)[0]
    assert problem.key == "draft_params.tree"
    assert why in problem.rule
    assert tree_problems(target, 1) == tree_problems(target, "auto") == tree_problems(None, 8) == []
