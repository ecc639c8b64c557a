"""What an evaluation gives parameters that nobody gave."""

from __future__ import annotations

import torch

from ssd_infer.engine.target import Target
from ssd_infer.evaluation.strategies import filled_in, own_peers, select_candidates
from ssd_infer.strategies import registry
from ssd_infer.strategies.study import Sampling
from tests.conftest import build_model

PROMPTS = [[5, 6, 7, 5, 6, 7, 5, 6], [9, 8, 9, 8, 9, 8]]


def test_what_is_given_stays_and_an_open_search_is_bounded() -> None:
    assert filled_in(registry.get("ngram"), {}, 3.0) == {"tree": "auto"}
    assert filled_in(registry.get("ngram"), {"tree": 4, "gamma": 2}, 3.0) == {"tree": 4, "gamma": 2}
    assert filled_in(registry.get("skip_set+bayes"), {}, 3.0) == {"search_seconds": 3.0}
    assert filled_in(registry.get("skip_set+bayes"), {"search_seconds": 9.0}, 3.0) == {"search_seconds": 9.0}


def test_copies_are_measured_as_trees_whether_asked_for_or_not() -> None:
    model = build_model()
    target = Target.of(model)
    (peer,) = own_peers(model, Sampling(), "all")
    found = select_candidates(model, target, "ngram", {}, Sampling(), PROMPTS, batch_size=2)
    (asked,) = [one for one in found.contenders if one.name == "ngram"]
    assert peer.params["tree"] == asked.params["tree"] == "auto"
    wanted = model.generate(torch.tensor(PROMPTS[:1]), max_new_tokens=9, do_sample=False)[0, 8:].tolist()
    for one in (peer, asked):
        tokens, _ = one.decode(PROMPTS[:1], 9, 0)
        assert tokens[0] == wanted[: len(tokens[0])]
        assert tokens[0]
