"""Rules of generation hold at every position: greedy with any draft is what transformers' generate makes of them."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest
import torch
from transformers.generation import logits_process as processors

import ssd_infer
from tests.conftest import build_model
from tests.offload.support import build_moe

NEW, VOCAB = 20, 29
DRAFTS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "none": (None, {}),
    "ngram": ("ngram", {"gamma": 5}),
    "ngram, tree": ("ngram", {"gamma": 5, "tree": 9}),
    "early_exit": ("early_exit", {"exit_layer": 3, "gamma": 5}),
    "early_exit, tree": ("early_exit", {"exit_layer": 3, "gamma": 3, "tree": 7}),
    "early_exit, sure tree": ("early_exit", {"exit_layer": 3, "gamma": 3, "tree": 7, "confidence": 0.3}),
    "early_exit+ngram, tree": ("early_exit+ngram", {"exit_layer": 3, "gamma": 3, "tree": 9, "trust": 0}),
    "early_exit, sure": ("early_exit", {"exit_layer": 2, "gamma": 4, "confidence": 0.3}),
    "early_exit+ngram": ("early_exit+ngram", {"exit_layer": 3, "gamma": 4, "trust": 0}),
    "early_exit+ngram, trusting": ("early_exit+ngram", {"exit_layer": 3, "gamma": 4, "trust": 1}),
    "early_exit+del": ("early_exit+del", {"gamma": 5, "guard": 0.0}),
    "early_exit+del, one exit": ("early_exit+del", {"gamma": 1, "exits": [1], "guard": 0.0}),
    "skip_set": (
        "skip_set",
        {"skip_attention": [3], "skip_mlp": [2], "gamma": 5, "confidence": 0.0, "guard": 0.0},
    ),
    "skip_set, tree": (
        "skip_set",
        {"skip_attention": [3], "skip_mlp": [2], "gamma": 4, "confidence": 0.2, "guard": 0.0, "tree": 9},
    ),
    "swift": ("swift", {"share": 1.0, "fruitless": 1.0, "worth": 1.0, "window": 8, "max_trials": 4}),
    "sparse_attention": (
        "sparse_attention",
        {"selector": "pillar", "ratio": 0.3, "min_budget": 4, "gamma": 4},
    ),
    "sparse_attention, balanced": (
        "sparse_attention",
        {"selector": "pillar", "ratio": 0.3, "min_budget": 4, "gamma": 3, "phases": "balanced"},
    ),
    "reduced_experts": (
        "reduced_experts",
        {"k_draft": 2, "gamma": 4, "confidence": 0.0, "at_hand": False, "follow": False, "prefetch": False},
    ),
}
CHOOSING = [name for name, (draft, _) in DRAFTS.items() if draft not in (None, "ngram")]
"""Drafts that choose by scores of their own."""


def rows() -> list[list[int]]:
    """Return four ragged prompts."""
    draw = torch.Generator().manual_seed(4)
    return [torch.randint(2, VOCAB, (size,), generator=draw).tolist() for size in (13, 8, 19, 10)]


@cache
def model_of(draft: str) -> Any:
    """A model the draft applies to, over a vocabulary so small that n-grams match."""
    if draft == "reduced_experts":
        return build_moe(vocab_size=VOCAB, dtype=torch.float32)
    return build_model(vocab_size=VOCAB, seed=3)


@cache
def free(draft: str) -> list[list[int]]:
    """Return the greedy texts without any rule."""
    return [reference(model_of(draft), row) for row in rows()]


def reference(model: Any, row: list[int], eos: list[int] | None = None, **rules: Any) -> list[int]:
    """Return what transformers' generate makes of a row alone."""
    ids = torch.tensor([row])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=NEW,
        eos_token_id=eos,
        pad_token_id=0,
        **rules,
    )
    return out[0, len(row) :].tolist()  # type: ignore[no-any-return]


def common(draft: str, count: int) -> list[int]:
    """Return the tokens that occur most often without a rule."""
    tally = Counter(token for text in free(draft) for token in text)
    return [token for token, _ in tally.most_common(count)]


def rules_for(draft: str) -> dict[str, dict[str, Any]]:
    """Return rules that bite on this model's texts, by name."""
    texts, often = free(draft), common(draft, 4)
    pairs = [text[at : at + 2] for text in texts for at in (2, 7)]
    eos = {"eos": [often[0], often[1]]}
    return {
        "repetition_penalty": {"repetition_penalty": 1.5},
        "a reward": {"repetition_penalty": 0.7},
        "encoder_repetition_penalty": {"encoder_repetition_penalty": 1.6},
        "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
        "no_repeat_ngram_size 1": {"no_repeat_ngram_size": 3, "repetition_penalty": 1.1},
        "encoder_no_repeat_ngram_size": {"encoder_no_repeat_ngram_size": 1},
        "bad_words_ids": {"bad_words_ids": [[often[0]], *pairs]},
        "sequence_bias": {"sequence_bias": [[[often[1]], -3.0], *[[pair, 4.0] for pair in pairs]]},
        "suppress_tokens": {"suppress_tokens": often},
        "begin_suppress_tokens": {"begin_suppress_tokens": [text[0] for text in texts]},
        "min_length": {"min_length": 22, **eos},
        "min_new_tokens": {"min_new_tokens": 12, **eos},
        "forced_eos_token_id": {"forced_eos_token_id": [often[2]], "eos": [often[2]]},
        "exponential_decay_length_penalty": {"exponential_decay_length_penalty": (3, 1.3), **eos},
        "remove_invalid_values": {
            "remove_invalid_values": True,
            "bad_words_ids": [[token] for token in often],
        },
        "several": {
            "repetition_penalty": 1.2,
            "no_repeat_ngram_size": 3,
            "suppress_tokens": often[:1],
            "min_new_tokens": 6,
            "eos": [often[1], often[2]],
        },
    }


@cache
def expected(draft: str, name: str) -> list[list[int]]:
    """Return transformers' texts under a rule."""
    rules = dict(rules_for(draft)[name])
    eos = rules.pop("eos", None)
    return [reference(model_of(draft), row, eos, **rules) for row in rows()]


RULES = tuple(rules_for("none"))


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("case", DRAFTS)
def test_greedy_is_that_of_generate(case: str, name: str) -> None:
    draft, params = DRAFTS[case]
    kind = draft if draft == "reduced_experts" else "none"
    model, rules = model_of(kind), dict(rules_for(kind)[name])
    eos = rules.pop("eos", [])
    given: dict[str, Any] = {"draft": draft, "draft_params": params or None, "eos_token_id": eos}
    batch = ssd_infer.generate(model, rows(), max_new_tokens=NEW, **given, **rules)
    assert batch.sequences == expected(kind, name)
    for row, text in list(zip(rows(), expected(kind, name), strict=True))[::2]:
        alone = ssd_infer.generate(model, [row], max_new_tokens=NEW, **given, **rules)
        assert alone.sequences == [text]
    if case in CHOOSING and draft != "swift":
        assert batch.stats.total.drafted > 0


@pytest.mark.parametrize("kind", ["none", "reduced_experts"])
@pytest.mark.parametrize("name", RULES)
def test_the_rule_bites(kind: str, name: str) -> None:
    """Otherwise the cases above would not tell a rule that holds from one that is passed over."""
    rules = dict(rules_for(kind)[name])
    without = [reference(model_of(kind), row, rules.get("eos")) for row in rows()]
    assert expected(kind, name) != without


@pytest.mark.parametrize("case", [name for name in CHOOSING if name != "swift"])
def test_a_draft_that_follows_the_rules_is_right_more_often(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft that chose by its bare scores would propose what verification must refuse."""
    from ssd_infer.engine.rules import Rules

    draft, params = DRAFTS[case]
    kind = draft if draft == "reduced_experts" else "none"
    rules = {"repetition_penalty": 1.5, "suppress_tokens": common(kind, 4)}

    def accepted() -> tuple[int, list[list[int]]]:
        out = ssd_infer.generate(
            model_of(kind), rows(), draft=draft, draft_params=params, max_new_tokens=NEW, **rules
        )
        return out.stats.total.accepted, out.sequences

    following, text = accepted()
    monkeypatch.setattr(Rules, "step", lambda self, rows, logits, drafts: logits)
    monkeypatch.setattr(Rules, "draft", lambda self, rows, logits, drafts: logits)
    bare, same = accepted()
    assert text == same
    assert following > bare


def test_a_single_token_may_be_told_what_begins() -> None:
    """`forced_bos_token_id` speaks of the token after a prompt of one, and moves where tokens are suppressed."""
    model = model_of("none")
    for rules in (
        {"forced_bos_token_id": 7},
        {
            "forced_bos_token_id": 7,
            "begin_suppress_tokens": [reference(model, [5], forced_bos_token_id=7)[1]],
        },
    ):
        want = reference(model, [5], **rules)
        assert want[0] == 7
        for draft, params in (DRAFTS["none"], DRAFTS["early_exit"]):
            found = ssd_infer.generate(
                model, [[5]], draft=draft, draft_params=params or None, max_new_tokens=NEW, **rules
            )
            assert found.sequences == [want]


@pytest.mark.parametrize("case", ["none", "early_exit", "early_exit+ngram", "ngram"])
@pytest.mark.parametrize("name", RULES)
def test_hf_generate_of_a_padded_batch_is_that_of_generate(case: str, name: str) -> None:
    """There a row is processed with its padding, as `generate`'s own loop does."""
    draft, params = DRAFTS[case]
    model, rules = model_of("none"), dict(rules_for("none")[name])
    width = max(map(len, rows()))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows()])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows()])
    options = {
        "attention_mask": mask,
        "do_sample": False,
        "max_new_tokens": NEW,
        "eos_token_id": rules.pop("eos", None),
        "pad_token_id": 0,
        **rules,
    }
    found = model.generate(
        ids, custom_generate=ssd_infer.hf_generate, draft=draft, draft_params=params or None, **options
    )
    assert torch.equal(found, model.generate(ids, **options))


class Alternating(processors.LogitsProcessor):
    """A processor of a caller's own that hangs on the text alone: odd and even tokens take turns."""

    stateless = True

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Rule out the half that the last token is of."""
        half = torch.arange(scores.shape[-1]) % 2
        return scores.masked_fill(half[None] == input_ids[:, -1:] % 2, -torch.inf)


def _own(name: str) -> dict[str, Any]:
    often = common("none", 3)
    table: dict[str, dict[str, Any]] = {
        "stateless": {"logits_processor": [Alternating()]},
        "theirs": {"logits_processor": [processors.RepetitionPenaltyLogitsProcessor(1.5, 3)]},
        "before": {"logits_processor": [Alternating(), processors.SuppressTokensLogitsProcessor(often)]},
        "beside rules": {"logits_processor": [Alternating()], "no_repeat_ngram_size": 2},
        "in place of a rule": {
            "logits_processor": [processors.SuppressTokensLogitsProcessor(often)],
            "suppress_tokens": [2],
        },
        "normalised before": {
            "logits_processor": [
                processors.LogitNormalization(),
                processors.RepetitionPenaltyLogitsProcessor(2.0),
            ]
        },
        "allowed tokens": {
            "prefix_allowed_tokens_fn": lambda row, ids: range((int(ids[-1]) + row) % 2, VOCAB, 2)
        },
        "a trie": {"prefix_allowed_tokens_fn": _trie, "eos_token_id": 28},
    }
    return {
        name: processors.LogitsProcessorList(value) if name == "logits_processor" else value
        for name, value in table[name].items()
    }


def _trie(row: int, ids: torch.Tensor) -> list[int]:
    """Allow what a trie has: five tokens up or down, then the end; it has no answer off its branches."""
    at = len(ids) - 19
    assert at <= 5, "asked about a text that decoding cannot reach"
    return [28] if at == 5 else [2 + at, 20 - at]


@pytest.mark.parametrize("case", ["none", "early_exit", "early_exit+ngram", "ngram", "early_exit+del"])
@pytest.mark.parametrize(
    "name",
    [
        *("stateless", "theirs", "before", "beside rules", "in place of a rule"),
        *("normalised before", "allowed tokens", "a trie"),
    ],
)
def test_processors_of_the_caller_hold(case: str, name: str) -> None:
    draft, params = DRAFTS[case]
    model = model_of("none")
    width = max(map(len, rows()))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows()])
    mask = (torch.arange(width) >= torch.tensor([width - len(row) for row in rows()])[:, None]).long()
    options = {"attention_mask": mask, "do_sample": False, "max_new_tokens": NEW, "pad_token_id": 0}
    options |= {"eos_token_id": None} | _own(name)
    want = model.generate(ids, **options | _own(name))
    assert not torch.equal(
        want, model.generate(ids, **options | {"logits_processor": None, "prefix_allowed_tokens_fn": None})
    )
    found = model.generate(
        ids,
        custom_generate=ssd_infer.hf_generate,
        draft=draft,
        draft_params=params or None,
        **options | _own(name),
    )
    assert torch.equal(found, want)
