"""Parts of sparse attention: grouped attention, scores, selection, working set, budgets, costs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ssd_infer.engine.cache import RowCache
from ssd_infer.engine.kernels import flex
from ssd_infer.engine.kernels import grouped as attention
from ssd_infer.engine.kernels.grouped import FullAttention, prefill_attention, window_attention
from ssd_infer.engine.kernels.layers import attention_view, unsupported_reason
from ssd_infer.engine.kernels.listener import Probs
from ssd_infer.engine.kernels.reads import Reads
from ssd_infer.engine.target import Target
from ssd_infer.engine.window import Geometry, Window
from ssd_infer.strategies.sparse_attention.quest import Quest
from ssd_infer.strategies.sparse_attention.selectors import (
    Budget,
    Pillar,
    Shape,
    SnapKV,
    Streaming,
    Vegas,
    highest,
)
from ssd_infer.strategies.sparse_attention.slot_budget import batch_width, budget
from ssd_infer.strategies.sparse_attention.sparse_costs import SparseCosts, measure
from ssd_infer.strategies.sparse_attention.working_set import WorkingSet
from ssd_infer.tuning.rounds import expected_tokens
from tests.conftest import FAMILIES, ModelFactory

B, H, KV, T, D, CAP = 3, 6, 2, 4, 8, 40
STARTS = [20, 5, 31]


def geometry(capacity: int = CAP) -> Geometry:
    """Return tables without rotary embeddings."""
    return Geometry(
        capacity,
        torch.float64,
        torch.device("cpu"),
        None,
        implicit_causal=False,
        band=8,
    )


@pytest.fixture
def tensors() -> tuple[Tensor, Tensor, Tensor]:
    """Random queries `(B, H, T, D)`, keys and values `(B, KV, CAP, D)`."""
    torch.manual_seed(0)
    shapes = [(B, H, T, D), (B, KV, CAP, D), (B, KV, CAP, D)]
    query, key, value = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    return query, key, value


def dense(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, starts: list[int]
) -> tuple[Tensor, Tensor]:
    """Return output `(B, T, H, D)` and probabilities `(B, H, T, S)`, written without any grouping."""
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = torch.einsum("bhtd,bhsd->bhts", query, key) * scaling
    own = torch.tensor(starts)[:, None] + torch.arange(query.shape[2])
    hidden = torch.arange(key.shape[2]) > own[..., None]
    probs = scores.masked_fill(hidden[:, None], -torch.inf).softmax(-1)
    return torch.einsum("bhts,bhsd->bthd", probs, value), probs


class Ear:
    """Collect probabilities into one tensor `(B, KV, G, T, S)`."""

    def __init__(self) -> None:
        self.probs = torch.zeros(B, KV, H // KV, T, CAP)
        self.blocks = 0

    def hear(
        self, layer: int, rows: slice, heads: slice, probs: Probs, starts: list[int], first: int = 0
    ) -> None:
        assert layer == 7
        assert len(starts) == probs.weights.shape[0]
        self.probs[rows, heads, :, :, first : first + probs.slots] = probs.weights
        self.blocks += 1


@pytest.mark.parametrize(
    ("block", "few", "alone", "blocks"),
    [(4 << 20, 4, False, 1), (4 << 20, 99, True, 1), (4096, 4, False, 3), (1, 4, True, 6)],
)
def test_window_attention_is_dense_attention(
    tensors: tuple[Tensor, Tensor, Tensor],
    monkeypatch: pytest.MonkeyPatch,
    block: int,
    few: int,
    alone: bool,
    blocks: int,
) -> None:
    """Whether cut into blocks of rows, computed head by head, or with the few queries of a plain step as columns."""
    monkeypatch.setattr(attention, "_BLOCK_BYTES", block)
    monkeypatch.setattr(attention, "_FEW", few)
    monkeypatch.setattr(attention, "_alone", lambda *_: alone)
    monkeypatch.setattr(attention, "pays", lambda *_: alone)
    query, key, value = tensors
    window, ear = Window(geometry(), STARTS, T), Ear()
    out = window_attention(7, query, key[:, :, :35], value[:, :, :35], 0.3, window, ear)
    expected, probs = dense(query, key[:, :, :35], value[:, :, :35], 0.3, STARTS)
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(ear.probs.flatten(1, 2)[..., :35], probs.float(), atol=1e-6, rtol=0)
    assert ear.blocks == blocks


@pytest.mark.parametrize("starts", [STARTS, [31] * B, [30, 31, 31]])
def test_slots_past_the_window_are_never_seen(
    tensors: tuple[Tensor, Tensor, Tensor], starts: list[int]
) -> None:
    """Products read on to the next multiple of their alignment; what lies there has no weight."""
    query, key, value = tensors
    key[:, :, 35:], value[:, :, 35:] = 50.0, 1e6
    window, ear = Window(geometry(), starts, T), Ear()
    out = window_attention(7, query, key, value, 0.3, window, ear)
    expected, probs = dense(query, key[:, :, :35], value[:, :, :35], 0.3, starts)
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(ear.probs.flatten(1, 2)[..., :35], probs.float(), atol=1e-6, rtol=0)
    assert not ear.probs[..., 35:].any()


@pytest.mark.parametrize("starts", [STARTS, [31] * B])
def test_the_fused_path_is_the_plain_one(
    tensors: tuple[Tensor, Tensor, Tensor], monkeypatch: pytest.MonkeyPatch, starts: list[int]
) -> None:
    """Where there is no accelerator flex attention runs uncompiled: another program for the same function."""
    monkeypatch.setattr(flex, "_BLOCK", 16)
    query, key, value = (part.float() for part in tensors)
    window, fused, heard = Window(geometry(), starts, T), Ear(), Ear()
    arguments = (7, query, key[:, :, :35], value[:, :, :35], 0.3, window)
    out = flex.flex_window_attention(*arguments, fused)
    torch.testing.assert_close(out, window_attention(*arguments, heard), atol=1e-5, rtol=0)
    torch.testing.assert_close(fused.probs, heard.probs, atol=1e-5, rtol=0)
    assert fused.blocks == 3
    pillars = [Pillar(shape(), Budget(0.1, 4)) for _ in range(2)]
    flex.flex_window_attention(*arguments, pillars[0])
    window_attention(*arguments, pillars[1])
    torch.testing.assert_close(pillars[0].scores, pillars[1].scores, atol=1e-5, rtol=0)


def test_rows_of_equal_length_share_a_block(tensors: tuple[Tensor, Tensor, Tensor]) -> None:
    query, key, value = tensors
    window, ear = Window(geometry(), [30] * B, T), Ear()
    out = window_attention(7, query, key, value, 0.3, window, ear)
    torch.testing.assert_close(out, dense(query, key, value, 0.3, [30] * B)[0], atol=1e-6, rtol=0)
    assert ear.blocks == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_stays_near(tensors: tuple[Tensor, Tensor, Tensor], dtype: torch.dtype) -> None:
    query, key, value = (part.to(dtype) for part in tensors)
    window = Window(geometry(), STARTS, T)
    out = window_attention(0, query, key[:, :, :35], value[:, :, :35], 0.3, window, None)
    expected, _ = dense(query.double(), key[:, :, :35].double(), value[:, :, :35].double(), 0.3, STARTS)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, atol=0.04, rtol=0)


def test_autocast_does_not_stop_attention(tensors: tuple[Tensor, Tensor, Tensor]) -> None:
    query, key, value = (part.float() for part in tensors)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = window_attention(
            0, query, key[:, :, :35], value[:, :, :35], 0.3, Window(geometry(), STARTS, T), None
        )
    expected, _ = dense(query.double(), key[:, :, :35].double(), value[:, :, :35].double(), 0.3, STARTS)
    torch.testing.assert_close(out.double(), expected, atol=0.04, rtol=0)


def test_prefill_attention_is_causal(tensors: tuple[Tensor, Tensor, Tensor]) -> None:
    query, key, value = tensors
    out = prefill_attention(query, key[:, :, :T], value[:, :, :T], 0.3)
    torch.testing.assert_close(out, dense(query, key[:, :, :T], value[:, :, :T], 0.3, [0] * B)[0])


def shape(layers: int = 8, prompts: tuple[int, ...] = tuple(STARTS)) -> Shape:
    """Return the sizes used here."""
    return Shape(layers, KV, CAP, prompts, torch.device("cpu"))


def test_pillar_scores_are_the_papers(tensors: tuple[Tensor, Tensor, Tensor]) -> None:
    query, key, value = tensors
    pillar = Pillar(shape(), Budget(0.1, 4))
    window_attention(7, query, key[:, :, :35], value[:, :, :35], 0.3, Window(geometry(), STARTS, T), pillar)
    probs = dense(query, key[:, :, :35], value[:, :, :35], 0.3, STARTS)[1]
    group = H // KV
    for row, start in enumerate(STARTS):
        total = start + T
        for head in range(KV):
            for slot in range(total):
                mass = probs[row, head * group : (head + 1) * group, :, slot].sum()
                wanted = mass / (group * min(T, total - slot))
                assert float(pillar.scores[7, row, head, slot]) == pytest.approx(float(wanted), abs=1e-6)


@pytest.mark.parametrize("alone", [False, True])
def test_vegas_averages_first_and_last_query_over_all_heads(
    tensors: tuple[Tensor, Tensor, Tensor], monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    monkeypatch.setattr(attention, "_alone", lambda *_: alone)
    monkeypatch.setattr(attention, "pays", lambda *_: alone)
    query, key, value = tensors
    vegas = Vegas(shape(), Budget(0.1, 4))
    for _ in range(2):  # the second pass replaces the first
        window_attention(
            7, query, key[:, :, :35], value[:, :, :35], 0.3, Window(geometry(), STARTS, T), vegas
        )
    probs = dense(query, key[:, :, :35], value[:, :, :35], 0.3, STARTS)[1]
    wanted = (probs[:, :, 0] + probs[:, :, -1]).sum(dim=1)
    torch.testing.assert_close(vegas.scores[7, :, 0, :35], wanted.float(), atol=1e-5, rtol=0)


def test_prefill_shows_the_last_queries_of_each_prompt(tensors: tuple[Tensor, Tensor, Tensor]) -> None:
    torch.manual_seed(1)
    lengths = (40, 3, 34)
    query = torch.randn(B, H, CAP, D, dtype=torch.float64)
    _, key, value = tensors
    selector = SnapKV(shape(prompts=lengths), Budget(0.2, 4))
    cache = RowCache(B, CAP, 8)
    cache.aim(Window(geometry(), [0] * B, CAP))
    FullAttention(cache, selector, lengths, selector.prompt_queries).attend(7, query, key, value, 0.3)
    probs = dense(query, key, value, 0.3, [0] * B)[1]
    for row, length in enumerate(lengths):
        votes = probs[row, :, max(0, length - 32) : length, :length].sum(dim=1)
        kernel = torch.ones(H, 1, 5, dtype=torch.float64) / 5
        pooled = torch.nn.functional.conv1d(votes[None], kernel, padding=2, groups=H)[0]
        wanted = pooled.unflatten(0, (KV, -1)).sum(dim=1)
        torch.testing.assert_close(selector.scores[7, row, :, :length], wanted.float(), atol=1e-5, rtol=0)


def test_highest_takes_forced_slots_and_never_stale_ones() -> None:
    torch.manual_seed(0)
    scores = torch.rand(2, 3, KV, CAP)
    scores[..., 30:] = 9.0  # stale leftovers of a longer window
    before = scores.clone()
    lengths, forced = [30, 25, 6], [27, 24, 5]
    choice = highest(scores, lengths, forced, 10)
    assert choice.slots.shape == (2, 3, KV, 10)
    for row in (0, 1):
        length, first = lengths[row], forced[row]
        for layer in range(2):
            for head in range(KV):
                found = set(choice.slots[layer, row, head].tolist())
                rest = before[layer, row, head, :first].topk(10 - (length - first)).indices.tolist()
                assert found == set(range(first, length)) | set(rest)
    assert choice.slots[1, 2, 0].tolist() == list(range(10))
    assert choice.hidden is not None
    assert choice.hidden.sum(dim=1).tolist() == [0, 0, 4]


def test_streaming_reads_sinks_and_the_latest() -> None:
    streaming = Streaming(shape(prompts=(30, 7)), Budget(0.1, 8))
    streaming.committed([2, 0])
    choice = streaming.choose([30, 7])
    assert choice.slots[0, 0, 0].tolist() == [0, 1, 2, 3, 26, 27, 28, 29]
    assert choice.slots[0, 1, 0, :7].tolist() == list(range(7))
    assert choice.hidden is not None
    assert choice.hidden.tolist() == [[False] * 8, [False] * 7 + [True]]


def test_reads_by_hand() -> None:
    reads = Reads()
    reads.drafted([100, 50], 3, 10)  # 10, 11, 12 slots, twice
    reads.verified([100, 50], [3, 3], [3, 0])  # 104 and 54 slots for 4 and 1 tokens
    assert reads.report(2) == {
        "slots_per_token_draft": 66 / 5,
        "slots_per_token_verify": 158 / 5,
        "kv_bytes_per_token": 2 * 224 / 5,
        "kv_bytes_per_token_plain": 2 * (101 + 102 + 103 + 104 + 51) / 5,
    }


def test_budgets() -> None:
    assert budget(1000, 0.05, 8) == 50
    assert budget(1001, 0.05, 8) == 51
    assert budget(1000, 0.05, 192) == 192
    assert budget(100, 0.05, 192) == 100
    assert batch_width([1000, 10], [9, 3], 0.05, 8) == 50
    assert batch_width([20, 10], [9, 3], 0.05, 2) == 9


def test_a_working_set_returns_the_chosen_slots_then_the_drafts() -> None:
    torch.manual_seed(0)
    shared, window = RowCache(2, 12, 2), Window(geometry(12), [0, 0], 10)
    keys = torch.randn(2, KV, 10, D)
    for layer in range(2):
        shared.aim(window)
        shared.update(keys + layer, -keys, layer)
    slots = torch.randint(0, 10, (2, 2, KV, 4))
    working = WorkingSet(shared)
    working.gather(slots, torch.tensor([[False] * 4, [False, False, False, True]]), room=2)
    drafts = [torch.randn(2, KV, 1, D) for _ in range(2)]
    for step, draft in enumerate(drafts):
        working.at(step)
        for layer in range(2):
            found, values = working.update(draft, draft, layer)
            index = slots[layer][..., None].expand(-1, -1, -1, D)
            assert torch.equal(found[:, :, :4], (keys + layer).gather(2, index))
            assert torch.equal(values[:, :, :4], (-keys).gather(2, index))
            assert torch.equal(found[:, :, 4:], torch.cat(drafts[: step + 1], dim=2))
    query = torch.randn(2, H, 1, D)
    out = working.attend(1, query, found, values, 0.3)
    alone = attention.selected_attention(
        query[1:], found[1:, :, [0, 1, 2, 4, 5]], values[1:, :, [0, 1, 2, 4, 5]], 0.3, None
    )
    torch.testing.assert_close(out[1:], alone)


def test_quest_reads_every_page_that_can_hold_the_best_key() -> None:
    """The bound of a page is never below a score inside it; with room for all pages the output is dense attention."""
    torch.manual_seed(0)
    shared, length = RowCache(2, 80, 3), 70
    table = geometry(80)
    shared.aim(Window(table, [0, 0], length))
    keys, values = torch.randn(2, KV, length, D), torch.randn(2, KV, length, D)
    for layer in range(3):
        shared.update(keys, values, layer)
    quest = Quest(Shape(3, KV, 80, (length, length), torch.device("cpu")), Budget(1.0, 1))
    lengths = [70, 50]
    quest.prepare(shared, lengths)
    query = torch.randn(2, H, 1, D)
    bounds = quest._bounds(2, query)
    scores = (query.view(2, KV, -1, D) @ keys.transpose(-1, -2)).amax(dim=2)
    assert bool((bounds[..., :4] >= scores[..., :64].unflatten(-1, (4, 16)).amax(-1) - 1e-5).all())
    shared.aim(Window(table, lengths, 1))
    fresh = torch.randn(2, KV, 1, D)
    key, value = shared.update(fresh, fresh, 2)
    out = quest.attend(2, query, key, value, 0.3)
    torch.testing.assert_close(out, dense(query, key, value, 0.3, lengths)[0])


@pytest.mark.parametrize("name", FAMILIES)
def test_grouped_layers_compute_what_the_model_computes(tiny_model: ModelFactory, name: str) -> None:
    model = tiny_model(name, **({"sliding_window": None} if name == "mistral" else {}))
    target = Target.of(model)
    assert unsupported_reason(target) is None
    ids = torch.randint(2, 97, (2, 30), generator=torch.Generator().manual_seed(0))
    table = target.geometry(30)
    with torch.inference_mode():
        cache = target.new_cache(2, 30)
        view = attention_view(target, FullAttention(cache))
        parts = []
        for first, last in ((0, 20), (20, 25), (25, 26), (26, 30)):
            window = Window(table, [first] * 2, last - first)
            hidden = target.embed_at(ids[:, first:last], window, cache)
            parts.append(target.run(hidden, window, cache, layers=view))
        found = target.logits(torch.cat(parts, dim=1))
        torch.testing.assert_close(found, model(input_ids=ids).logits, atol=1e-4, rtol=1e-4)
    own = {id(weight) for weight in model.parameters()}
    assert all(id(weight) in own for layer in view for weight in layer.parameters())


def test_attention_of_another_kind_is_refused(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A family whose attention does more than softmax is found out by comparing a pass, not by its name."""
    model = tiny_model()
    forward = attention.window_attention
    monkeypatch.setattr(
        attention, "window_attention", lambda *arguments: forward(*arguments[:4], 0.9, *arguments[5:])
    )
    assert "off by" in str(unsupported_reason(Target.of(model)))


def test_rows_that_end_leave_their_place_without_a_copy() -> None:
    cache = RowCache(4, 6, 1)
    cache.aim(Window(geometry(6), [0] * 4, 5))
    keys = torch.randn(4, KV, 5, D)
    cache.update(keys, -keys, 0)
    home = cache.held(0)[0].data_ptr()
    cache.keep_rows(torch.tensor([0, 2, 3]))
    cache.keep_rows(torch.tensor([1, 2]))
    found, values = cache.held(0)
    assert torch.equal(found[:, :, :5], keys[[2, 3]])
    assert torch.equal(values[:, :, :5], -keys[[2, 3]])
    assert (found.data_ptr(), cache.batch) == (home, 2)


def test_predicted_speedup_by_hand() -> None:
    costs = SparseCosts(10.0, (10, 20), (2.0, 3.0), (1.0, 2.0), (2, 5), (12.0, 15.0))
    assert expected_tokens([0.5, 0.5, 0.5]) == 1.875
    assert expected_tokens([1.0, 0.5]) == 2.5
    assert costs.reading(10).seconds(1) == 1 + 2 + 12
    assert costs.reading(10).seconds(4) == 1 + 8 + 15
    assert costs.reading(15).seconds(4) == 1.5 + 10 + 15
    assert costs.reading(10).speedup(expected_tokens([1.0] * 4), 4) == pytest.approx(50 / 24)
    assert costs.best_gamma(10, [1.0] * 4) == (4, pytest.approx(50 / 24))
    assert costs.best_gamma(10, [0.05] * 4)[0] == 1


def test_costs_are_measured_without_touching_the_model(tiny_model: ModelFactory) -> None:
    model = tiny_model()
    before, state = model.config.to_dict(), torch.get_rng_state()
    costs = measure(Target.of(model), context=640, batch=2)
    assert costs.budgets == (64, 128)
    assert min(costs.plain, *costs.draft, *costs.select, *costs.verify) > 0
    assert model.config.to_dict() == before
    assert torch.equal(torch.get_rng_state(), state)


def test_quest_counts_what_it_reads() -> None:
    """Of six layers two read 70 and 50 slots; four read three pages, a tail of 6, and extremes of 4 and 3 pages."""
    quest = Quest(Shape(6, KV, 80, (70, 50), torch.device("cpu")), Budget(0.05, 1))
    assert quest.read([70, 50]) == round((2 * 120 + 4 * (2 * 54 + 7)) / 12)
    everything = Quest(Shape(2, KV, 80, (70, 50), torch.device("cpu")), Budget(0.05, 1))
    assert everything.read([70, 50]) == 60
