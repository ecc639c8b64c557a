"""The tree benchmark asks the right questions: its tree is a tree, and its rounds are those of greedy decoding."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.session import open_session
from ssd_infer.engine.target import Target
from tests.conftest import ModelFactory
from tests.scripts.load import load_script


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return load_script("bench_tree_verify")


@torch.inference_mode()
def test_every_branch_is_verified_as_if_it_were_the_text(tiny_model: ModelFactory, bench: ModuleType) -> None:
    model = tiny_model()
    target = Target.of(model)
    prompt, drafts, siblings = [5, 6, 7, 8], [11, 12, 13], [21, 22, 23]
    session = open_session(target, [prompt], 1, 16, Sampler(SamplingParams(), target.device, seed=0))
    ids = torch.tensor([prompt])
    prefill = session.window(4)
    session.run(target.embed_at(ids, prefill, session.cache), prefill)
    depths, ancestors = bench.caterpillar(3, 1)
    tokens = torch.tensor([[9, *drafts, *siblings]])
    window = bench.TreeWindow(session.geometry, 4, depths, ancestors)
    hidden = target.embed_at(tokens, window, session.cache)
    logits = target.logits(target.run(hidden, window, session.cache))[0]
    for depth in range(1, 4):
        path = [*prompt, 9, *drafts[: depth - 1], siblings[depth - 1]]
        torch.testing.assert_close(logits[3 + depth], model(input_ids=torch.tensor([path])).logits[0, -1])
    chain = model(input_ids=torch.tensor([[*prompt, 9, *drafts]])).logits[0, 4:]
    torch.testing.assert_close(logits[:4], chain)


def test_rounds_count_a_right_sibling_as_accepted(bench: ModuleType) -> None:
    ranks = torch.tensor([[0, 0, 1, 0, 2, 0]])
    assert bench.follow(ranks, 4, 1) == ((2 + 1 + 1) / 3, (4 + 3 + 1) / 3, 2, 0)
    accepted, _, rejections, hits = bench.follow(ranks, 4, 2)
    assert (accepted, rejections, hits) == ((3 + 0 + 1) / 3, 2, 1)
    assert bench.follow(ranks, 4, 3)[2:] == (2, 2)


def test_a_caterpillar_has_siblings_at_every_depth(bench: ModuleType) -> None:
    depths, ancestors = bench.caterpillar(2, 2)
    assert depths.tolist() == [0, 1, 2, 1, 1, 2, 2]
    assert ancestors[2].tolist() == [True, True, True, False, False, False, False]
    assert ancestors[4].tolist() == [True, False, False, False, True, False, False]
    assert ancestors[6].tolist() == [True, True, False, False, False, False, True]
