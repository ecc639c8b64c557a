"""Collapse order, padding, and the entropy that gate 1 asks for."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from ssd_infer.strategies.ctc_draft.ctc import confidence, draft, entropy, posteriors
from ssd_infer.strategies.ctc_draft.prefix_beam import prefix_beam

V = 5


def peaked(*paths: list[int], sure: float = 0.9) -> tuple[Tensor, Tensor]:
    """Return posteriors whose best path is the given one, right-padded with a token, and the lengths."""
    longest = max(map(len, paths)) + 2
    rows = torch.full((len(paths), longest, V), (1 - sure) / (V - 1), dtype=torch.float64)
    for row, path in zip(rows, paths, strict=True):
        for frame, token in enumerate(path + [4] * (longest - len(path))):
            row[frame, token] = sure
    return rows, torch.tensor([len(path) for path in paths])


@pytest.mark.parametrize(
    ("path", "tokens", "frames"),
    [
        ([1, 1, 0, 1], [1, 1], [0, 3]),
        ([0, 2, 2, 3, 0], [2, 3], [1, 3]),
        ([1, 0, 0], [1], [0]),
        ([0, 0], [], []),
        ([3], [3], [0]),
    ],
)
def test_neighbours_merge_before_blanks_drop(path: list[int], tokens: list[int], frames: list[int]) -> None:
    found = draft(*peaked(path), blank=0)[0]
    assert (found.tokens, found.frames) == (tokens, frames)


def test_padding_is_neither_decoded_nor_measured() -> None:
    table, lengths = peaked([1, 0, 2], [1, 2, 3, 0, 1, 2])
    table[0, 3:] = 1 / V  # the least sure frames there are
    found = draft(table, lengths, 0)
    alone = draft(table[:1, :3], lengths[:1], 0)
    assert found[0] == alone[0]
    assert found[0].tokens == [1, 2]


def test_entropy_is_in_nats_and_counts_the_blank() -> None:
    assert float(entropy(torch.full((1, 1, V), 1 / V))) == pytest.approx(math.log(V))
    assert float(entropy(torch.tensor([[[1.0, 0.0, 0.0, 0.0, 0.0]]]))) == 0.0
    assert float(entropy(torch.tensor([[[0.5, 0.5, 0.0, 0.0, 0.0]]]))) == pytest.approx(math.log(2))


def test_surprise_sums_every_alignment_and_no_padding() -> None:
    table = torch.rand(2, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    table, lengths = table / table.sum(dim=-1, keepdim=True), torch.tensor([4, 3])
    found = draft(table, lengths, 0, "sequence")
    for row, item in enumerate(found):
        size, summed = int(lengths[row]), 0.0
        for path in itertools.product(range(3), repeat=size):
            merged = [token for token, _ in itertools.groupby(path) if token]
            if merged == item.tokens:
                summed += math.prod(float(table[row, frame, token]) for frame, token in enumerate(path))
        assert item.entropy == pytest.approx(-math.log(summed))


def test_where_a_token_begins_is_no_doubt_about_the_transcript() -> None:
    table, lengths = peaked([1, 1, 0, 0, 2], sure=1.0)
    table[0, 1] = torch.tensor([0.5, 0.5, 0.0, 0.0, 0.0])  # still 1, or blank already
    assert draft(table, lengths, 0, "max")[0].entropy == pytest.approx(math.log(2))
    assert draft(table, lengths, 0, "sequence")[0].entropy == pytest.approx(0.0, abs=1e-9)
    table[0, 4] = torch.tensor([0.0, 0.0, 0.6, 0.4, 0.0])  # 2, or another token
    assert draft(table, lengths, 0, "sequence")[0].entropy == pytest.approx(-math.log(0.6))


@pytest.mark.parametrize(("how", "want"), [("max", 1.5), ("mean", 1.5 / 20), ("p95", 0.075)])
def test_aggregates(how: str, want: float) -> None:
    table, lengths = peaked([0] * 20, sure=1.0)
    doubt = torch.tensor([0.25] * 3 + [0.125, 0.125], dtype=torch.float64)
    table[0, 7] = doubt
    scale = 1.5 / float(entropy(doubt[None, None]))
    assert draft(table, lengths, 0, how)[0].entropy * scale == pytest.approx(want)


def test_frames_that_are_not_blank() -> None:
    table, lengths = peaked([0, 1, 0], [0, 0])
    table[0, 0] = torch.tensor([0.4, 0.15, 0.15, 0.15, 0.15])
    both = draft(table, lengths, 0), draft(table, lengths, 0, frames="nonblank")
    assert both[0][0].entropy > both[1][0].entropy
    assert both[1][1].entropy == math.inf


def test_special_ids_are_never_drafted() -> None:
    logits = torch.zeros(1, 3, V)
    logits[..., 1], logits[..., 3] = 9.0, 5.0
    table = posteriors(logits, special=[1, 2])
    assert draft(table, torch.tensor([3]), 0)[0].tokens == [3]
    assert float(table[..., 1:3].sum()) == 0.0
    assert table.sum(-1).allclose(torch.ones(1, 3))


def test_temperature_widens_the_posterior() -> None:
    logits = torch.randn(1, 4, V, generator=torch.Generator().manual_seed(0))
    cold, hot = (entropy(posteriors(logits, [], heat)) for heat in (1.0, 2.0))
    assert (hot > cold).all()


def test_confidence_lies_between_nothing_and_certainty() -> None:
    assert confidence(*peaked([1, 0, 2], sure=1.0), blank=0) == [1.0]
    low, high = confidence(*peaked([1, 2], sure=0.5), blank=0)[0], confidence(*peaked([1, 2]), blank=0)[0]
    assert 0 < low < high < 1
    assert confidence(*peaked([0, 0]), blank=0) == [0.0]


def test_prefix_beam_sums_all_alignments() -> None:
    generator = torch.Generator().manual_seed(1)
    logs = torch.log_softmax(torch.randn(4, 3, generator=generator, dtype=torch.float64), dim=-1)
    sums: dict[tuple[int, ...], float] = {}
    for path in torch.cartesian_prod(*[torch.arange(3)] * 4).tolist():
        merged = [token for token, last in zip(path, [None, *path], strict=False) if token != last]
        key = tuple(token for token in merged if token)
        sums[key] = sums.get(key, 0.0) + math.exp(sum(float(logs[t, k]) for t, k in enumerate(path)))
    found = prefix_beam(logs, blank=0, width=100)
    assert {tuple(row): pytest.approx(math.exp(score)) for row, score in found} == sums
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
