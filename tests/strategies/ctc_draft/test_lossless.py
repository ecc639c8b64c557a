"""`ctc_draft:lossless` is plain greedy decoding, token for token, whatever the draft says."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ssd_infer.families.speech.result import Decoded, RowResult
from ssd_infer.strategies.ctc_draft.ctc import Draft
from ssd_infer.strategies.ctc_draft.ctc_params import parse
from ssd_infer.strategies.ctc_draft.decode import decode
from ssd_infer.strategies.ctc_draft.lossless import verify_exactly
from ssd_infer.strategies.ctc_draft.tails import CHUNK, Tail, realign
from tests.families.speech.support import damaged, encode, limits_of, plain, tiny_asr

VOCAB = 13
RAGGED = [61, 180, 40, 97, 120, 75, 33, 150]


@torch.inference_mode()
def verified(model: Any, encoded: Any, drafts: list[Draft], most: int | None = None, **given: Any) -> Decoded:
    out = Decoded([RowResult() for _ in drafts])
    params = parse("ctc_draft:lossless", given, VOCAB)
    verify_exactly(model.decoder, encoded, drafts, limits_of(encoded, most), params, out)
    return out


@pytest.mark.parametrize("form", ["cross_attention", "causal_lm"])
@pytest.mark.parametrize("resync", ["match", "shift", "none"])
@pytest.mark.parametrize("rounds", [1, 2, 9])
def test_any_draft_gives_the_plain_output(form: str, resync: str, rounds: int, tiny: dict[str, Any]) -> None:
    model = tiny[form]
    encoded = encode(model, RAGGED)
    want = plain(model, encoded)
    assert len(set(map(len, want))) > 3, "rows must end at different times"
    for seed in range(4):
        drafts = [damaged(row, 10 * seed + index, VOCAB) for index, row in enumerate(want)]
        out = verified(model, encoded, drafts, resync=resync, max_verify_rounds=rounds)
        assert [row.tokens for row in out.rows] == want
        assert {row.route for row in out.rows} <= {"verify", "fallback"}


@pytest.mark.parametrize("most", [1, 2, 5])
def test_the_limit_inside_an_accepted_block(most: int, tiny: dict[str, Any]) -> None:
    model = tiny["cross_attention"]
    encoded = encode(model, RAGGED)
    whole, want = plain(model, encoded), plain(model, encoded, most)
    assert want == [row[:most] for row in whole]
    drafts = [Draft(row, list(range(len(row))), 0.0) for row in whole]
    assert [row.tokens for row in verified(model, encoded, drafts, most).rows] == want


def test_an_end_inside_the_draft(tiny: dict[str, Any]) -> None:
    model = tiny["cross_attention"]
    encoded = encode(model, RAGGED)
    want = plain(model, encoded)
    eos = model.config.eos_token_id
    for extra in ([eos, 5, 6], [5, 6, 7], [eos]):
        drafts = [Draft(row + extra, [], 0.0) for row in want]
        out = verified(model, encoded, drafts)
        assert [row.tokens for row in out.rows] == want
        ended = [
            row for row, limit in zip(out.rows, limits_of(encoded), strict=True) if len(row.tokens) < limit
        ]
        assert ended
        assert all(row.route == "verify" and row.stats.rounds == 1 for row in ended)


def test_a_right_draft_takes_one_pass(tiny: dict[str, Any]) -> None:
    model = tiny["cross_attention"]
    encoded = encode(model, RAGGED)
    want = plain(model, encoded)
    out = verified(model, encoded, [Draft(row, [], 0.0) for row in want])
    assert out.work.forwards == 1
    assert sum(row.stats.accepted for row in out.rows) == sum(map(len, want))
    assert all(row.stats.alpha == 1.0 for row in out.rows if row.tokens)


@pytest.mark.parametrize("seed", range(3))
def test_the_models_own_drafts_alone_and_together(seed: int) -> None:
    model = tiny_asr(seed, VOCAB, eos=1.0)
    encoded = encode(model, RAGGED, seed)
    params = parse("ctc_draft:lossless", {}, VOCAB)
    together = [row.tokens for row in decode(model, encoded, "ctc_draft:lossless", params).rows]
    assert together == plain(model, encoded)
    for index in range(len(RAGGED)):
        alone = encoded.select([index])
        assert decode(model, alone, "ctc_draft:lossless", params).rows[0].tokens == together[index]
        assert plain(model, alone) == [together[index]]


@pytest.mark.parametrize(
    ("tail", "chosen", "rest"),
    [([4, 5, 6], 5, [6]), ([4, 5, 6], 9, [5, 6]), ([4], 9, []), ([], 9, []), ([4, 5], 5, [])],
)
def test_realignment(tail: list[int], chosen: int, rest: list[int]) -> None:
    assert realign(tail, chosen) == rest


def moved(rest: list[int], *chosen: int) -> Tail:
    """Return what is left of a draft whose rest was rejected, after the decoder chose these tokens alone."""
    tail, params = Tail(rest, rest), parse("ctc_draft:lossless", {}, VOCAB)
    for token in chosen:
        tail.move(0, token, params)
    return tail


@pytest.mark.parametrize(
    ("rest", "chosen", "ready", "trusted"),
    [
        ([4, 5, 6, 7], [3], [5, 6, 7], False),
        ([4, 5, 6, 7], [5], [6, 7], False),
        ([4, 5, 6, 7], [4], [5, 6, 7], True),
        ([4, 5, 6, 7, 8, 9], [5, 6], [7, 8, 9], True),
        ([4, 5, 6, 7, 8, 9], [3, 4], [5, 6, 7, 8, 9], False),
        ([4, 5, 6, 7, 8, 9], [3, 4, 5], [6, 7, 8, 9], True),
        ([], [1, 2, 3], [], False),
    ],
)
def test_where_the_decoder_stands_in_a_rejected_draft(
    rest: list[int], chosen: list[int], ready: list[int], trusted: bool
) -> None:
    tail = moved(rest, *chosen)
    assert (tail.ready, tail.trusted) == (ready, trusted)
    assert tail.rounds == (chosen[0] not in rest[:1])


def test_a_guess_goes_along_and_fills_the_width_of_a_batch() -> None:
    tail = moved([4, 5, 6, 7, 8], 3)
    assert (tail.piece, tail.offer(0), tail.offer(3)) == (0, [5, 6], [5, 6, 7])
    tail.move(1, 6, parse("ctc_draft:lossless", {}, VOCAB))
    assert (tail.trusted, tail.offer(0)) == (True, [7, 8]), "the guess and what follows it were right"
    long = Tail(list(range(50)), list(range(50)))
    assert (long.piece, long.offer(30)) == (CHUNK, list(range(CHUNK)))
    long.move(CHUNK, CHUNK, parse("ctc_draft:lossless", {}, VOCAB))
    assert (long.trusted, long.rounds, long.ready) == (True, 0, list(range(CHUNK + 1, 50)))


def test_rejoining_saves_passes(tiny: dict[str, Any]) -> None:
    """One token too few in the middle of a long draft: the rest is verified, not decoded."""
    model = tiny["cross_attention"]
    encoded = encode(model, [150])
    want = plain(model, encoded)[0]
    for place in range(2, len(want) - 6):
        out = verified(model, encoded, [Draft(want[:place] + want[place + 1 :], [], 0.0)])
        assert out.rows[0].tokens == want
        assert out.work.forwards <= 8 < len(want)


def test_a_wrong_verifier_is_noticed(tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Accepting one token too many must change the output, or the tests above could not fail."""
    from ssd_infer.strategies.ctc_draft import lossless

    model = tiny["cross_attention"]
    encoded = encode(model, RAGGED)
    want = plain(model, encoded)
    drafts = [damaged(row, index, VOCAB) for index, row in enumerate(want)]
    honest = lossless._common
    monkeypatch.setattr(lossless, "_common", lambda a, b: min(honest(a, b) + 1, len(a), len(b) - 1))
    assert [row.tokens for row in verified(model, encoded, drafts).rows] != want


def test_training_mode_is_refused() -> None:
    model = tiny_asr()
    encoded = encode(model, [60])
    model.train()
    with pytest.raises(RuntimeError, match=r"model\.eval\(\)"):
        decode(model, encoded, "ctc_draft:lossless")


@pytest.fixture(scope="module")
def tiny() -> dict[str, Any]:
    language_model = {
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "initializer_range": 0.5,
    }
    return {
        "cross_attention": tiny_asr(0, VOCAB, eos=1.0),
        "causal_lm": tiny_asr(4, VOCAB, decoder_type="causal_lm", language_model=language_model),
    }
