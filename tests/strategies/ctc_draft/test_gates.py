"""The two gates: what passes, what is kept of what does not, and that nothing depends on batch mates."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from ssd_infer.errors import ConfigError
from ssd_infer.families.speech.greedy import Row, Work, finish, step
from ssd_infer.families.speech.result import Decoded, RowResult
from ssd_infer.strategies.ctc_draft.ctc import Draft
from ssd_infer.strategies.ctc_draft.ctc_params import CTCDraftParams, canonical, parse
from ssd_infer.strategies.ctc_draft.decode import decode
from ssd_infer.strategies.ctc_draft.gates import likelihoods, two_gates
from tests.families.speech.support import damaged, encode, limits_of, plain, tiny_asr

VOCAB = 13
RAGGED = [61, 180, 40, 97, 120, 75, 33, 150]
OFF = 2.0


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_asr(0, VOCAB, eos=1.0)


@pytest.fixture(scope="module")
def encoded(model: Any) -> Any:
    return encode(model, RAGGED)


@torch.inference_mode()
def gated(model: Any, encoded: Any, drafts: list[Draft], most: int | None = None, **given: Any) -> Decoded:
    out = Decoded([RowResult() for _ in drafts])
    params = parse("ctc_draft", {"theta_ctc": None} | given, VOCAB)
    two_gates(model.decoder, encoded, drafts, limits_of(encoded, most), params, out)
    return out


def tokens(out: Decoded) -> list[list[int]]:
    return [row.tokens for row in out.rows]


def exact(model: Any, encoded: Any) -> list[Draft]:
    return [Draft(row, list(range(len(row))), 0.5) for row in plain(model, encoded)]


def test_both_gates_off_is_plain_decoding(model: Any, encoded: Any) -> None:
    drafts = [damaged(row, index, VOCAB) for index, row in enumerate(plain(model, encoded))]
    out = gated(model, encoded, drafts, theta_ctc=None, theta_lm=OFF)
    assert tokens(out) == plain(model, encoded)
    assert {row.route for row in out.rows} == {"fallback"}


def test_a_large_entropy_threshold_is_ctc_only(model: Any, encoded: Any) -> None:
    limit = math.log(VOCAB)
    gates = decode(
        model,
        encoded,
        "ctc_draft",
        parse("ctc_draft", {"theta_ctc": limit, "theta_lm": OFF, "entropy_agg": "max"}, VOCAB),
    )
    only = decode(model, encoded, "ctc_draft:ctc_only")
    passed = [row for row in gates.rows if row.route == "gate"]
    assert len(passed) > 4
    for gate, ctc in zip(gates.rows, only.rows, strict=True):
        assert (gate.route == "gate") == bool(ctc.tokens)
        assert gate.tokens == ctc.tokens or not ctc.tokens


def test_gate_one_compares_entropy_and_never_passes_an_empty_draft(model: Any, encoded: Any) -> None:
    drafts = [Draft([5], [0], 0.25 * index) for index in range(len(RAGGED) - 1)] + [Draft([], [], 0.0)]
    out = gated(model, encoded, drafts, theta_ctc=0.75, theta_lm=0.0)
    assert [row.route == "gate" for row in out.rows] == [True] * 4 + [False] * 4
    assert all(row.stats.rounds == 0 for row in out.rows[:4]), "no verify pass was made"
    assert gated(model, encoded, drafts, theta_ctc=-1.0, theta_lm=0.0).rows[0].route == "verify"


@torch.inference_mode()
def test_probabilities_are_those_of_one_step_at_a_time(model: Any, encoded: Any) -> None:
    drafts = [[5, 7, 9], [], [4], [6, 6]]
    part, eos = encoded.select([0, 1, 2, 3]), model.decoder.eos
    logits = step(
        model.decoder, model.decoder.start(part), [[model.decoder.bos, *row] for row in drafts], Work()
    )
    q = likelihoods(logits, drafts, 0, eos)
    for index, row in enumerate(drafts):
        state = model.decoder.start(encoded.select([index]))
        for place, (fed, wanted) in enumerate(zip([model.decoder.bos, *row], [*row, eos], strict=True)):
            alone = torch.softmax(model.decoder.step(state, torch.tensor([[fed]]))[0, 0], dim=-1)[wanted]
            assert abs(float(alone) - float(q[index, place])) < 1e-12
        assert (q[index, len(row) + 1 :] == 1).all()


def test_gate_two_finds_the_first_doubtful_token_and_the_end(model: Any, encoded: Any) -> None:
    drafts = exact(model, encoded)
    assert {row.route for row in gated(model, encoded, drafts, theta_lm=0.0).rows} == {"verify"}
    shortened = [Draft(row.tokens[:-1], row.frames[:-1], 0.5) for row in drafts]
    ended = [index for index, row in enumerate(drafts) if len(row.tokens) < limits_of(encoded)[index]]
    kept = gated(model, encoded, shortened, theta_lm=0.0, eos_check=False)
    assert [kept.rows[i].tokens for i in ended] == [shortened[i].tokens for i in ended], "notebook-compatible"
    checked = gated(model, encoded, shortened, theta_lm=0.5)
    assert all(checked.rows[i].route == "fallback" for i in ended), "a truncated draft fails at EOS"


@torch.inference_mode()
def test_fallback_is_greedy_decoding_forced_to_the_prefix(model: Any, encoded: Any) -> None:
    drafts = [damaged(row, 40 + index, VOCAB) for index, row in enumerate(plain(model, encoded))]
    out = gated(model, encoded, drafts, theta_lm=0.3)
    fallen = [index for index, row in enumerate(out.rows) if row.route == "fallback"]
    assert len({out.rows[index].kept for index in fallen}) > 2, "prefixes must be ragged"
    for index in fallen:
        prefix, limit = drafts[index].tokens[: out.rows[index].kept], limits_of(encoded)[index]
        row = Row(0, limit, list(prefix), [model.decoder.bos, *prefix])
        finish(model.decoder, model.decoder.start(encoded.select([index])), [row], Work())
        assert out.rows[index].tokens == row.tokens


@pytest.mark.parametrize("theta", [0.05, 0.3, 0.6, 1.0])
def test_reusing_the_cache_changes_nothing(theta: float, model: Any, encoded: Any) -> None:
    drafts = [damaged(row, 80 + index, VOCAB) for index, row in enumerate(plain(model, encoded))]
    reused = gated(model, encoded, drafts, theta_lm=theta)
    again = gated(model, encoded, drafts, theta_lm=theta, reuse_kv=False)
    assert tokens(reused) == tokens(again)
    assert reused.work.positions < again.work.positions


@pytest.mark.parametrize("resync", ["match", "shift"])
@pytest.mark.parametrize("reuse", [True, False])
def test_taking_the_draft_up_again_saves_passes_and_changes_nothing(
    resync: str, reuse: bool, model: Any, encoded: Any
) -> None:
    drafts = [damaged(row, 240 + index, VOCAB) for index, row in enumerate(plain(model, encoded))]
    dropped = gated(model, encoded, drafts, theta_lm=0.3, resync="none", reuse_kv=reuse)
    taken = gated(model, encoded, drafts, theta_lm=0.3, resync=resync, reuse_kv=reuse)
    assert [(row.tokens, row.route, row.kept) for row in taken.rows] == [
        (row.tokens, row.route, row.kept) for row in dropped.rows
    ]
    assert {row.route for row in taken.rows} == {"verify", "fallback"}
    assert taken.work.verifies > dropped.work.verifies == 1
    assert taken.work.forwards < dropped.work.forwards


def test_restarting_forgets_the_prefix(model: Any, encoded: Any) -> None:
    want = plain(model, encoded)
    drafts = [damaged(row, 120 + index, VOCAB) for index, row in enumerate(want)]
    out = gated(model, encoded, drafts, theta_lm=1.0, fallback="restart")
    assert [row.tokens for row in out.rows if row.route == "fallback"] == [
        row for row, result in zip(want, out.rows, strict=True) if result.route == "fallback"
    ]


def test_a_row_alone_and_in_a_batch(model: Any, encoded: Any) -> None:
    drafts = [damaged(row, 160 + index, VOCAB) for index, row in enumerate(plain(model, encoded))]
    together = gated(model, encoded, drafts, theta_ctc=0.7, theta_lm=0.3)
    assert len({row.route for row in together.rows}) == 3
    for index in range(len(RAGGED)):
        alone = gated(model, encoded.select([index]), [drafts[index]], theta_ctc=0.7, theta_lm=0.3).rows[0]
        both = together.rows[index]
        assert (alone.tokens, alone.route, alone.kept) == (both.tokens, both.route, both.kept)


@pytest.mark.parametrize("most", [1, 3])
def test_the_limit_holds_on_every_route(most: int, model: Any, encoded: Any) -> None:
    drafts = [damaged(row, 200 + index, VOCAB) for index, row in enumerate(plain(model, encoded))]
    out = gated(model, encoded, drafts, most, theta_ctc=0.4, theta_lm=0.3)
    assert max(map(len, tokens(out))) == most


def test_an_empty_draft_needs_the_decoders_word_for_silence(model: Any, encoded: Any) -> None:
    drafts = [Draft([], [], math.inf) for _ in RAGGED]
    assert {row.route for row in gated(model, encoded, drafts, theta_lm=0.0).rows} == {"verify"}
    out = gated(model, encoded, drafts, theta_lm=0.0, eos_check=False)
    assert tokens(out) == plain(model, encoded)


@pytest.mark.parametrize(
    "method", ["sasd", "rescoring", "ctc_draft:ctc_only", "ctc_draft:lossless", "ctc_draft", None]
)
def test_every_method_is_batch_invariant(method: str | None, model: Any, encoded: Any) -> None:
    params = parse(method or "ctc_draft", {"theta_lm": 0.2}, VOCAB)
    together = decode(model, encoded, method, params).rows
    for index in range(len(RAGGED)):
        assert decode(model, encoded.select([index]), method, params).rows[0].tokens == together[index].tokens


def test_ctc_only_runs_no_decoder_code(model: Any, encoded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("start", "step"):
        monkeypatch.setattr(model.decoder, name, lambda *_: pytest.fail("the decoder ran"), raising=True)
    out = decode(model, encoded, "ctc_draft:ctc_only")
    assert out.work.forwards == 0
    assert any(row.tokens for row in out.rows)


def test_parameters_are_checked_all_at_once() -> None:
    wrong = {"theta_ctc": "x", "theta_lm": -1, "accept": "greedi", "max_verify_rounds": 0, "thetas": 1}
    with pytest.raises(ConfigError) as caught:
        parse("ctc_draft", wrong, VOCAB)
    keys = {problem.key for problem in caught.value.problems}
    assert keys == {f"draft_params.{key}" for key in wrong}


def test_thresholds_come_from_the_call_then_the_calibration_then_the_vocabulary() -> None:
    assert parse("ctc_draft", {}, 31).theta_ctc == pytest.approx(0.25 * math.log(31))
    found = {"theta_ctc": 1.1, "theta_lm": 0.01}
    assert parse("ctc_draft", {"theta_ctc": "auto"}, 31, found) == CTCDraftParams(1.1, 0.01)
    assert parse("ctc_draft", {"theta_ctc": 0.9}, 31, found) == CTCDraftParams(0.9, 0.01)
    assert parse("ctc_draft:verify_only", {}, 31, found).theta_ctc is None
    assert parse("ctc_draft:gate_only", {}, 31, found).theta_lm > 1
    assert canonical("ctc_draft+lossless") == "ctc_draft:lossless"


def test_the_lossless_name_is_kept_for_lossless_decoding() -> None:
    assert parse("ctc_draft:lossless", {"accept": "greedy"}, VOCAB).accept == "greedy"
    with pytest.raises(ConfigError, match=r"draft_params.accept.*must be greedy.*draft=ctc_draft"):
        parse("ctc_draft:lossless", {"accept": "relaxed"}, VOCAB)
