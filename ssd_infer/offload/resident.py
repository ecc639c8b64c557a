"""A bounded set of experts in memory, filled from a store by reader threads.

A forward pass asks for the experts of one layer and gets them one by one as they arrive, the resident ones first; an
expert that was computed with may leave, one that is still needed may not. So a pass can need more experts than fit.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from ssd_infer.errors import ConfigError, Problem
from ssd_infer.offload.counters import ExpertCounters
from ssd_infer.offload.policies import POLICIES, Key, Policy
from ssd_infer.offload.store import ExpertBuffer, ExpertStore

Matrices = tuple[Tensor, Tensor]


@dataclass(slots=True, eq=False)
class Slot:
    """Room for one expert on the compute device."""

    buffer: ExpertBuffer
    device: Matrices | None = None
    """Tensors on an accelerator that `buffer` is copied to; None where the buffer itself is used."""
    ready: bool = False
    ahead: bool = False
    """Read ahead, and not used since."""

    @property
    def matrices(self) -> Matrices:
        """The expert in this slot."""
        found = self.buffer.matrices if self.device is None else self.device
        assert found is not None
        return found


class ResidentSet:
    """At most `budget_bytes` of experts, shared by all layers; each may keep its share of the slots for itself."""

    def __init__(
        self,
        store: ExpertStore,
        budget_bytes: int,
        top_k: int,
        policy: str = "ahead",
        device: torch.device | None = None,
        readers: int = 2,
        trace: bool = False,
    ) -> None:
        """Reserve the slots; raises ConfigError when not even the `top_k` experts of one token in one layer fit."""
        self.store, self.device = store, device or torch.device("cpu")
        self.capacity = min(budget_bytes // store.expert_bytes, len(store.keys))
        _check(budget_bytes, top_k, store, policy)
        self.policy: Policy = POLICIES[policy]()
        self.counters, self.trace = ExpertCounters(), trace
        self.experts = 1 + max(expert for _, expert in store.keys)
        layers = {layer for layer, _ in store.keys}
        self.share = self.capacity // len(layers)
        """Slots a layer may keep against all others."""
        self._free = [self._slot(buffer) for buffer in store.buffers(self.capacity)]
        self._slots: dict[Key, Slot] = {}
        self._held = dict.fromkeys(layers, 0)
        self._masks = {layer: torch.zeros(self.experts, dtype=torch.bool) for layer in layers}
        self._pinned: set[Key] = set()
        self._leased: int | None = None
        self._demand: deque[Key] = deque()
        self._coming: deque[Key] = deque()
        self._postponed: list[Key] = []
        """Named, but nothing may leave for them before the visit that is on ends."""
        self._named: set[Key] = set()
        self._lock = threading.Condition()
        self._error: BaseException | None = None
        self._active = 0
        self._readers = readers
        self._process = os.getpid()
        self._threads = ThreadPoolExecutor(readers, thread_name_prefix="ssd-experts")

    def visit(self, layer: int, tokens: Mapping[int, int]) -> Iterator[tuple[int, Matrices]]:
        """Yield every expert of `tokens` (expert → tokens that use it) with its matrices, as they become available.

        The matrices are valid until the next one is asked for. Raises what the store raised, and RuntimeError in a
        forked process, which has no reader threads and would wait for ever.
        """
        if os.getpid() != self._process:
            raise RuntimeError(
                "experts: this model was loaded before the process was forked, and its reader threads stayed with the "
                "parent; load it in this process, or start processes with `spawn`"
            )
        with self._lock:
            ready, waiting = self._ask(layer, tokens)
        try:
            for expert in ready:
                yield expert, self._slots[layer, expert].matrices
                if waiting:  # room for what is still to come
                    self._let_go((layer, expert))
            while waiting:
                expert = self._await(layer, waiting)
                yield expert, self._slots[layer, expert].matrices
                waiting.remove(expert)
                self._let_go((layer, expert))
        finally:
            self._leave(layer, tokens)

    def at_hand(self, layer: int) -> Tensor:
        """Return which experts `(E,)` of `layer` are resident; they stay until the layer's next visit is over."""
        with self._lock:
            self._leased = layer
            return self._masks[layer].to(self.device, copy=True)

    def name(self, layer: int, experts: Collection[int]) -> None:
        """Say that the coming verify pass will need `experts`: read them while there is time, and keep them."""
        with self._lock:
            for expert in experts:
                key = (layer, expert)
                if key not in self._named:
                    self._named.add(key)
                    if key not in self._slots:
                        self._coming.append(key)
            self._pump()

    def forget_names(self) -> None:
        """Drop what was named; nothing more is read ahead."""
        with self._lock:
            self._named.clear()
            self._coming.clear()
            self._postponed.clear()

    def reset_counters(self) -> None:
        """Begin counting anew."""
        with self._lock:
            self.counters = ExpertCounters()

    def resident(self, layer: int | None = None) -> set[Key]:
        """Return the experts in memory now, of one layer or all."""
        with self._lock:
            return {key for key, slot in self._slots.items() if slot.ready and layer in (None, key[0])}

    @property
    def budget_bytes(self) -> int:
        """Bytes of experts that may be in memory."""
        return self.capacity * self.store.expert_bytes

    # -- all below is called with the lock held unless it says otherwise ------------------------------------------

    def _ask(self, layer: int, tokens: Mapping[int, int]) -> tuple[list[int], list[int]]:
        """Pin what is here, order what is not, least worthy first; return both."""
        counters = self.counters
        counters.asked += len(tokens)
        if self.trace:
            counters.visits.append((layer, tuple(sorted(tokens))))
        ready: list[int] = []
        waiting: list[int] = []
        for expert, count in tokens.items():
            key = (layer, expert)
            self.policy.touch(key, count)
            slot = self._slots.get(key)
            if slot is not None:
                self._pinned.add(key)
            (ready if slot is not None and slot.ready else waiting).append(expert)
            counters.late += slot is not None and not slot.ready
        counters.hits += len(ready)
        waiting.sort(key=lambda expert: self.policy.worth((layer, expert)))
        self._demand.extend((layer, expert) for expert in waiting if (layer, expert) not in self._slots)
        self._pump()
        return ready, waiting

    def _let_go(self, key: Key) -> None:
        """Let `key` leave: its layer has computed with it. Takes the lock."""
        with self._lock:
            self._used(key)
            self._pinned.discard(key)
            self._named.discard(key)
            self._pump()

    def _leave(self, layer: int, experts: Iterable[int]) -> None:
        """End a visit: nothing is pinned, leased or waited for, and no further failure is its. Takes the lock."""
        with self._lock:
            self._error = None
            for expert in experts:
                self._used((layer, expert))
            self._leased = None
            self._pinned.clear()
            self._demand.clear()
            self._coming.extend(self._postponed)
            self._postponed.clear()
            self._pump()

    def _used(self, key: Key) -> None:
        """Note that what may have been read ahead has served; a draft's use leaves it named for the verify pass."""
        slot = self._slots.get(key)
        if slot is not None and slot.ready:
            slot.ahead = False

    def _await(self, layer: int, waiting: list[int]) -> int:
        """Return an expert of `waiting` that has arrived; takes the lock."""
        start = time.perf_counter()
        with self._lock:
            while True:
                if self._error is not None:
                    error, self._error = self._error, None
                    raise error
                for expert in waiting:
                    slot = self._slots.get((layer, expert))
                    if slot is not None and slot.ready:
                        self.counters.stall_seconds += time.perf_counter() - start
                        return expert
                self._lock.wait()

    def _pump(self) -> None:
        """Start readers while there is something to read and nobody reading it."""
        while self._active < min(self._readers, len(self._demand) + len(self._coming)):
            self._active += 1
            self._threads.submit(self._read_on)

    def _read_on(self) -> None:
        """Read one expert after another until nothing can be started; runs on a reader thread, takes the lock."""
        while True:
            with self._lock:
                job = self._next()
                if job is None:
                    self._active -= 1
                    return
            key, slot = job
            start = time.perf_counter()
            try:
                self.store.read(key, slot.buffer)
                _to_device(slot)
                error: BaseException | None = None
            except BaseException as raised:  # noqa: BLE001  it is raised again by the pass that waits for it
                error = raised
            with self._lock:
                self._arrived(key, slot, time.perf_counter() - start, error)

    def _next(self) -> tuple[Key, Slot] | None:
        """Return what to read and where to; what a pass waits for comes first."""
        for queue, ahead in ((self._demand, False), (self._coming, True)):
            while queue:
                key = queue[0]
                if key in self._slots or (ahead and key not in self._named):
                    queue.popleft()
                    continue
                slot = self._room(key, ahead)
                if slot is None:
                    if not ahead:
                        return None
                    self._postponed.append(queue.popleft())
                    continue
                queue.popleft()
                slot.ready, slot.ahead = False, ahead
                self._slots[key] = slot
                self._held[key[0]] += 1
                if not ahead:
                    self._pinned.add(key)
                self.counters.ahead += ahead
                return key, slot
        return None

    def _room(self, key: Key, ahead: bool) -> Slot | None:
        """Return a slot for `key`: a free one, or that of the least worthy that may leave; None when none may."""
        if self._free:
            return self._free.pop()
        layer, named = key[0], self._named if ahead or self.policy.looks_ahead else ()
        full = self._held[layer] >= max(1, self.share)
        options = [
            other
            for other, slot in self._slots.items()
            if slot.ready
            and other not in self._pinned
            and (other[0] != self._leased or not ahead)
            and (other[0] == layer if full else self._held[other[0]] > self.share or other[0] == layer)
        ]
        unnamed = [other for other in options if other not in named]
        if not unnamed and ahead:
            return None
        options = unnamed or options
        if not options:
            return None
        return self._evict(min(options, key=self.policy.worth))

    def _evict(self, key: Key) -> Slot:
        slot = self._slots.pop(key)
        self._held[key[0]] -= 1
        self._masks[key[0]][key[1]] = False
        self.counters.wasted += slot.ahead
        return slot

    def _arrived(self, key: Key, slot: Slot, seconds: float, error: BaseException | None) -> None:
        self.counters.read_seconds += seconds
        if error is None:
            slot.ready = True
            self._masks[key[0]][key[1]] = True
            self.counters.reads += 1
            self.counters.bytes += self.store.expert_bytes
        else:
            if key in self._pinned:  # otherwise whoever asks for it will read, and fail, again
                self._error = error
            self._slots.pop(key)
            self._held[key[0]] -= 1
            self._pinned.discard(key)
            self._free.append(slot)
        self._lock.notify_all()

    def _slot(self, buffer: ExpertBuffer) -> Slot:
        if self.device.type == "cpu":
            return Slot(buffer)
        first, second = self.store.shapes
        make = torch.empty
        tensors = (
            make(first, dtype=self.store.dtype, device=self.device),
            make(second, dtype=self.store.dtype, device=self.device),
        )
        return Slot(buffer, tensors)


def _to_device(slot: Slot) -> None:
    """Copy what was read to the accelerator, where there is one; the copy is done when this returns."""
    if slot.device is None or slot.buffer.matrices is None:
        return
    for there, here in zip(slot.device, slot.buffer.matrices, strict=True):
        there.copy_(here)
    if slot.device[0].is_cuda:
        torch.cuda.current_stream(slot.device[0].device).synchronize()


def _check(budget_bytes: int, top_k: int, store: ExpertStore, policy: str) -> None:
    """Raise ConfigError for a budget below one token's need in one layer, or a policy that does not exist."""
    problems = []
    need = top_k * store.expert_bytes
    if budget_bytes < need:
        rule = f"must hold the {top_k} experts one token needs in one layer, {need} bytes"
        share = -(-1000 * need // (len(store.keys) * store.expert_bytes)) / 1000
        problems.append(Problem("experts.budget", rule, budget_bytes, f"try {share:g} of all expert bytes"))
    if policy not in POLICIES:
        problems.append(
            Problem("experts.policy", "is not a policy", policy, f"choose from {', '.join(POLICIES)}")
        )
    if problems:
        raise ConfigError(problems)
