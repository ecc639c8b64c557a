"""TTFT and ITL: arithmetic on given moments, what engines and listeners note, and who wrote which token."""

from __future__ import annotations

import pytest
import torch

import ssd_infer
from ssd_infer.engine.stats import Stats
from ssd_infer.evaluation.contenders import Contender, Decoded, Sampling, ours
from ssd_infer.evaluation.latency import Arrivals, Listener, latency, of_stats, quantile
from ssd_infer.evaluation.measure import Measurements, Record, Unit
from ssd_infer.evaluation.transformers_side import hf_baseline, hf_peers
from ssd_infer.evaluation.written import SHOWN_TOKENS, blocks, pieces, written
from tests.conftest import ModelFactory
from tests.engine.test_exactness import prompts
from tests.families.diffusion.support import build

CPU = torch.device("cpu")
EXIT2 = {"exit_layer": 2, "gamma": 4}
MS = 1_000_000


def lists(count: int) -> list[list[int]]:
    """Return prompts as lists of ids."""
    return [row.tolist() for row in prompts(count, 97)]


def test_a_block_is_shared_by_its_tokens_and_the_first_block_is_the_wait() -> None:
    call = Arrivals(10 * MS, [30 * MS, 36 * MS, 48 * MS], [[1, 4, 6], [1, 2]])
    assert call.first() == [0.02, 0.02]
    assert call.between() == pytest.approx([0.002] * 3 + [0.006] * 2 + [0.006])
    found = latency([call, None])
    assert found == {"ttft_ms": 20.0, "itl_ms_p50": pytest.approx(2.0), "itl_ms_p95": pytest.approx(6.0)}


def test_an_output_of_one_block_has_no_time_between_tokens() -> None:
    assert latency([Arrivals(0, [5 * MS, 9 * MS], [[0, 4]])]) == {"ttft_ms": 9.0}
    assert latency([Arrivals(0, [5 * MS], [[0]])]) is None
    assert latency([None]) is None


def test_quantiles_are_values_that_occurred() -> None:
    values = [float(n) for n in range(1, 21)]
    assert [quantile(values, share) for share in (0.0, 0.5, 0.95, 1.0)] == [1.0, 10.0, 19.0, 20.0]


@pytest.mark.parametrize("draft", [None, "early_exit"])
def test_the_engine_notes_every_token_in_order(tiny_model: ModelFactory, draft: str | None) -> None:
    model, rows = tiny_model(), lists(3)
    contender = Contender("x", "strategy", ours(model, draft, EXIT2 if draft else {}, Sampling(), eos=[7]))
    decoded = contender.run(rows, 20, 0, CPU)
    heard = decoded.arrivals
    assert heard is not None
    assert heard.moments == sorted(heard.moments)
    assert len(heard.moments) == max(map(len, heard.rows))
    for counts, tokens in zip(heard.rows, decoded.tokens, strict=True):
        assert list(counts) == sorted(counts)
        assert (counts[0], counts[-1]) == (1, len(tokens))
    last = (heard.moments[-1] - heard.begun) / 1e9
    assert 0 < heard.first()[0] <= last <= decoded.seconds + 1e-3
    spent = sum(heard.between()[: len(decoded.tokens[0]) - 1])
    whole = (heard.moments[len(heard.rows[0]) - 1] - heard.moments[0]) / 1e9
    assert spent == pytest.approx(whole)


def test_a_diffusion_model_gives_whole_blocks() -> None:
    stats = ssd_infer.generate(build(), [[1, 2, 3, 4]], max_new_tokens=12, eos_token_id=[]).stats
    heard = of_stats(stats.moments[0], stats)
    assert heard is not None
    assert set(heard.rows[0]) == {0, 4, 8, 12}
    assert heard.rows[0][-1] == 12


@pytest.mark.parametrize("count", [1, 2])
def test_transformers_is_heard_on_a_cpu(tiny_model: ModelFactory, count: int) -> None:
    model, rows = tiny_model(), lists(count)
    for contender in [
        hf_baseline(model, Sampling()),
        *(hf_peers(model, Sampling(), 2) if count == 1 else []),
    ]:
        for _ in range(2):  # nothing of an earlier call remains
            decoded = contender.run(rows, 9, 0, CPU)
        assert decoded.arrivals is not None, contender.name
        assert [row[-1] for row in decoded.arrivals.rows] == [len(tokens) for tokens in decoded.tokens]
        assert decoded.arrivals.rows[0][0] == 0, "the prompt is no token of the output"
        assert decoded.arrivals.first()[0] > 0


def test_a_listener_counts_rows_and_blocks_and_nothing_past_the_end() -> None:
    listener = Listener()
    assert listener.heard(0, [[1]]) is None
    for value in (torch.zeros(2, 5), torch.zeros(2), torch.zeros(2), torch.zeros(2)):
        listener.put(value)
    heard = listener.heard(0, [[1, 2, 3], [1]])
    assert heard is not None
    assert heard.rows == [[0, 1, 2, 3], [0, 1, 1, 1]]
    listener.forget()
    for value in (torch.zeros(1, 5), torch.zeros(1, 4), torch.zeros(1, 2)):
        listener.put(value)
    assert listener.counts == [0, 4, 6]


class Letters:
    """A tokenizer of two-byte characters: every odd token ends the character its neighbour began."""

    def decode(self, ids: list[int]) -> str:
        """Return a letter for each whole pair, and a sign for half of one."""
        return "é" * (len(ids) // 2) + "\ufffd" * (len(ids) % 2)


def test_pieces_join_to_the_text_and_wait_for_whole_characters() -> None:
    assert pieces(Letters(), [1, 2], [3, 4, 5, 6]) == ["", "é", "", "é"]
    assert pieces(Letters(), [1], [2, 3]) == ["", ""]


def test_blocks_say_how_many_tokens_were_drafted(tiny_model: ModelFactory) -> None:
    out = ssd_infer.generate(
        tiny_model(), prompts(2, 97), draft="early_exit", draft_params=EXIT2, max_new_tokens=30
    )
    for row, tokens in zip(out.stats.rows, out.sequences, strict=True):
        found = blocks(row)
        assert sum(count for count, _ in found) == len(tokens)
        assert sum(drafted for _, drafted in found) == row.accepted
        assert all(0 <= drafted <= count for count, drafted in found)


class Numbers:
    """A tokenizer whose tokens are their own numbers."""

    def decode(self, ids: list[int]) -> str:
        """Return the numbers, each behind a blank."""
        return "".join(f" {token}" for token in ids)


def test_a_text_is_kept_of_those_that_drafted_tokens(tiny_model: ModelFactory) -> None:
    model, row = tiny_model(), lists(1)
    units, records = [Unit(0, "task", row)], {}
    for name, draft in (("plain", None), ("early", "early_exit")):
        decode = ours(model, draft, EXIT2 if draft else {}, Sampling(), eos=[])
        tokens, stats = decode(row, SHOWN_TOKENS + 20, 0)
        records[name] = [Record(0, "task", 0, Decoded(tokens, 1.0, stats))]
    found = Measurements(records)
    texts = written(found, ["plain", "early", "absent"], units, Numbers())
    assert list(texts) == ["early"]
    tokens = records["early"][0].decoded.tokens[0]
    assert "".join(texts["early"]["pieces"]) == Numbers().decode(tokens[:SHOWN_TOKENS])
    assert texts["early"]["tokens"] == SHOWN_TOKENS + 20
    assert sum(count for count, _ in texts["early"]["blocks"]) >= SHOWN_TOKENS
    assert written(found, ["early"], units, None) == {}


def test_moves_between_states_are_no_tokens_to_colour() -> None:
    prompt = [[1, 2, 3, 4]]
    decode = {"draft": "fewer_steps", "draft_params": {"drafter": "ssd_chain", "gamma": 3}}
    out = ssd_infer.generate(build(), prompt, max_new_tokens=12, eos_token_id=[], **decode)
    assert isinstance(out.stats, Stats)
    assert out.stats.total.drafted
    record = Record(0, "task", 0, Decoded(out.sequences, 1.0, out.stats))
    assert written(Measurements({"d": [record]}), ["d"], [Unit(0, "task", prompt)], Numbers()) == {}
