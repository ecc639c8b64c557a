"""The objectives as formulas: schedules, weights, masks and denominators."""

from __future__ import annotations

import pytest
import torch

from ssd_train.losses import bd3lm, complementary_block, llada, mdlm
from ssd_train.losses.draft_agreement import pair_divergence, verify_calls
from ssd_train.losses.masked import log_probabilities, masked_nll
from ssd_train.recipes.diffusion.noise import Place, stratified, uniform


def numbers(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(rows, length, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_log_linear_weight_is_one_over_t() -> None:
    t = torch.linspace(0.01, 1, 50, dtype=torch.float64, requires_grad=True)
    alpha = mdlm.keep_probability(t, 1e-3)
    (slope,) = torch.autograd.grad(alpha.sum(), t)
    torch.testing.assert_close(-slope / (1 - alpha), mdlm.weight(t))


@pytest.mark.parametrize("name", ["mdlm", "llada", "bd3lm"])
def test_tokens_are_masked_as_often_as_the_schedule_says_and_weighed_by_its_inverse(name: str) -> None:
    t = torch.tensor([[0.2], [0.7]], dtype=torch.float64)
    drawn, everything = numbers(2, 40_000), torch.ones(2, 40_000, dtype=torch.bool)
    noise = {"mdlm": mdlm.corrupt, "llada": llada.corrupt, "bd3lm": bd3lm.corrupt}[name](t, drawn, everything)
    torch.testing.assert_close(noise.masked.double().mean(1), t[:, 0], rtol=0, atol=0.01)
    torch.testing.assert_close(1 / noise.weight[:, 0], t[:, 0], rtol=0, atol=2e-3)


def test_padding_and_prompts_are_never_masked_and_denominators_are_each_objectives_own() -> None:
    kept = torch.zeros(3, 12, dtype=torch.bool)
    kept[0, 4:] = True
    kept[1, 6:8] = True
    ones = torch.ones(3, 1, dtype=torch.float64)
    for noise in (
        mdlm.corrupt(ones, numbers(3, 12), kept),
        llada.corrupt(ones, numbers(3, 12), kept),
        llada.corrupt_answers(ones, numbers(3, 12), kept),
        bd3lm.corrupt(ones.expand(-1, 3), numbers(3, 12), kept),
        bd3lm.corrupt_left_to_right(0 * ones.expand(-1, 3), 12, kept),
    ):
        assert torch.equal(noise.masked, kept)
    assert mdlm.denominator(kept) == llada.denominator(kept) == bd3lm.denominator(kept) == 10
    assert llada.denominator_answers(kept) == 2


def test_an_answer_weighs_the_same_however_long_it_is() -> None:
    answer = torch.zeros(2, 16, dtype=torch.bool)
    answer[0, :2] = answer[1, :] = True
    total = torch.zeros(2, dtype=torch.float64)
    for seed in range(2000):
        noise = llada.corrupt_answers(torch.full((2, 1), 0.5).double(), numbers(2, 16, seed), answer)
        total += (noise.weight * noise.masked).sum(1)
    torch.testing.assert_close(total / 2000, torch.ones(2, dtype=torch.float64), rtol=0, atol=0.05)


def test_the_two_masks_supervise_every_token_once() -> None:
    supervised = torch.ones(4, 12, dtype=torch.bool)
    supervised[1, :5] = False
    first, second = complementary_block.corrupt(numbers(4, 3, 1), numbers(4, 12), supervised)
    assert torch.equal(first.masked ^ second.masked, supervised)
    assert not (first.masked & second.masked).any()
    assert (first.weight == 1).all()
    assert first.masked.sum() + second.masked.sum() == complementary_block.denominator(supervised) == 43


def test_left_to_right_masks_are_the_rest_of_a_block_and_count_the_next_token_once_on_average() -> None:
    places = torch.arange(4)
    times = ((places + 0.5) / 4).double()[:, None]
    noise = bd3lm.corrupt_left_to_right(times, 4, torch.ones(4, 4, dtype=torch.bool), later_weight=0.25)
    assert torch.equal(noise.masked, places[None] >= places[:, None])
    expected = torch.full((4, 4), 0.25).double() + torch.eye(4).double() * 3.75
    torch.testing.assert_close(noise.weight * noise.masked, expected * noise.masked)
    assert (noise.weight.diagonal() / 4).sum() == 4  # mean over the four states, summed over the four tokens


def test_no_probability_on_the_mask_token_and_chunks_change_nothing() -> None:
    torch.manual_seed(0)
    hidden = torch.randn(11, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(20, 8, dtype=torch.float64, requires_grad=True)
    targets = torch.arange(11)
    logp = log_probabilities(hidden, weight, 19)
    assert torch.isneginf(logp[:, 19]).all()
    torch.testing.assert_close(logp.exp().sum(1), torch.ones(11).double())
    whole = torch.autograd.grad(masked_nll(hidden, weight, targets, 19).sum(), [hidden, weight])
    parts = torch.autograd.grad(
        masked_nll(hidden, weight, targets, 19, chunk_tokens=3).sum(), [hidden, weight]
    )
    torch.testing.assert_close(whole, parts)
    assert (whole[1][19] == 0).all()


def test_pair_divergence_is_the_symmetric_kl_and_reaches_both_sides() -> None:
    torch.manual_seed(0)
    early, late = (torch.randn(7, 8, dtype=torch.float64, requires_grad=True) for _ in range(2))
    weight = torch.randn(20, 8, dtype=torch.float64)
    found = pair_divergence(early, late, weight, 19, chunk_tokens=3)
    p, q = ((h @ weight.t())[:, :19].softmax(-1) for h in (late, early))
    expected = 0.5 * ((p * (p / q).log()).sum() + (q * (q / p).log()).sum())
    torch.testing.assert_close(found.divergence, expected)
    assert found.agreed == (p.argmax(-1) == q.argmax(-1)).sum()
    grads = torch.autograd.grad(found.divergence, [early, late])
    assert all(torch.isfinite(grad).all() and grad.abs().sum() > 0 for grad in grads)


def test_verify_calls_count_a_walk_through_a_block() -> None:
    own = torch.tensor([3, 1, 4, 1])
    right = own.expand(4, 4).clone()
    wrong = right.clone()
    wrong[0, 2] = 9  # from nothing revealed, the third token is misjudged: calls confirm 2, then 2
    never = torch.full((4, 4), 9)
    never[range(4), range(4)] = own
    predictions = torch.stack([right, wrong, never], 1)
    assert verify_calls(predictions, 3).tolist() == [1, 2, 4]
    assert verify_calls(predictions, 1).tolist() == [2, 2, 4]


def test_times_of_all_ranks_together_cover_the_unit_interval_evenly() -> None:
    total, blocks = 12, 5
    times = []
    for rank in (0, 1):
        for offset in (0, 2, 4):
            place = Place(seed=3, step=7, first=rank * 6 + offset, total=total)
            times.append(stratified(place, uniform(place, 2, blocks)))
    found = torch.cat(times).flatten().sort().values
    strata = (found * total * blocks).floor().long()
    assert torch.equal(strata, torch.arange(total * blocks))
    whole = Place(seed=3, step=7, first=0, total=total)
    assert torch.equal(stratified(whole, uniform(whole, 12, blocks)), torch.cat(times))
    other = Place(seed=3, step=8, first=0, total=total)
    assert not torch.equal(stratified(other, uniform(other, 12, blocks)), torch.cat(times))


def test_every_column_of_times_is_even_over_the_samples() -> None:
    place = Place(seed=0, step=0, first=0, total=64)
    times = stratified(place, uniform(place, 64, 8))
    assert (times.mean(0) - 0.5).abs().max() < 0.1
    assert (times.mean(1) - 0.5).abs().max() < 0.1


def test_cut_lengths_are_uniform() -> None:
    found = [llada.cut_length((i + 0.5) / 100, 10) for i in range(100)]
    assert [found.count(n) for n in range(1, 11)] == [10] * 10
