"""Losses of speech recognition against references computed another way."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from transformers.audio_utils import hertz_to_mel, mel_to_hertz

from ssd_train.losses.agreement import agreement_loss_sum
from ssd_train.losses.ctc import ctc_loss_sum, feasible, repeats
from ssd_train.losses.hybrid import HybridWeights, hybrid_loss
from ssd_train.losses.optimal import edit_table, optimal_targets
from ssd_train.losses.smoothed import smoothed_cross_entropy_sum
from ssd_train.recipes.asr_ctc.augment import Stripes, spec_augment, warp_frequencies

BLANK = 0


def _padded(*rows: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(len(row) for row in rows)
    return torch.tensor([row + [0] * (width - len(row)) for row in rows]), torch.tensor(
        [len(r) for r in rows]
    )


def _by_enumeration(logits: torch.Tensor, label: list[int]) -> float:
    """Sum the probability of every path that collapses to `label`."""
    probabilities = torch.softmax(logits.double(), dim=-1)
    total = 0.0
    for path in itertools.product(range(logits.shape[1]), repeat=logits.shape[0]):
        merged = [token for token, _ in itertools.groupby(path)]
        if [token for token in merged if token != BLANK] == label:
            total += float(torch.stack([probabilities[t, k] for t, k in enumerate(path)]).prod())
    return -math.log(total)


def test_ctc_is_the_sum_over_all_paths() -> None:
    logits = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    labels, lengths = _padded([1, 2], [2, 2])
    frames = torch.tensor([5, 4])
    found = ctc_loss_sum(logits, frames, labels, lengths, torch.tensor([True, True]), BLANK)
    expected = _by_enumeration(logits[0], [1, 2]) + _by_enumeration(logits[1, :4], [2, 2])
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_a_repeat_needs_a_blank_between() -> None:
    labels, lengths = _padded([1, 2, 3], [1, 1, 2], [2, 2, 2], [])
    assert repeats(labels, lengths).tolist() == [0, 1, 2, 0]
    assert feasible(labels, lengths, torch.tensor([3, 3, 5, 0])).tolist() == [True, False, True, True]
    assert feasible(labels, lengths, torch.tensor([2, 4, 4, 1])).tolist() == [False, True, False, True]


def test_infeasible_rows_have_neither_loss_nor_gradient_nor_weight() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 4, generator=generator, requires_grad=True)
    labels, lengths = _padded([1, 2, 3], [1, 1, 1])
    frames = torch.tensor([3, 3])
    keep = feasible(labels, lengths, frames)
    assert keep.tolist() == [True, False]
    loss = ctc_loss_sum(logits, frames, labels, lengths, keep, BLANK)
    alone = ctc_loss_sum(logits[:1], frames[:1], labels[:1], lengths[:1], keep[:1], BLANK)
    assert torch.equal(loss, alone)
    # torch's own mean counts the masked row as a zero and halves the loss.
    halved = torch.nn.functional.ctc_loss(
        logits.log_softmax(-1).transpose(0, 1), labels, frames, lengths, zero_infinity=True
    )
    assert float(loss.detach() / 3) == pytest.approx(2 * float(halved.detach()), rel=1e-5)
    loss.backward()
    assert torch.isfinite(logits.grad).all()
    assert logits.grad[0].abs().sum() > 0
    assert not logits.grad[1].any()


def test_no_feasible_row_is_a_loss_of_zero_with_a_gradient() -> None:
    logits = torch.randn(1, 2, 4, requires_grad=True)
    loss = ctc_loss_sum(
        logits, torch.tensor([2]), torch.tensor([[1, 1]]), torch.tensor([2]), torch.tensor([False]), BLANK
    )
    loss.backward()
    assert float(loss) == 0.0
    assert not logits.grad.any()


def test_an_empty_label_is_all_blanks() -> None:
    logits = torch.randn(1, 3, 4)
    loss = ctc_loss_sum(
        logits,
        torch.tensor([3]),
        torch.zeros(1, 1, dtype=torch.long),
        torch.tensor([0]),
        torch.tensor([True]),
        0,
    )
    assert float(loss) == pytest.approx(float(-logits.log_softmax(-1)[0, :, 0].sum()), rel=1e-5)


def test_a_blank_inside_a_label_is_refused() -> None:
    with pytest.raises(ValueError, match="blank"):
        ctc_loss_sum(
            torch.randn(1, 5, 4),
            torch.tensor([5]),
            torch.tensor([[1, 0, 2]]),
            torch.tensor([3]),
            torch.tensor([True]),
            BLANK,
        )


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_smoothing_is_torchs(smoothing: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(2, 4, 7, generator=generator), torch.randint(7, (2, 4), generator=generator)
    mask = torch.tensor([[True, True, False, False], [True] * 4])
    smoothed, plain = smoothed_cross_entropy_sum(logits, targets, mask, smoothing)
    reference = torch.nn.functional.cross_entropy(
        logits[mask], targets[mask], label_smoothing=smoothing, reduction="sum"
    )
    assert float(smoothed) == pytest.approx(float(reference), rel=1e-5)
    assert float(plain) == pytest.approx(
        float(torch.nn.functional.cross_entropy(logits[mask], targets[mask], reduction="sum")), rel=1e-5
    )


def test_the_hybrid_loss_is_its_formula() -> None:
    final, inter, decoder = torch.tensor(2.0), [torch.tensor(3.0), torch.tensor(5.0)], torch.tensor(7.0)
    weights = HybridWeights(ctc=0.3, inter=0.4)
    expected = 0.3 * (0.6 * 2 + 0.4 * 4) + 0.7 * 7
    assert float(hybrid_loss(final, inter, decoder, weights)) == pytest.approx(expected)
    assert float(hybrid_loss(final, [], decoder, weights)) == pytest.approx(0.3 * 2 + 0.7 * 7)


def _path(tokens: list[int], size: int = 6) -> torch.Tensor:
    return 4.0 * torch.nn.functional.one_hot(torch.tensor(tokens), size).float()


def test_agreement_reads_each_token_where_ctc_first_says_it() -> None:
    ctc = torch.stack([_path([0, 3, 3, 0, 4]), _path([3, 0, 0, 0, 0])]).requires_grad_()
    decoder = torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(0), requires_grad=True)
    labels, lengths = _padded([3, 4], [4])
    total, count = agreement_loss_sum(ctc, torch.tensor([5, 5]), decoder, labels, lengths, BLANK)
    expected = 0.0
    for frame, token in ((1, 0), (4, 1)):
        teacher = ctc.detach()[0, frame].clone()
        teacher[BLANK] = -torch.inf
        teacher = teacher.softmax(-1)
        student = decoder.detach()[0, token].log_softmax(-1)
        expected += sum(float(p * (p.log() - s)) for p, s in zip(teacher, student, strict=True) if p > 0)
    assert int(count) == 2  # the second row was read wrong and teaches nothing
    assert float(total) == pytest.approx(expected, rel=1e-5)
    total.backward()
    assert ctc.grad is None
    assert decoder.grad[0, :2].any()
    assert not decoder.grad[1].any()


def test_agreement_never_reads_padding() -> None:
    ctc = _path([3, 4, 5])[None]
    labels, lengths = _padded([3, 4])
    decoder = torch.randn(1, 3, 6)
    _, count = agreement_loss_sum(ctc, torch.tensor([2]), decoder, labels, lengths, BLANK)
    assert int(count) == 2


def test_edit_distances_are_the_textbooks() -> None:
    def distance(one: str, other: str) -> int:
        if not one or not other:
            return len(one) + len(other)
        same = distance(one[1:], other[1:]) + (one[0] != other[0])
        return min(same, distance(one[1:], other) + 1, distance(one, other[1:]) + 1)

    for one, other in (("kitten", "sitting"), ("", "abc"), ("abc", ""), ("ab", "ba"), ("aaa", "a")):
        table = edit_table([ord(c) for c in one], [ord(c) for c in other])
        assert table[-1, -1] == distance(one, other)


def test_a_right_prefix_has_the_label_as_its_only_continuation() -> None:
    rng = np.random.default_rng(0)
    assert optimal_targets([5, 6, 7], [5, 6, 7], 2, rng) == [5, 6, 7, 2]
    assert optimal_targets([], [5], 2, rng) == [5]


def test_targets_after_a_mistake_keep_the_distance_smallest() -> None:
    label, prefix, eos = [5, 6, 7, 5], [5, 9, 7], 2
    drawn = {tuple(optimal_targets(prefix, label, eos, np.random.default_rng(seed))) for seed in range(60)}
    for targets in drawn:
        for place, target in enumerate(targets):
            before = edit_table(prefix[:place], label)[-1].min()
            said = prefix[:place] if target == eos else [*prefix[:place], target]
            after = edit_table(said, label)[-1]
            assert (after[-1] if target == eos else after.min()) == before
    assert len(drawn) > 1  # after a substitution both "repeat it" and "go on" are optimal


def generators(seed: int, rows: int) -> list[np.random.Generator]:
    return [np.random.default_rng([seed, row]) for row in range(rows)]


def test_stripes_stay_within_their_limits() -> None:
    features = torch.ones(3, 100, 40)
    lengths = torch.tensor([100, 50, 3])
    stripes = Stripes(frequency_masks=1, frequency_width=5, time_masks=1, time_width=40, time_share=0.1)
    for seed in range(20):
        hidden = spec_augment(features, lengths, stripes, generators(seed, 3)) == 0
        times, bins = hidden.all(dim=2).sum(dim=1), hidden.all(dim=1).sum(dim=1)
        assert (times <= torch.tensor([10, 5, 0])).all()
        assert (bins <= 5).all()
    assert torch.equal(features, torch.ones(3, 100, 40))


def test_stripes_follow_from_the_generator_and_touch_only_audio() -> None:
    features, lengths = torch.ones(2, 60, 20), torch.tensor([60, 30])
    drawn = [spec_augment(features, lengths, Stripes(), generators(s, 2)) for s in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    times_only = Stripes(frequency_masks=0, time_masks=3, time_share=0.5)
    masked = spec_augment(features, lengths, times_only, generators(0, 2))
    assert masked[1, 30:].all()
    assert not masked[0].all()


def test_moved_formants_follow_from_the_generator_and_stay_within_their_limit() -> None:
    band, mel = (20.0, 4000.0), 40
    edges = np.linspace(*(hertz_to_mel(edge) for edge in band), mel + 2)
    tone = mel_to_hertz(edges[1:-1])[20]
    features = torch.zeros(64, 3, mel)
    features[:, :, 20] = 1.0
    moved = warp_frequencies(features, 0.15, band, generators(0, 64))
    centres = torch.as_tensor(mel_to_hertz(edges[1:-1]), dtype=torch.float32)
    heard = (moved[:, 0] * centres).sum(dim=1) / moved[:, 0].sum(dim=1)
    assert heard.min() < tone / 1.1
    assert heard.max() > tone * 1.1
    assert ((heard > tone / 1.2) & (heard < tone * 1.2)).all()
    assert torch.equal(moved, warp_frequencies(features, 0.15, band, generators(0, 64)))
    alone = warp_frequencies(features[5:6], 0.15, band, generators(0, 64)[5:6])
    assert torch.equal(alone[0], moved[5])


def test_formants_that_do_not_move_leave_the_features_alone() -> None:
    features = torch.randn(2, 5, 20, generator=torch.Generator().manual_seed(0))
    same = warp_frequencies(features, 0.0, (20.0, 8000.0), generators(0, 2))
    torch.testing.assert_close(same, features, atol=1e-5, rtol=1e-5)
