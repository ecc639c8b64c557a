"""Noise, states, masks, caches, orders and costs, each on its own."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy import stats as scipy_stats

from ssd_infer.families.diffusion import noise
from ssd_infer.families.diffusion.block_cache import BlockCache
from ssd_infer.families.diffusion.block_layout import PAD, ROOT, Packing, own_mask
from ssd_infer.families.diffusion.canvases import DualMemory, FullMemory
from ssd_infer.families.diffusion.denoiser import Denoiser
from ssd_infer.families.diffusion.exact import ExactMemory
from ssd_infer.families.diffusion.reader import log_odds
from ssd_infer.families.diffusion.settings import SamplerSettings
from ssd_infer.families.diffusion.state import Canvas, State
from ssd_infer.families.diffusion.step import Reading, Stepper
from ssd_infer.strategies.fewer_steps.call_costs import CallCosts, predicted_speedup
from ssd_infer.strategies.fewer_steps.spiffy import as_nodes, most_travelled
from tests.families.diffusion.support import BIDIRECTIONAL, MASK, begin, build, prompts

CPU = torch.device("cpu")


def test_noise_is_a_pure_function_of_its_key() -> None:
    keys = [(7, 3, 5), (7, 3, 6), (8, 3, 5)]
    table = noise.gumbel(keys, 50, CPU, torch.float64)
    for place in (2, 0, 1):
        assert torch.equal(noise.gumbel([keys[place]], 50, CPU, torch.float64)[0], table[place])
    assert len({tuple(row.tolist()) for row in table}) == 3


def test_noise_is_gumbel_and_the_integer_hash_is_the_tensor_hash() -> None:
    table = noise.gumbel([(1, count, 0) for count in range(40)], 500, CPU, torch.float64)
    assert scipy_stats.kstest(table.flatten().numpy(), "gumbel_r").pvalue > 0.01
    values = torch.tensor([0, 1, -1, 2**62, -(2**63)])
    assert [noise.mix_int(int(v)) for v in values] == [int(v) % 2**64 for v in noise.mix(values)]
    draws = [noise.uniform((3, index, 0)) for index in range(4000)]
    assert scipy_stats.kstest(draws, "uniform").pvalue > 0.01


def test_float32_noise_is_cut_off() -> None:
    keys = [(1, count, 0) for count in range(20)]
    limit = -math.log(-math.log1p(-(2.0**-25)))
    assert float(noise.gumbel(keys, 5000, CPU, torch.float32).max()) <= limit + 0.8
    assert limit < 17.4


def canvas(**changes: Any) -> Canvas:
    return Canvas(**({"prompt": (1, 2, 3, 4, 5), "limit": 12, "width": 4, "mask": 9} | changes))


def test_a_prompt_may_end_inside_a_block() -> None:
    row = canvas()
    first = row.first()
    assert first == State(4, (5, 9, 9, 9), 0, 0, ((1, 2, 3, 4),))
    assert (row.origin, row.end, row.masked(first)) == (4, 12, [1, 2, 3])


def test_a_full_block_opens_the_next_and_the_limit_ends_the_row() -> None:
    row = canvas()
    state = row.after(row.first(), [(1, 6), (2, 7), (3, 8)], 1)
    assert state == State(8, (9, 9, 9, 9), 0, 3, ((1, 2, 3, 4), (5, 6, 7, 8)))
    assert row.after(state, [(0, 1), (1, 1), (2, 1)], 1).ended is False
    assert row.after(state, [(0, 1), (1, 1), (2, 1), (3, 1)], 1).ended is True
    assert canvas(limit=10).after(state, [(0, 1), (1, 1)], 1).ended is True


def test_eos_ends_a_row_once_everything_before_it_is_revealed() -> None:
    row = canvas(eos=frozenset({3}))
    assert not row.after(row.first(), [(2, 3)], 1).ended
    assert row.after(row.first(), [(1, 6), (2, 3)], 1).ended
    assert not canvas(prompt=(1, 2, 3, 4, 3), eos=frozenset({3})).after(row.first(), [(3, 6)], 1).ended
    assert row.cut([6, 3, 8]) == [6, 3]


def step(
    settings: SamplerSettings, scores: list[float], state: State | None = None, row: Canvas | None = None
) -> State:
    row = row or canvas(prompt=(1, 2, 3, 4), limit=8)
    reading = Reading([5, 6, 7, 8], scores, [], [])
    return Stepper(settings).step(row, state or row.first(), reading)


def test_orders_and_ties() -> None:
    assert step(SamplerSettings(), [0.1, 0.9, 0.9, 0.2]).tokens == (9, 6, 9, 9)
    assert step(SamplerSettings(order="left_to_right"), []).tokens == (5, 9, 9, 9)
    assert step(SamplerSettings(steps=2), [0.1, 0.9, 0.9, 0.2]).tokens == (9, 6, 7, 9)
    threshold = SamplerSettings(rule="threshold", threshold=0.5)
    assert step(threshold, [-1.0, 2.0, 1.0, -2.0]).tokens == (9, 6, 7, 9)
    assert step(threshold, [-3.0, -2.0, -1.0, -2.0]).tokens == (9, 9, 7, 9)


def test_the_first_steps_take_the_remainder() -> None:
    row, settings = canvas(prompt=(1, 2, 3, 4), limit=8), SamplerSettings(steps=3)
    first = step(settings, [3.0, 2.0, 1.0, 0.0])
    assert first.tokens == (5, 6, 9, 9)
    second = Stepper(settings).step(row, first, Reading([5, 6, 7, 8], [0.0] * 4, [], []))
    assert second.tokens == (5, 6, 7, 9)


def test_ancestral_leaves_positions_at_the_rate_of_the_schedule() -> None:
    settings = SamplerSettings(rule="ancestral", steps=4)
    clocks = []
    for seed in range(400):
        row = Canvas((1,), 2, 1, 9, seed=seed, aligned=False)
        reading = Reading([5], [0.0], [], [])
        state = row.first()
        needs = Stepper(settings).needs(row, state)
        assert needs == [0]
        clocks.append(Stepper(settings).step(row, state, reading).clock)
    counts = [clocks.count(value) for value in (1, 2, 3, 4)]
    assert scipy_stats.chisquare(counts).pvalue > 0.01


def test_confidence_does_not_saturate() -> None:
    logits = torch.tensor([[40.0, 0.0, 0.0], [45.0, 0.0, 0.0]])
    chosen = torch.tensor([0, 0])
    assert logits.softmax(-1)[0, 0] == logits.softmax(-1)[1, 0] == 1.0
    odds = log_odds(logits, chosen)
    assert odds[0] < odds[1]
    small = torch.tensor([[0.3, -1.0, 0.5]], dtype=torch.float64)
    p = small.softmax(-1)[0, 2]
    assert torch.allclose(log_odds(small, torch.tensor([2]))[0], torch.log(p / (1 - p)))


def test_states_share_finished_blocks_and_see_only_ancestors() -> None:
    full = State(4, (9, 9), 0, 2, ((1, 2),))
    packing = Packing.of([State(2, (1, 9), 0, 1, ()), full, full._replace(tokens=(3, 9))])
    assert packing.parents == [ROOT, ROOT, 1, 1]
    assert (packing.starts, packing.ends, packing.path(1)) == ([2, 2, 4, 4], [0, 2, 3], [1])
    visible = own_mask((ROOT, ROOT, 1, PAD), 2, torch.float64, CPU) == 0
    blocks = visible[::2, ::2].int().tolist()
    assert blocks == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]]
    assert torch.equal(visible[::2, ::2], visible[1::2, 1::2])


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("shift", [False, True])
def test_cached_blocks_equal_the_full_forward_and_can_be_run_again(attention: str, shift: bool) -> None:
    """A cached bidirectional block over its prefix is the block-causal full forward (specs/diffusion.md, test 9)."""
    model = build(2, block=4, attention=attention, logit_shift=shift)
    run = begin(model, prompts((9, 14)), 8, {})
    canvases = run.memory.canvases
    denoiser = Denoiser.of(model)
    memories = [
        ExactMemory(denoiser, canvases),
        ExactMemory(denoiser, canvases, "batch"),
        FullMemory(denoiser, canvases),
    ]
    found = []
    for memory in memories:
        states = [row.first() for row in canvases]
        memory.evaluate([[state] for state in states])
        kept = [memory.keep(row, 0, state) for row, state in enumerate(states)]
        memory.finish_round()
        seen = []
        for _ in range(2):
            passed = memory.evaluate(
                [[s, row.after(s, [(row.masked(s)[0], 3)], 1)] for row, s in zip(canvases, kept, strict=True)]
            )
            places = [passed.index(row, i, o) for row in range(2) for i in range(2) for o in range(4)]
            seen.append(passed.hidden[places])
        assert torch.allclose(seen[0], seen[1], atol=1e-12)
        found.append(seen[0])
    assert torch.allclose(found[0], found[1], atol=1e-10)
    assert torch.allclose(found[0], found[2], atol=1e-10)
    text = [token for block in kept[0].done or canvases[0].first().done for token in block]
    ids = torch.tensor([[*text, *kept[0].tokens]])
    logits = model(input_ids=ids).logits[0, -4:]
    ours = denoiser.logits(found[0][:4])
    keep = list(range(MASK))
    assert torch.allclose(logits[:, keep], ours[:, keep], atol=1e-9)


def test_dual_cache_refreshes_at_block_boundaries_only() -> None:
    model = build(2, BIDIRECTIONAL, 4)
    run = begin(model, prompts((5,)), 8, {"cache": "dual"})
    memory = run.memory
    assert isinstance(memory, DualMemory)
    first = run.lanes[0].state
    assert memory.evaluate([[first]]).calls == 1
    full = FullMemory(memory.denoiser, memory.canvases).evaluate([[first]])
    again = memory.evaluate([[first]])
    pairs = [(full.index(0, 0, o), again.index(0, 0, o)) for o in range(4)]
    assert all(torch.allclose(full.hidden[a], again.hidden[b], atol=1e-10) for a, b in pairs)
    stored = memory.cache.prefix[0]
    memory.evaluate([[run.lanes[0].canvas.after(first, [(0, 1)], 1)]])
    assert memory.cache.prefix[0] == stored == 13


def test_keeping_blocks_with_ids_beyond_one_hundred_thousand() -> None:
    """Neighbouring large ids are told apart: equality is exact, never within a tolerance."""
    model = build(0, block=4, vocabulary=100_040, layers=1)
    mask = model.config.mask_token_id
    row = Canvas((1, 2, 3, 4), 8, 4, mask)
    states = [row.after(row.first(), [(0, token)], 1) for token in (100_010, 100_011)]
    assert states[0] != states[1]
    memory = ExactMemory(Denoiser.of(model), [row])
    passed = memory.evaluate([states])
    assert not torch.allclose(passed.hidden[passed.index(0, 0, 1)], passed.hidden[passed.index(0, 1, 1)])


def test_the_cache_keeps_and_drops_rows() -> None:
    cache = BlockCache(2, 1, 0)
    table = torch.arange(2 * 6, dtype=torch.float64).view(2, 1, 6, 1)
    cache.update(table, table, 0)
    cache.keep(0, 0, 2)
    cache.keep(0, 4, 2)
    cache.keep(1, 2, 2)
    cache.finish_round()
    assert (cache.prefix, cache.base) == ([4, 2], 4)
    keys, _ = cache.update(table[:, :, :1], table[:, :, :1], 0)
    assert keys[0, 0, :4, 0].tolist() == [0, 1, 4, 5]
    assert keys[1, 0, :2, 0].tolist() == [8, 9]
    cache.keep_rows([1])
    assert (cache.prefix, cache.base) == ([2], 2)
    keys, _ = cache.update(table[:1, :, :1], table[:1, :, :1], 0)
    assert keys[0, 0, :2, 0].tolist() == [8, 9]


def test_cost_model() -> None:
    costs = CallCosts((1, 2, 4), (1.0, 1.1, 1.5))
    assert [costs.v(r) for r in (1, 2, 3, 4, 6)] == pytest.approx([1.0, 1.1, 1.3, 1.5, 1.9])
    assert predicted_speedup([0.8, 0.5, 0.0], costs) == pytest.approx(2.2 / 1.5)
    assert predicted_speedup([1.0], costs, draft_calls=1, c=0.9) == pytest.approx(2 / 2.0)


def test_a_calibrated_graph_keeps_prefixes_before_paths() -> None:
    step_, swap = (0, 0), (1, 0)
    paths = [(step_, step_), (step_, step_), (swap, step_)]
    assert most_travelled(paths, 3) == [(step_,), (step_, step_), (swap,)]
    assert as_nodes([(step_,), (step_, step_), (swap, step_)], 4) == [
        (0, step_),
        (1, step_),
        (0, swap),
        (3, step_),
    ]
    assert as_nodes([(swap, step_)], 1) == [(0, swap)]
