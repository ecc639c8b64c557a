"""Calls the time limit cut short count as calls of the length asked for."""

from __future__ import annotations

import pytest

from ssd_infer.evaluation.contenders import Decoded
from ssd_infer.evaluation.full_length import at_full_length
from ssd_infer.evaluation.latency import Arrivals


def call(blocks: list[tuple[float, int]], seconds: float | None = None) -> Decoded:
    """Return a call of one row that had `count` tokens after `when` seconds, for each of `blocks`."""
    moments = [round(when * 1e9) for when, _ in blocks]
    arrivals = Arrivals(0, moments, [[count for _, count in blocks]])
    return Decoded([[7] * blocks[-1][1]], blocks[-1][0] if seconds is None else seconds, None, arrivals)


def test_a_call_of_full_length_is_what_it_was() -> None:
    assert at_full_length(call([(1.0, 1), (2.0, 8)]), 8, 8) == (8, 2.0)


def test_a_short_call_goes_on_at_its_steady_rate_and_pays_for_the_prompt_once() -> None:
    """The prompt takes 2 s, a token 0.1 s: 32 tokens would read 6 tokens/s, 128 read 8.7."""
    short = call([(2.0 + 0.1 * place, 1 + place) for place in range(32)])
    tokens, seconds = at_full_length(short, 32, 128)
    assert (tokens, seconds) == (128, pytest.approx(2.0 + 0.1 * 127))


def test_the_last_block_which_the_limit_cut_says_nothing_of_the_rate() -> None:
    """Blocks of four tokens a second; the last has room for one."""
    cut = call([(1.0, 1), (2.0, 5), (3.0, 9), (4.0, 10)])
    assert at_full_length(cut, 10, 30) == (30, pytest.approx(4.0 + 20 / 4))


def test_a_text_that_ended_is_not_made_longer() -> None:
    assert at_full_length(call([(1.0, 1), (2.0, 5)]), 16, 64) == (5, 2.0)


def test_a_batch_goes_on_as_long_as_its_slowest_unfinished_row() -> None:
    rows = [[1, 3, 5, 7, 8], [1, 2, 3, 4, 8], [1, 2]]
    arrivals = Arrivals(0, [round(when * 1e9) for when in (1.0, 2.0, 3.0, 4.0, 5.0)], rows)
    batch = Decoded([[7] * 8, [7] * 8, [7] * 2], 5.0, None, arrivals)
    assert at_full_length(batch, 8, 10) == (18 + 4, pytest.approx(5.0 + 2 * 1.0))


def test_a_call_nobody_listened_to_is_scaled_as_a_whole() -> None:
    assert at_full_length(Decoded([[7] * 4], 2.0), 4, 8) == (8, pytest.approx(4.0))


def test_one_block_after_the_prompt_is_all_there_is_to_go_by() -> None:
    assert at_full_length(call([(1.0, 1), (2.0, 5)]), 5, 9) == (9, pytest.approx(2.0 + 4 / 4))
