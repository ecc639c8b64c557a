"""Greedy decoding with any draft is token-identical to transformers' generate."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ssd_infer
from tests.conftest import FAMILIES, ModelFactory, build_model

NEW = 24
DRAFTS: dict[str, list[dict[str, Any]]] = {
    "early_exit": [{"exit_layer": e, "gamma": g} for e in (1, 2, 3) for g in (1, 4, 8)]
    + [{"exit_layer": 3, "gamma": 8, "confidence": 0.4}]
    + [{"exit_layer": e, "gamma": 4, "tree": t} for e, t in ((1, 8), (3, 4), (3, 32))]
    + [{"exit_layer": 3, "gamma": 4, "tree": 9, "confidence": 0.4, "shares": [0.4, 0.3, 0.2]}],
    "ngram": [{"gamma": 6}, {"gamma": 6, "tree": 3}, {"gamma": 3, "tree": 12}, {"tree": "auto"}],
    "early_exit+ngram": [
        {"exit_layer": e, "gamma": g, "trust": t} for e, g, t in ((1, 4, 0), (3, 1, 0), (3, 8, 1))
    ]
    + [{"exit_layer": 3, "gamma": 4, "trust": t, "tree": n} for t, n in ((0, 8), (1, 3), (2, 16))],
}
CASES = [(name, params) for name, options in DRAFTS.items() for params in options]


def prompts(count: int, vocab: int, seed: int = 1) -> list[torch.Tensor]:
    """Return `count` ragged prompts of 2 to 19 tokens."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(2, 20, (count,), generator=generator)
    return [torch.randint(2, vocab, (int(size),), generator=generator) for size in sizes]


def reference(
    model: Any, rows: list[torch.Tensor], new: int = NEW, eos: int | None = None
) -> list[list[int]]:
    """Return transformers' greedy continuation of each row, cut after EOS."""
    out = []
    for row in rows:
        ids = model.generate(row[None], do_sample=False, max_new_tokens=new, eos_token_id=eos, pad_token_id=0)
        out.append(ids[0, len(row) :].tolist())
    return out


@pytest.fixture(scope="module", params=FAMILIES)
def case(request: pytest.FixtureRequest) -> tuple[Any, list[torch.Tensor], list[list[int]]]:
    """A model of each family with a small vocabulary, so that n-grams match, prompts and their greedy text."""
    changes = {"sliding_window": 16} if request.param == "mistral" else {}
    model = build_model(request.param, vocab_size=29, **changes)
    rows = prompts(8, 29)
    return model, rows, reference(model, rows)


@pytest.mark.parametrize(("name", "params"), CASES)
def test_greedy_is_identical(
    case: tuple[Any, list[torch.Tensor], list[list[int]]], name: str, params: dict[str, Any]
) -> None:
    model, rows, expected = case
    one_by_one = [
        ssd_infer.generate(model, [row], draft=name, draft_params=params, max_new_tokens=NEW) for row in rows
    ]
    assert [out.sequences[0] for out in one_by_one] == expected
    batch = ssd_infer.generate(model, rows, draft=name, draft_params=params, max_new_tokens=NEW)
    assert batch.sequences == expected
    assert batch.stats.total.emitted == sum(map(len, expected))


def test_plain_is_identical_and_drafts_nothing(case: tuple[Any, list[torch.Tensor], list[list[int]]]) -> None:
    model, rows, expected = case
    out = ssd_infer.generate(model, rows, max_new_tokens=NEW)
    assert out.sequences == expected
    assert out.stats.total.drafted == 0
    assert out.draft is None


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("gamma", [1, 4, 8])
def test_sixty_four_ragged_prompts_at_every_exit(batch: int, gamma: int) -> None:
    model = build_model(layers=4, vocab_size=61)
    rows = prompts(64, 61, seed=2)
    expected = reference(model, rows, 12)
    for exit_layer in (1, 2, 3):
        params = {"exit_layer": exit_layer, "gamma": gamma}
        found: list[list[int]] = []
        for start in range(0, 64, batch):
            part = rows[start : start + batch]
            found += ssd_infer.generate(
                model, part, draft="early_exit", draft_params=params, max_new_tokens=12
            ).sequences
        assert found == expected


@pytest.mark.parametrize(("name", "params"), [CASES[5], CASES[8], CASES[10], CASES[12]])
def test_eos_inside_a_draft_ends_the_row(tiny_model: ModelFactory, name: str, params: dict[str, Any]) -> None:
    model = tiny_model(vocab_size=13)
    rows = prompts(24, 13, seed=3)
    free = reference(model, rows)
    eos = max(range(2, 13), key=lambda token: sum(token in text[2:-2] for text in free))
    expected = reference(model, rows, eos=eos)
    assert any(len(text) < NEW for text in expected)
    for part in (rows, *[[row] for row in rows]):
        out = ssd_infer.generate(
            model, part, draft=name, draft_params=params, max_new_tokens=NEW, eos_token_id=eos
        )
        offset = 0 if len(part) > 1 else next(i for i, row in enumerate(rows) if row is part[0])
        assert out.sequences == expected[offset : offset + len(part)]
        assert out.stats.total.emitted == sum(map(len, out.sequences))
        for row, text in zip(out.stats.rows, out.sequences, strict=True):
            assert row.accepted + row.rounds + 1 in (len(text), len(text) + 1)


@pytest.mark.parametrize("new", [1, 2, 3, 5])
def test_max_length_cuts_a_draft(tiny_model: ModelFactory, new: int) -> None:
    model = tiny_model()
    rows = prompts(6, 97)
    out = ssd_infer.generate(
        model, rows, draft="early_exit", draft_params={"exit_layer": 3, "gamma": 8}, max_new_tokens=new
    )
    assert out.sequences == reference(model, rows, new)
    assert all(row.drafted <= row.rounds * (new - 1) for row in out.stats.rows)
    assert (out.stats.total.drafted == 0) == (new <= 2)


@pytest.mark.parametrize(("gamma", "copy"), [(3, 10), (2, 2)])
def test_a_copy_that_outgrows_the_budget_keeps_its_neighbours_states(gamma: int, copy: int) -> None:
    """Rows that keep different shares of a copy draft on together: the longest passes the limit, and is cut there."""
    model = build_model(layers=6, vocab_size=29)
    rows = prompts(12, 29)
    params = {"exit_layer": 5, "gamma": gamma, "copy": copy, "trust": 0}
    for new in range(2, 2 * gamma + 4):
        expected = reference(model, rows, new)
        for at in range(0, 12, 2):
            out = ssd_infer.generate(
                model, rows[at : at + 2], draft="early_exit+ngram", draft_params=params, max_new_tokens=new
            )
            assert out.sequences == expected[at : at + 2]


def test_stop_sequence_inside_a_block(tiny_model: ModelFactory) -> None:
    model = tiny_model(vocab_size=13)
    row = prompts(1, 13)[0]
    free = reference(model, [row])[0]
    stop = free[5:7]
    first = next(i for i in range(len(free)) if free[i : i + 2] == stop)
    params = {"exit_layer": 3, "gamma": 8}
    out = ssd_infer.generate(
        model, [row], draft="early_exit", draft_params=params, max_new_tokens=NEW, stop_sequences=[stop]
    )
    assert out.sequences == [free[: first + 2]]


def test_left_padded_tensor_equals_list(tiny_model: ModelFactory) -> None:
    model = tiny_model()
    rows = prompts(4, 97)
    width = max(map(len, rows))
    ids = torch.stack([torch.cat([torch.zeros(width - len(row), dtype=torch.long), row]) for row in rows])
    mask = torch.stack(
        [torch.cat([torch.zeros(width - len(row)), torch.ones(len(row))]) for row in rows]
    ).long()
    params = {"exit_layer": 2, "gamma": 3}
    out = ssd_infer.generate(model, ids, mask, draft="early_exit", draft_params=params, max_new_tokens=NEW)
    assert out.sequences == reference(model, rows)


def test_eager_attention_and_float64(tiny_model: ModelFactory) -> None:
    model = tiny_model(attn_implementation="eager").double()
    rows = prompts(6, 97)
    params = {"exit_layer": 2, "gamma": 4}
    out = ssd_infer.generate(model, rows, draft="early_exit", draft_params=params, max_new_tokens=NEW)
    assert out.sequences == reference(model, rows)


def test_a_perfect_draft_is_always_accepted(tiny_model: ModelFactory) -> None:
    model = tiny_model(layers=3)
    with torch.no_grad():  # a last layer that adds nothing makes exit L-1 the full model
        model.model.layers[-1].self_attn.o_proj.weight.zero_()
        model.model.layers[-1].mlp.down_proj.weight.zero_()
    params = {"exit_layer": 2, "gamma": 4}
    for sampled in (False, True):
        out = ssd_infer.generate(
            model,
            prompts(4, 97),
            draft="early_exit",
            draft_params=params,
            max_new_tokens=NEW,
            do_sample=sampled,
            seed=0,
        )
        assert out.stats.total.alpha == 1.0
