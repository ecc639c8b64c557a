"""Skip-layer drafts on one model leave each other, and the model, alone; sampled text is the target's at any batch."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from typing import Any

import pytest

import ssd_infer
from ssd_infer.engine.target import Target
from ssd_infer.evaluation.stream import Output, judge_stream
from ssd_infer.strategies.base import Resolved
from ssd_infer.strategies.early_exit.early_exit_del import EarlyExitDel
from ssd_infer.strategies.skip_layers.skip_set import SkipSetDrafter
from ssd_infer.strategies.skip_layers.swift import Swift
from ssd_infer.strategies.stepwise import Stepwise
from ssd_infer.strategies.study import Sampling
from tests.conftest import ModelFactory
from tests.engine.test_exactness import prompts, reference
from tests.strategies.early_exit.test_skip_del import promise
from tests.strategies.skip_layers.test_skip_swift import FREELY, prepare

NEW = 28
WAYS: dict[str, dict[str, Any]] = {
    "skip_set": {"skip_attention": [1, 2], "skip_mlp": [3], "gamma": 4, "confidence": 0.3, "guard": 1.0},
    "swift": FREELY,
    "early_exit+del": {"guard": 0.5, "exits": [1, 2]},
}


def decode(model: Any, rows: Any, draft: str, new: int = NEW, **options: Any) -> Any:
    promise(Target.of(model), 0.95, options.get("do_sample", False))  # so that DEL drafts
    return ssd_infer.generate(
        model, rows, draft=draft, draft_params=WAYS[draft], max_new_tokens=new, **options
    )


def facts(out: Any) -> tuple[Any, ...]:
    """Return what a decoding did, without what depends on the clock."""
    report = {key: value for key, value in out.stats.report.items() if key != "search_seconds"}
    return out.sequences, report, [row.trace for row in out.stats.rows], out.stats.total.forwards


@pytest.mark.parametrize(
    ("outer", "inner"), [*list(itertools.permutations(WAYS, 2)), ("early_exit+del",) * 2]
)
def test_interleaved_generations_do_not_influence_each_other(
    tiny_model: ModelFactory, outer: str, inner: str
) -> None:
    """Another draft decodes after every accepted block of the first; both do what they do alone."""
    model = prepare(tiny_model(layers=5, initializer_range=0.1), 5)
    first, second = prompts(2, 97)
    alone = [facts(decode(model, [first], outer)), facts(decode(model, [second], inner))]
    seen: list[tuple[Any, ...]] = []

    def nested(_row: int, _tokens: list[int]) -> None:
        if len(seen) < 3:
            seen.append(facts(decode(model, [second], inner)))

    assert facts(decode(model, [first], outer, streamer=nested)) == alone[0]
    assert seen == [alone[1]] * 3
    assert alone[0][0] + alone[1][0] == reference(model, [first, second], NEW)


@pytest.mark.parametrize(
    ("draft", "owner", "method"),
    [
        ("early_exit+del", EarlyExitDel, "step"),
        ("early_exit+del", EarlyExitDel, "begin"),
        ("early_exit+del", EarlyExitDel, "_learn"),
        ("swift", Stepwise, "_pick"),
        ("swift", Swift, "begin"),
        ("skip_set", SkipSetDrafter, "observe"),
    ],
)
@pytest.mark.parametrize("training", [False, True])
def test_an_exception_inside_a_draft_leaves_the_model_as_it_was(
    tiny_model: ModelFactory,
    monkeypatch: pytest.MonkeyPatch,
    draft: str,
    owner: type,
    method: str,
    training: bool,
) -> None:
    model = prepare(tiny_model(layers=5, initializer_range=0.1), 5).train(training)
    rows = prompts(2, 97)
    config, modules = model.config.to_dict(), {name: id(module) for name, module in model.named_modules()}
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    expected = facts(decode(model, rows, draft))

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("drafting broke")

    with monkeypatch.context() as patch:
        patch.setattr(owner, method, broken)
        with pytest.raises(RuntimeError, match="drafting broke"):
            decode(model, rows, draft)
    assert model.config.to_dict() == config
    assert {name: id(module) for name, module in model.named_modules()} == modules
    after = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    assert after == hooks
    assert model.training is training
    assert facts(decode(model, rows, draft)) == expected


@pytest.mark.parametrize("fails", [False, True])
def test_a_model_in_training_is_searched_in_evaluation_mode_and_put_back(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """Dropout and checkpointing of a model in training touch no search; a part that was frozen stays so."""
    model = tiny_model(layers=5).train()
    model.model.layers[2].eval()
    before = [module.training for module in model.modules()]
    seen: list[bool] = []

    def resolve(_target: Any, params: Any, *_: Any) -> Resolved:
        seen.append(any(module.training for module in model.modules()))
        if fails:
            raise RuntimeError("searching broke")
        return Resolved(None)

    monkeypatch.setattr(SkipSetDrafter, "resolve", resolve)
    with pytest.raises(RuntimeError, match="searching broke") if fails else nullcontext():
        ssd_infer.generate(model, prompts(1, 97), draft="skip_set", max_new_tokens=4)
    assert seen == [False]
    assert [module.training for module in model.modules()] == before


@pytest.mark.parametrize("draft", WAYS)
@pytest.mark.parametrize("batch", [1, 8])
def test_sampled_text_is_the_targets_alone_and_in_a_batch(
    tiny_model: ModelFactory, draft: str, batch: int
) -> None:
    """Every token's place in the target's own distribution is uniform, over long guarded and searched drafts."""
    model = prepare(tiny_model(layers=5, initializer_range=0.1), 5, do_sample=True)
    rows = [row.tolist() for row in prompts(8, 97)]
    outputs, drafted = [], 0
    for start in range(0, 8, batch):
        part = rows[start : start + batch]
        out = decode(model, part, draft, 60, do_sample=True, temperature=0.9, top_p=0.95, seed=start)
        outputs += [Output(prompt, tokens) for prompt, tokens in zip(part, out.sequences, strict=True)]
        drafted += out.stats.total.drafted
    judged = judge_stream(model, outputs, Sampling(0.9, 0, 0.95), drafted)
    assert judged.verdict == "pass", judged.detail
    assert drafted > 8
