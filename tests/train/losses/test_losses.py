"""The chunked loss equals the plain one in value and gradient, and does not keep logits."""

from __future__ import annotations

import itertools
import weakref

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ssd_train.losses import ExitTerm, chunked_exit_loss, measure_exits
from ssd_train.losses.divergence import DIVERGENCES
from ssd_train.losses.measure import acceptance_length

N, D, V = 23, 6, 11


def inputs(exits: int, dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    hidden = [torch.randn(N, D, dtype=dtype, requires_grad=True) for _ in range(exits + 1)]
    weight = torch.randn(V, D, dtype=dtype, requires_grad=True)
    bias = torch.randn(V, dtype=dtype, requires_grad=True)
    return hidden, weight, bias, torch.randint(0, V, (N,))


def plain_divergence(name: str, logp: Tensor, logq: Tensor) -> Tensor:
    p, q = logp.exp(), logq.exp()
    if name == "forward":
        return (p * (logp - logq)).sum()
    if name == "reverse":
        return (q * (logq - logp)).sum()
    if name == "js":
        log_mid = ((p + q) / 2).log()
        return 0.5 * (p * (logp - log_mid)).sum() + 0.5 * (q * (logq - log_mid)).sum()
    return (1 - torch.minimum(p, q).sum(-1)).sum()


def plain_loss(
    hidden: list[Tensor],
    weight: Tensor,
    bias: Tensor,
    labels: Tensor,
    terms: list[ExitTerm],
    final_weight: float,
) -> Tensor:
    logp, *exits = [torch.log_softmax(h @ weight.t() + bias, -1) for h in hidden]
    total = -final_weight * logp.gather(1, labels[:, None]).sum()
    for term, logq in zip(terms, exits, strict=True):
        total = total - term.cross_entropy * logq.gather(1, labels[:, None]).sum()
        for name, factor, into_teacher in term.divergences:
            total = total + factor * plain_divergence(name, logp if into_teacher else logp.detach(), logq)
    return total


@pytest.mark.parametrize(("name", "into_teacher"), list(itertools.product(DIVERGENCES, (False, True))))
def test_value_and_gradients_equal_the_plain_computation(name: str, into_teacher: bool) -> None:
    hidden, weight, bias, labels = inputs(2)
    terms = [
        ExitTerm(0.3, ((name, 0.7, into_teacher),)),
        ExitTerm(0.0, ((name, 0.2, into_teacher), ("tv", 0.1, True))),
    ]
    sums = chunked_exit_loss(
        hidden[0], hidden[1:], labels, weight, bias, terms, final_weight=0.6, chunk_tokens=5
    )
    expected = plain_loss(hidden, weight, bias, labels, terms, 0.6)
    leaves = [*hidden, weight, bias]
    ours, theirs = torch.autograd.grad(2.5 * sums.total, leaves), torch.autograd.grad(2.5 * expected, leaves)
    torch.testing.assert_close(sums.total, expected, rtol=1e-12, atol=1e-12)
    for got, want in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-11)


def test_chunk_size_changes_nothing() -> None:
    hidden, weight, _, labels = inputs(1)
    term = [ExitTerm(0.5, (("forward", 0.3, True),))]
    found = []
    for chunk in (1, 4, N, 100):
        sums = chunked_exit_loss(hidden[0], hidden[1:], labels, weight, None, term, chunk_tokens=chunk)
        found.append((sums.total, *torch.autograd.grad(sums.total, [*hidden, weight])))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-11, atol=1e-11)


def test_detached_head_gets_the_gradient_of_the_final_layer_only() -> None:
    hidden, weight, bias, labels = inputs(1)
    terms = [ExitTerm(0.9, (("forward", 0.5, False),))]
    detached = chunked_exit_loss(
        hidden[0], hidden[1:], labels, weight, bias, terms, detach_head=True, chunk_tokens=8
    )
    alone = chunked_exit_loss(hidden[0], [], labels, weight, bias, [], chunk_tokens=8)
    *head, exit_ = torch.autograd.grad(detached.total, [weight, bias, hidden[1]])
    torch.testing.assert_close(head, list(torch.autograd.grad(alone.total, [weight, bias])))
    assert exit_.abs().sum() > 0


def test_the_gradient_is_held_once() -> None:
    hidden, weight, _, labels = inputs(0)
    total = chunked_exit_loss(hidden[0], [], labels, weight, None, []).total
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="compute the loss again"):
        total.backward()


def test_sums_are_unweighted_and_agreement_is_counted() -> None:
    hidden, weight, bias, labels = inputs(2)
    terms = [ExitTerm(0.0, (("forward", 0.1, False),)), ExitTerm(2.0)]
    sums = chunked_exit_loss(
        hidden[0], hidden[1:], labels, weight, bias, terms, chunk_tokens=6, count_agreement=True
    )
    logp, *exits = [torch.log_softmax(h @ weight.t() + bias, -1) for h in hidden]
    torch.testing.assert_close(
        sums.divergence[0]["forward"], plain_divergence("forward", logp, exits[0]).detach()
    )
    for got, logq, agreed in zip(sums.cross_entropy, exits, sums.agreed, strict=True):
        torch.testing.assert_close(got, -logq.gather(1, labels[:, None]).sum().detach())
        assert int(agreed) == int((logq.argmax(-1) == logp.argmax(-1)).sum())


def test_bfloat16_states_stay_near_the_float32_result() -> None:
    hidden, weight, _, labels = inputs(1, torch.float32)
    terms = [ExitTerm(0.5, (("forward", 0.5, True),))]
    exact = chunked_exit_loss(hidden[0], hidden[1:], labels, weight, None, terms).total
    narrow = [h.detach().bfloat16().requires_grad_() for h in hidden]
    coarse = chunked_exit_loss(narrow[0], narrow[1:], labels, weight, None, terms).total
    torch.testing.assert_close(coarse, exact, rtol=2e-2, atol=0)
    coarse.backward()
    assert narrow[0].grad is not None
    assert narrow[0].grad.dtype == torch.bfloat16
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32


def test_no_predictions_give_a_zero_loss_that_can_be_differentiated() -> None:
    hidden, weight, _, labels = inputs(1)
    sums = chunked_exit_loss(hidden[0][:0], [hidden[1][:0]], labels[:0], weight, None, [ExitTerm(1.0)])
    assert sums.total.item() == 0
    assert torch.autograd.grad(sums.total, weight)[0].abs().sum() == 0


class PeakMemory(TorchDispatchMode):
    """Count the bytes of tensors alive at one time, beyond those that were there before."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        before = {
            t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)
        }
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self.count(tensor.untyped_storage(), before)
        return out

    def count(self, storage: torch.UntypedStorage, before: set[int]) -> None:
        key = storage.data_ptr()
        if key in before or key in self.known or storage.nbytes() == 0:
            return
        self.known.add(key)
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self.release, key, storage.nbytes())

    def release(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.live -= size


def peak_bytes(exits: int, *, chunked: bool) -> int:
    tokens, width, vocabulary = 512, 8, 1024
    torch.manual_seed(0)
    hidden = [torch.randn(tokens, width, requires_grad=True) for _ in range(exits + 1)]
    weight = torch.randn(vocabulary, width, requires_grad=True)
    labels = torch.randint(0, vocabulary, (tokens,))
    terms = [ExitTerm(0.5, (("forward", 0.5, False),)) for _ in range(exits)]
    with PeakMemory() as memory:
        if chunked:
            loss = chunked_exit_loss(
                hidden[0], hidden[1:], labels, weight, None, terms, chunk_tokens=32
            ).total
        else:
            loss = plain_loss(hidden, weight, torch.zeros(vocabulary), labels, terms, 1.0)
        loss.backward()
    return memory.peak


def test_peak_memory_does_not_grow_with_the_exits_and_is_far_below_all_logits() -> None:
    logits = 512 * 1024 * 4
    one, six = peak_bytes(1, chunked=True), peak_bytes(6, chunked=True)
    all_one, all_six = peak_bytes(1, chunked=False), peak_bytes(6, chunked=False)
    # Growth is allowed for the gradients of the hidden states themselves: one each, and change.
    assert six - one <= 5 * 2 * 512 * 8 * 4
    assert all_six - all_one > 5 * logits
    assert six * 5 < all_six


def test_measures_equal_the_plain_computation() -> None:
    hidden, weight, bias, labels = inputs(2)
    seen = measure_exits(hidden[0], hidden[1:], labels, weight, bias, chunk_tokens=4)
    logp, *exits = [torch.log_softmax(h @ weight.t() + bias, -1).detach() for h in hidden]
    torch.testing.assert_close(seen.final, -logp.gather(1, labels[:, None]).sum())
    for index, logq in enumerate(exits):
        torch.testing.assert_close(seen.cross_entropy[index], -logq.gather(1, labels[:, None]).sum())
        assert torch.equal(seen.match[index], logq.argmax(-1) == logp.argmax(-1))
        overlap = torch.minimum(logp.exp(), logq.exp()).sum(-1)
        torch.testing.assert_close(seen.overlap[index].double(), overlap, rtol=1e-6, atol=1e-6)


def test_acceptance_length_of_a_row_written_out_by_hand() -> None:
    match = torch.tensor([1, 1, 0, 1, 1, 1], dtype=torch.bool)
    assert acceptance_length(match, 2).tolist() == [3, 2, 1, 3, 3]
    assert acceptance_length(match, 99).tolist() == [3]
    assert acceptance_length(torch.full((5,), 0.5), 2).tolist() == [1.75] * 4
