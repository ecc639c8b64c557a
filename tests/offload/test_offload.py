"""Experts on disk: exact output at any capacity, bounded memory, clear errors, figures that add up."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import ssd_infer
from ssd_infer.engine.prefilled import prefill_once
from ssd_infer.engine.target import Target
from ssd_infer.errors import CheckpointError, ConfigError, OutputError
from ssd_infer.offload.files import DENSE, EXPERTS, INDEX
from ssd_infer.offload.layout import moe_layers
from ssd_infer.offload.offload import evaluation_model, load_offloaded, make_store, offload_to_memory
from ssd_infer.offload.policies import POLICIES, Policy, belady_loads
from ssd_infer.offload.resident import ResidentSet
from ssd_infer.offload.store import DiskStore, reserve
from ssd_infer.strategies.skip_layers.saved_search import search_environment
from tests.conftest import build_model
from tests.offload.support import EXPERTS as E
from tests.offload.support import FAMILIES, TOP_K, build_moe, greedy, offloaded, stored

ROWS = [[3, 4, 5, 6, 7], [9, 8]]
DRAFT = {"k_draft": 2, "gamma": 4}


def let_readers_keep_up(resident: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go on after naming only when nothing is left to read ahead, so that a busy machine changes nothing."""
    name = resident.name

    def patiently(layer: int, experts: Any) -> None:
        name(layer, experts)
        deadline = time.monotonic() + 10
        while resident._coming or resident._active:
            assert time.monotonic() < deadline, "the readers are stuck"
            time.sleep(1e-4)

    monkeypatch.setattr(resident, "name", patiently)


def run(
    model: Any, draft: str | None = "reduced_experts", rows: list[list[int]] = ROWS, **params: Any
) -> Any:
    settings = None if draft is None else DRAFT | params
    return ssd_infer.generate(model, rows, draft=draft, draft_params=settings, max_new_tokens=16)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[int]]]:
    """A saved model with its store, and its greedy text."""
    folder = tmp_path_factory.mktemp("moe")
    return folder, greedy(stored(folder), ROWS)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_decodes_from_disk(name: str, tmp_path: Path) -> None:
    expected = greedy(stored(tmp_path, name), ROWS)
    loaded, resident = offloaded(tmp_path, 0.26)
    assert run(loaded, None).sequences == expected
    assert run(loaded).sequences == expected
    found = loaded.model.generate(torch.tensor(ROWS[:1]), do_sample=False, max_new_tokens=16, pad_token_id=0)
    assert found[0, len(ROWS[0]) :].tolist() == expected[0]
    assert len(resident.resident()) <= resident.capacity


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("slots", [TOP_K, TOP_K + 1, 13, 24])
def test_exact_at_any_capacity(store: tuple[Path, list[list[int]]], policy: str, slots: int) -> None:
    """Two rows and a prompt of five tokens need up to eight experts of a layer; four slots have to do."""
    folder, expected = store
    size = DiskStore(folder / "experts").expert_bytes
    loaded, resident = offloaded(folder, slots * size, policy=policy, trace=True)
    assert resident.capacity == slots
    assert run(loaded, None).sequences == expected
    counters = resident.counters
    assert counters.hits + counters.reads == counters.asked  # nothing was named, so nothing was read ahead
    visits = counters.visits
    assert counters.reads >= belady_loads(visits, slots)
    resident.reset_counters()
    for rows in (ROWS, ROWS[:1]):
        assert run(loaded, rows=rows).sequences == expected[: len(rows)]
    assert len(resident.resident()) <= slots


def test_reads_ahead_only_what_was_named(
    store: tuple[Path, list[list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, expected = store
    loaded, resident = offloaded(folder, 0.5)
    let_readers_keep_up(resident, monkeypatch)
    assert run(loaded, rows=ROWS[:1]).sequences == expected[:1]
    ahead = resident.counters.ahead
    resident.reset_counters()
    assert run(loaded, rows=ROWS[:1], prefetch=False).sequences == expected[:1]
    assert resident.counters.ahead == 0 < ahead


def test_a_draft_of_resident_experts_never_waits(store: tuple[Path, list[list[int]]]) -> None:
    folder, _ = store
    loaded, resident = offloaded(folder, 0.5, trace=True)
    target = Target.of(loaded.model)
    run(loaded, None)
    before = resident.resident()
    from ssd_infer.strategies.reduced_experts.expert_views import reduced_view

    resident.reset_counters()
    view = reduced_view(target, TOP_K, resident=resident)
    cache, geometry = target.new_cache(1, 4), target.geometry(4)
    from ssd_infer.engine.window import Window

    with torch.inference_mode():
        window = Window(geometry, [0], 4)
        hidden = target.embed_at(torch.tensor([[5, 6, 7, 8]]), window, cache)
        target.run(hidden, window, cache, layers=view)
    assert resident.counters.reads == 0
    assert resident.counters.hits == resident.counters.asked > 0
    assert resident.resident() == before


def test_figures_add_up(store: tuple[Path, list[list[int]]]) -> None:
    folder, _ = store
    loaded, resident = offloaded(folder, 0.5, trace=True)
    out = run(loaded, rows=ROWS[:1])
    report = resident.counters.report(out.stats.total.emitted, resident.store.expert_bytes)
    assert report["bytes"] == report["reads"] * resident.store.expert_bytes
    assert report["bytes_per_token"] == report["bytes"] / 16
    assert resident.counters.bound(resident.capacity)["belady_reads"] <= report["reads"] - report["wasted"]
    assert out.stats.report["experts"]["reads"] == report["reads"]
    json.dumps(out.stats.report)


def test_a_generation_leaves_the_bound_to_those_who_ask(
    store: tuple[Path, list[list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Belady's bound takes seconds for a long trace, and a drafting generation is timed with its report."""
    loaded, resident = offloaded(store[0], 0.5, trace=True)
    monkeypatch.setattr(type(resident.counters), "bound", lambda *_: pytest.fail("a generation asked for it"))
    monkeypatch.setattr(
        "ssd_infer.offload.counters.belady_loads", lambda *_: pytest.fail("a generation ran it")
    )
    out = run(loaded, rows=ROWS[:1])
    assert resident.counters.visits
    assert "visits" not in out.stats.report["experts"]


def replay(visits: list[tuple[int, list[int]]], capacity: int, policy: Policy) -> int:
    """Return the loads `policy` needs for `visits` with one pool of `capacity` experts and no look ahead."""
    held: set[tuple[int, int]] = set()
    loads = 0
    for layer, experts in visits:
        needed = [(layer, expert) for expert in experts]
        for key in sorted(needed, key=lambda key: key not in held):
            if key not in held:
                loads += 1
                if len(held) >= capacity:
                    held.remove(min(held, key=lambda key: (policy.worth(key), key)))
                held.add(key)
            policy.touch(key, 1)
    return loads


def test_lru_never_beats_belady() -> None:
    generator = torch.Generator().manual_seed(3)
    visits = [(step % 3, torch.randperm(E, generator=generator)[:TOP_K].tolist()) for step in range(200)]
    for capacity in (4, 6, 12, 24):
        best = belady_loads(visits, capacity)
        for kind in POLICIES.values():
            assert replay(visits, capacity, kind()) >= best
    assert belady_loads(visits, 24) == 24
    assert belady_loads([(0, [0, 1]), (0, [2]), (0, [0, 1])], 2) == 3  # 2 passes through


def test_memory_holds_the_store_of_a_view(store: tuple[Path, list[list[int]]]) -> None:
    """A user's own model is offloaded in a view: same output, nothing of the model changed."""
    model = build_moe()
    target = Target.of(model)
    modules = {name: id(module) for name, module in model.named_modules()}
    layers, resident = offload_to_memory(model, 0.3)
    from ssd_infer.engine.window import Window

    ids = torch.arange(2, 8)[None]
    with torch.inference_mode():
        cache, window = target.new_cache(1, 6), Window(target.geometry(6), [0], 6)
        found = target.logits(target.run(target.embed_at(ids, window, cache), window, cache, layers=layers))
        assert torch.allclose(found, model(input_ids=ids).logits, atol=1e-10)
    assert {name: id(module) for name, module in model.named_modules()} == modules
    assert model.config._experts_implementation == "eager"
    assert resident.counters.reads > 0


def test_buffers_lie_side_by_side_and_apart() -> None:
    buffers = reserve(3, 5000)
    for value, buffer in enumerate(buffers, start=1):
        buffer.memory[:] = bytes([value]) * len(buffer.memory)
    for value, buffer in enumerate(buffers, start=1):
        buffer.expose(0, ((8, 16), (16, 8)), torch.uint8)
        assert len(buffer.memory) == 8192
        assert buffer.matrices is not None
        assert all(bool((part == value).all()) for part in buffer.matrices)
        assert buffer.matrices[0].data_ptr() % 4096 == 0


def test_a_budget_below_one_layers_need_is_refused(store: tuple[Path, list[list[int]]]) -> None:
    folder, _ = store
    with pytest.raises(ConfigError, match=r"experts\.budget: must hold the 4 experts.*try 0\.167"):
        load_offloaded(folder, 0.1)
    for budget in (0, math.nan, math.inf):
        with pytest.raises(ConfigError, match=r"experts\.budget: must be above 0"):
            load_offloaded(folder, budget)
    with pytest.raises(ConfigError, match=r"experts\.policy"):
        load_offloaded(folder, 0.5, policy="mru")
    access: Any = "Direct"
    with pytest.raises(ConfigError, match=r"experts\.access: is not a way to read.*direct, drop, cached"):
        load_offloaded(folder, 0.5, access=access)


def test_a_store_cut_short_in_the_middle_of_a_generation_is_an_error_and_no_text(tmp_path: Path) -> None:
    expected = greedy(stored(tmp_path), ROWS[:1])
    loaded, _ = offloaded(tmp_path, 0.2)
    seen: list[int] = []

    def cut(_row: int, tokens: list[int]) -> None:
        seen.extend(tokens)
        os.truncate(tmp_path / "experts" / EXPERTS, 8192)

    with pytest.raises(CheckpointError, match=r"ends inside expert \d of layer \d"):
        ssd_infer.generate(
            loaded, ROWS[:1], draft="reduced_experts", draft_params=DRAFT, max_new_tokens=16, streamer=cut
        )
    assert seen == expected[0][: len(seen)]
    assert len(seen) < 16


def test_a_forked_process_is_told_so_instead_of_waiting(
    store: tuple[Path, list[list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = store
    loaded, _ = offloaded(folder, 0.5)
    monkeypatch.setattr("ssd_infer.offload.resident.os.getpid", lambda: -1)
    with pytest.raises(RuntimeError, match="before the process was forked"):
        run(loaded)


def test_a_failed_pass_leaves_no_failure_behind(
    store: tuple[Path, list[list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two reads fail, the second after the pass has ended with the first; the disk is well again afterwards."""
    folder, _ = store
    disk, ended = DiskStore(folder / "experts"), threading.Event()
    resident = ResidentSet(disk, 6 * disk.expert_bytes, TOP_K)

    def fail(key: tuple[int, int], _into: Any) -> None:
        if key[1]:
            assert ended.wait(10)
        raise CheckpointError(f"expert {key[1]}")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "read", fail)
        with pytest.raises(CheckpointError, match="expert 0"):
            list(resident.visit(0, {0: 1, 1: 1}))
        ended.set()
        deadline = time.monotonic() + 10
        while resident._active:
            assert time.monotonic() < deadline, "the readers are stuck"
            time.sleep(1e-3)
    assert [expert for expert, _ in resident.visit(0, {2: 1, 1: 1})] != []


def test_a_store_of_earlier_weights_is_refused_and_an_evaluation_writes_it_again(tmp_path: Path) -> None:
    model = build_moe(dtype=torch.float32)
    model.save_pretrained(tmp_path)
    evaluation_model(str(tmp_path), 0.5, "float32", "cpu")
    with torch.no_grad():
        for part in model.parameters():
            part.mul_(1.5)
    model.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="was written from other weights"):
        load_offloaded(tmp_path, 0.5)
    loaded = evaluation_model(str(tmp_path), 0.5, "float32", "cpu")
    assert run(loaded, rows=ROWS[:1]).sequences == greedy(model, ROWS[:1])


def test_a_store_is_refused_when_a_single_expert_was_trained(tmp_path: Path) -> None:
    build_moe("qwen3_moe").save_pretrained(tmp_path)
    make_store(tmp_path)
    load_offloaded(tmp_path, 0.9)
    (file,) = tmp_path.glob("*.safetensors")
    held = load_file(file)
    name = next(name for name in held if "experts" in name and "down_proj" in name)
    held[name].view(-1)[-1] += 1
    save_file(held, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="was written from other weights"):
        load_offloaded(tmp_path, 0.9)


def test_a_store_written_anew_leaves_its_readers_the_old_one(tmp_path: Path) -> None:
    expected = greedy(stored(tmp_path), ROWS[:1])
    loaded, _ = offloaded(tmp_path, 0.2)
    other = build_moe()
    with torch.no_grad():
        for part in other.parameters():
            part.mul_(1.5)
    other.save_pretrained(tmp_path)
    make_store(tmp_path)
    assert run(loaded, rows=ROWS[:1]).sequences == expected
    assert not list((tmp_path / "experts").glob("*.part"))


def test_a_store_that_could_not_be_replaced_stays_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = greedy(stored(tmp_path), ROWS[:1])

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("safetensors.torch.save_file", full)
        with pytest.raises(OutputError, match="No space left on device"):
            make_store(tmp_path)
    assert sorted(path.name for path in (tmp_path / "experts").iterdir()) == sorted((DENSE, EXPERTS, INDEX))
    loaded, _ = offloaded(tmp_path, 0.5)
    assert run(loaded, rows=ROWS[:1]).sequences == expected


def test_damaged_and_missing_stores_are_refused(tmp_path: Path) -> None:
    stored(tmp_path)
    path = tmp_path / "experts" / EXPERTS
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    with pytest.raises(CheckpointError, match="bytes long, its header says"):
        load_offloaded(tmp_path, 0.5)
    path.write_bytes(b"\xff" * 64)
    with pytest.raises(CheckpointError, match="is damaged"):
        load_offloaded(tmp_path, 0.5)
    path.unlink()
    with pytest.raises(CheckpointError, match="no readable expert store"):
        load_offloaded(tmp_path, 0.5)
    path.write_bytes(whole)
    dense = tmp_path / "experts" / DENSE
    content = dense.read_bytes()
    dense.write_bytes(content[:-5])
    with pytest.raises(CheckpointError, match=r"dense\.safetensors' cannot be read"):
        load_offloaded(tmp_path, 0.5)
    dense.unlink()
    with pytest.raises(CheckpointError, match=r"dense\.safetensors' cannot be read"):
        load_offloaded(tmp_path, 0.5)
    dense.write_bytes(content)
    (tmp_path / "experts" / INDEX).write_text('{"version": 9, "shapes": [[1, 2]]}')
    with pytest.raises(CheckpointError, match=r"experts\.store"):
        load_offloaded(tmp_path, 0.5)


def test_the_store_of_another_model_is_refused(tmp_path: Path) -> None:
    stored(tmp_path / "one")
    build_moe(layers=2).save_pretrained(tmp_path / "two")
    with pytest.raises(CheckpointError, match="another model"):
        load_offloaded(tmp_path / "two", 0.5, store=tmp_path / "one" / "experts")


def test_a_store_that_cannot_be_written_or_made_says_so(tmp_path: Path) -> None:
    build_moe().save_pretrained(tmp_path / "moe")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        make_store(tmp_path / "moe", tmp_path / "file" / "store")
    build_model().save_pretrained(tmp_path / "dense")
    with pytest.raises(ConfigError, match="no routed experts"):
        make_store(tmp_path / "dense")


def test_reading_needs_no_writable_disk(tmp_path: Path) -> None:
    expected = greedy(stored(tmp_path), ROWS)
    for path in sorted(tmp_path.rglob("*"), reverse=True):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    loaded, _ = offloaded(tmp_path, 0.5)
    assert run(loaded).sequences == expected
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    for path in tmp_path.rglob("*"):
        path.chmod(0o755)


@pytest.mark.parametrize("access", ["drop", "cached"])
def test_other_ways_to_read_give_the_same(store: tuple[Path, list[list[int]]], access: Any) -> None:
    folder, expected = store
    loaded, _ = offloaded(folder, 0.5, access=access)
    assert run(loaded, rows=ROWS[:1]).sequences == expected[:1]


def test_a_store_is_plain_safetensors(store: tuple[Path, list[list[int]]]) -> None:
    from safetensors import safe_open

    folder, _ = store
    model = build_moe()
    with safe_open(str(folder / "experts" / EXPERTS), "pt") as file:
        assert len(file.keys()) == 3 * E
        first, second = moe_layers(model.model.layers)[1].matrices
        flat = torch.cat([first[5].reshape(-1), second[5].reshape(-1)])
        assert torch.equal(file.get_tensor("layers.1.experts.5"), flat)
    assert (folder / "experts" / DENSE).stat().st_size < (folder / "experts" / EXPERTS).stat().st_size * 2


def test_auto_works_on_disk(store: tuple[Path, list[list[int]]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ssd_infer.strategies.reduced_experts.expert_calibration._NEW_TOKENS", 24)
    folder, expected = store
    loaded, _ = offloaded(folder, 0.5)
    out = ssd_infer.generate(loaded, ROWS[:1], draft="reduced_experts", max_new_tokens=16)
    assert out.sequences == expected[:1]
    assert "predicted" in out.note


def test_an_evaluation_makes_the_store_and_keeps_to_its_precision(tmp_path: Path) -> None:
    model = build_moe(dtype=torch.float32)
    model.save_pretrained(tmp_path)
    loaded = evaluation_model(str(tmp_path), 0.5, "float32", "cpu")
    assert run(loaded, rows=ROWS[:1]).sequences == greedy(model, ROWS[:1])
    with pytest.raises(ConfigError, match="dtype: must be float32"):
        evaluation_model(str(tmp_path), 0.5, "bfloat16", "cpu")


def test_the_file_is_closed_with_its_store(store: tuple[Path, list[list[int]]]) -> None:
    import gc

    def opened() -> int:
        return sum(
            EXPERTS in str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()
        )

    folder, _ = store
    gc.collect()
    before = opened()
    loaded, resident = offloaded(folder, 0.5)
    run(loaded)
    assert opened() == before + 1
    del loaded, resident
    gc.collect()
    assert opened() == before


def test_readers_stop_with_the_set_they_read_for(store: tuple[Path, list[list[int]]]) -> None:
    import gc

    folder, _ = store
    disk = DiskStore(folder / "experts")
    before = set(threading.enumerate())
    resident = ResidentSet(disk, 6 * disk.expert_bytes, TOP_K)
    for _ in resident.visit(0, {0: 1, 1: 1}):
        pass
    readers = [
        one for one in threading.enumerate() if one.name.startswith("ssd-experts") and one not in before
    ]
    assert readers
    del resident
    gc.collect()
    for thread in readers:
        thread.join(5)
    assert not [thread for thread in readers if thread.is_alive()]


@pytest.mark.parametrize(
    ("draft", "params"), [("skip_set", {}), ("skip_set+bayes", {"search_seconds": 0.2}), ("swift", {})]
)
def test_drafts_that_search_do_so_with_experts_on_disk(
    store: tuple[Path, list[list[int]]], draft: str, params: dict[str, Any]
) -> None:
    """What identifies a model for a saved search must not read weights that are not in memory."""
    folder, expected = store
    loaded, _ = offloaded(folder)
    out = ssd_infer.generate(loaded, ROWS, draft=draft, draft_params=params, max_new_tokens=16)
    assert out.sequences == expected


def test_a_saved_search_belongs_to_the_experts_it_was_made_with(tmp_path: Path) -> None:
    found = []
    for seed in (0, 1):
        stored(tmp_path / str(seed), seed=seed)
        loaded, _ = offloaded(tmp_path / str(seed))
        found.append(search_environment(Target.of(loaded.model), do_sample=False))
    assert found[0]["experts"] != found[1]["experts"]
    assert found[0]["weights"] != found[1]["weights"]


def test_a_prefilled_row_of_a_model_with_experts_on_disk_is_found_again(
    store: tuple[Path, list[list[int]]], tmp_path: Path
) -> None:
    loaded, _ = offloaded(store[0])
    first, again = (prefill_once(Target.of(loaded.model), ROWS[0], tmp_path) for _ in range(2))
    assert first.first == again.first
    for name in ("keys", "values"):
        for held, found in zip(first.kept[name], again.kept[name], strict=True):
            assert torch.equal(held, found)
