"""Likelihood estimators against values that can be counted out: every mask, every order."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from ssd_infer.families.diffusion.likelihood import (
    Likelihood,
    bound_of_sequence,
    denoiser_of,
    exact_count_masks,
    left_to_right_of_sequence,
    low_discrepancy_counts,
    measure,
)
from tests.models.test_masked_diffusion import MASK, blocks, build

LENGTH = 6


def tokens(seed: int = 5, length: int = LENGTH) -> Tensor:
    return torch.randint(0, MASK, (length,), generator=torch.Generator().manual_seed(seed))


def counted_out(model: Any, ids: Tensor, size: int) -> float:
    """Return the bound over all 2^S masks of each block: Σ_l (1/S)·(S/l)·mean over the masks of l tokens."""
    denoiser = denoiser_of(model)
    total = 0.0
    for start in range(0, ids.numel(), size):
        inside = range(start, min(start + size, ids.numel()))
        for count in range(1, len(inside) + 1):
            chosen = list(itertools.combinations(inside, count))
            masked = torch.zeros(len(chosen), ids.numel(), dtype=torch.bool)
            for row, places in enumerate(chosen):
                masked[row, list(places)] = True
            clean = ids[None].expand(len(chosen), -1)
            logp = denoiser(clean.masked_fill(masked, MASK), clean).log_softmax(-1)
            nll = -logp.gather(-1, clean[..., None])[..., 0]
            total += float((nll * masked).sum(1).mean()) / count
    return total


@pytest.mark.parametrize(("make", "size"), [(build, 0), (blocks, 4)])
def test_exact_count_agrees_with_enumeration_within_its_standard_error(make: Any, size: int) -> None:
    model, ids = make(), tokens()
    exact = counted_out(model, ids, size or LENGTH)
    found, variance = bound_of_sequence(denoiser_of(model), ids, MASK, block_size=size, samples=4096)
    error = math.sqrt(variance)
    assert abs(found - exact) < 4 * error
    assert 0 < error < 0.01 * exact


def test_a_wrong_weight_is_outside_the_standard_error() -> None:
    model, ids = build(), tokens()
    exact = counted_out(model, ids, LENGTH)
    denoiser = denoiser_of(model)

    def halved(noised: Tensor, clean: Tensor) -> Tensor:
        return denoiser(noised, clean) * 0.5

    found, variance = bound_of_sequence(halved, ids, MASK, samples=1024)
    assert abs(found - exact) > 6 * math.sqrt(variance)


@pytest.mark.parametrize(("size", "batch"), [(8, 16), (8, 6), (6, 16), (5, 3), (1, 4)])
def test_low_discrepancy_counts_are_uniform_though_the_batch_does_not_divide(size: int, batch: int) -> None:
    offsets = (torch.arange(3000, dtype=torch.float64) + 0.5) / 3000
    drawn = torch.stack([low_discrepancy_counts(size, batch, float(u)) for u in offsets])
    share = torch.bincount(drawn.flatten(), minlength=size + 1)[1:] / drawn.numel()
    torch.testing.assert_close(share, torch.full((size,), 1 / size), rtol=0.01, atol=0.001)
    for row in drawn[::97]:  # and any one batch is as even as it can be
        each = torch.bincount(row, minlength=size + 1)[1:]
        assert each.max() - each.min() <= max(1, math.ceil(batch / size) - batch // size + 1)


def test_masks_hide_only_scored_tokens_and_exactly_the_drawn_number_in_every_block() -> None:
    scored = torch.tensor([False, True, True, True, True, True, False, False, False, True])
    masked, weight = exact_count_masks(scored, 4, 16, torch.Generator().manual_seed(0))
    assert not masked[:, ~scored].any()
    for start in (0, 4, 8):
        inside = scored[start : start + 4].sum()
        hidden = masked[:, start : start + 4].sum(1)
        assert (hidden >= 1).all()
        assert (hidden <= inside).all()
        factor = (weight[:, start : start + 4] * masked[:, start : start + 4]).sum(1)
        torch.testing.assert_close(factor, torch.full((16,), float(inside), dtype=torch.float64))


def test_blocks_of_one_token_and_left_to_right_are_the_autoregressive_likelihood() -> None:
    model, ids = build(objective="bd3lm", block_size=1), tokens()
    with torch.no_grad():
        chain = 0.0
        for place in range(LENGTH):
            seen = torch.cat([ids[:place], torch.tensor([MASK])])[None]
            chain -= float(model(seen).logits[0, -1].log_softmax(-1)[ids[place]])
    bound, variance = bound_of_sequence(denoiser_of(model), ids, MASK, block_size=1, samples=32)
    assert bound == pytest.approx(chain, rel=1e-9)
    assert variance == pytest.approx(0, abs=1e-18)
    assert left_to_right_of_sequence(denoiser_of(model), ids, MASK, block_size=1) == pytest.approx(
        chain, rel=1e-9
    )


@pytest.mark.parametrize(("make", "size"), [(build, 0), (blocks, 4)])
def test_left_to_right_is_the_chain_of_the_states_decoding_goes_through(make: Any, size: int) -> None:
    model, ids = make(), tokens()
    width, chain = size or LENGTH, 0.0
    with torch.no_grad():
        for place in range(LENGTH):
            end = LENGTH if not size else min((place // width + 1) * width, LENGTH)
            state = ids[:end].clone()
            state[place:] = MASK
            chain -= float(model(state[None]).logits[0, place].log_softmax(-1)[ids[place]])
    found = left_to_right_of_sequence(denoiser_of(model), ids, MASK, block_size=size)
    assert found == pytest.approx(chain, rel=1e-9)


def test_the_noised_beside_clean_pass_equals_a_pass_for_each_block() -> None:
    model, ids = blocks(), tokens(length=12)
    noised = ids.clone()
    noised[[1, 2, 5, 8, 11]] = MASK
    together = denoiser_of(model)(noised[None], ids[None])
    with torch.no_grad():
        for start in (0, 4, 8):
            alone = model(torch.cat([ids[:start], noised[start : start + 4]])[None]).logits[:, start:]
            torch.testing.assert_close(together[:, start : start + 4], alone, rtol=1e-9, atol=1e-9)


def test_measure_names_its_estimator_and_refuses_the_wrong_one() -> None:
    sequences = [tokens(1), tokens(2, 9)]
    bound = measure(blocks(), sequences, characters=40, samples=32)
    assert (bound.estimator, bound.bound, bound.tokens, bound.samples) == ("block_exact_count", True, 15, 32)
    values = bound.as_dict()
    assert values["bits_per_character"] == pytest.approx(bound.nats / 40 / math.log(2))
    assert values["perplexity"] == pytest.approx(math.exp(bound.nats / 15))
    assert values["bits_per_character_se"] > 0
    exact = measure(blocks(), sequences, estimator="left_to_right")
    assert (exact.bound, exact.standard_error, exact.bits_per_character) == (False, 0.0, None)
    assert measure(build(), sequences, samples=16).estimator == "exact_count"
    with pytest.raises(ValueError, match="block_exact_count or left_to_right"):
        measure(blocks(), sequences, estimator="exact_count")
    assert Likelihood("left_to_right", 8 * math.log(2), 0.0, 4).bits_per_token == pytest.approx(2)
