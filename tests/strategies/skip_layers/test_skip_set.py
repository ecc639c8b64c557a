"""Skip sets: views, exactness in every family, the sampling law, the threshold, isolation."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ssd_infer
from ssd_infer.engine.session import Feedback
from ssd_infer.engine.sublayers import SkipSet, skip_view, unsupported_reason
from ssd_infer.engine.target import Target
from ssd_infer.engine.window import Window
from ssd_infer.errors import ConfigError
from ssd_infer.strategies.skip_layers.skip_params import SkipSetParams
from ssd_infer.strategies.skip_layers.skip_set import SkipSetDrafter
from ssd_infer.strategies.skip_layers.threshold import AdaptiveThreshold
from tests.conftest import FAMILIES, ModelFactory, build_model
from tests.engine import test_sampling_law as sampling
from tests.engine.test_exactness import NEW, prompts, reference

SETS: list[dict[str, Any]] = [
    {"skip_attention": [1, 2], "skip_mlp": []},
    {"skip_attention": [], "skip_mlp": [0, 3]},
    {"skip_attention": [0, 1], "skip_mlp": [1, 2], "confidence": 0.5},
    {"skip_attention": [0, 1, 2, 3], "skip_mlp": [0, 1, 2, 3]},
    {"skip_attention": [3], "skip_mlp": []},
]
PARAMS = {"confidence": 0.0, "gamma": 4}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> tuple[Any, list[torch.Tensor], list[list[int]]]:
    """A model of each family, ragged prompts, their greedy text."""
    changes = {"sliding_window": 16} if request.param == "mistral" else {}
    model = build_model(request.param, vocab_size=29, initializer_range=0.1, **changes)
    rows = prompts(8, 29)
    return model, rows, reference(model, rows)


@pytest.mark.parametrize("skips", SETS)
@pytest.mark.parametrize(("gamma", "tree"), [(1, 1), (6, 1), (3, 9)])
def test_identical_alone_and_in_a_ragged_batch(
    family: tuple[Any, list[torch.Tensor], list[list[int]]], skips: dict[str, Any], gamma: int, tree: int
) -> None:
    model, rows, expected = family
    params = PARAMS | skips | {"gamma": gamma, "tree": tree}
    batch = ssd_infer.generate(model, rows, draft="skip_set", draft_params=params, max_new_tokens=NEW)
    assert batch.sequences == expected
    for row, text in zip(rows[:3], expected, strict=False):
        alone = ssd_infer.generate(model, [row], draft="skip_set", draft_params=params, max_new_tokens=NEW)
        assert alone.sequences == [text]
    assert batch.stats.total.drafted > 0


@pytest.mark.parametrize("name", FAMILIES)
def test_a_view_leaves_out_exactly_its_sublayers(tiny_model: ModelFactory, name: str) -> None:
    """Zeroing a sublayer's output projection in a copy of the model is the same as skipping it."""
    model, silenced = tiny_model(name), tiny_model(name)
    with torch.no_grad():
        silenced.model.layers[1].self_attn.o_proj.weight.zero_()
        silenced.model.layers[2].mlp.down_proj.weight.zero_()
        silenced.model.layers[3].self_attn.o_proj.weight.zero_()
        silenced.model.layers[3].mlp.down_proj.weight.zero_()
    target, ids = Target.of(model), torch.arange(2, 9)[None]
    view = skip_view(target, SkipSet.of([1, 3], [2, 3]))
    with torch.inference_mode():
        cache, window = target.new_cache(1, 7), Window(target.geometry(7), [0], 7)
        found = target.logits(target.run(target.embed_at(ids, window, cache), window, cache, layers=view))
        assert torch.equal(found, silenced(input_ids=ids).logits)
    assert view[0] is target.layers[0]
    assert view[3] is None


def test_views_share_parameters_and_leave_the_target_alone(tiny_model: ModelFactory) -> None:
    model = tiny_model()
    target = Target.of(model)
    modules = {name: id(module) for name, module in model.named_modules()}
    view = skip_view(target, SkipSet.of([0, 1], [1, 2]))
    own = {id(weight) for weight in model.parameters()}
    assert all(id(weight) in own for layer in view if layer is not None for weight in layer.parameters())
    assert {name: id(module) for name, module in model.named_modules()} == modules


def test_bits_and_sets_are_two_forms_of_one_thing() -> None:
    skips = SkipSet.of([0, 2], [1, 2])
    assert skips.bits(3) == [True, False, False, True, True, True]
    assert SkipSet.from_bits(skips.bits(3)) == skips
    assert len(skips) == 4
    assert (skips.first(3), SkipSet.of([2], [1]).first(3), SkipSet().first(3)) == (0, 1, 2)


def test_an_empty_set_is_always_accepted(tiny_model: ModelFactory) -> None:
    for sampled in (False, True):
        out = ssd_infer.generate(
            tiny_model(),
            prompts(4, 97),
            draft="skip_set",
            draft_params=PARAMS | {"skip_attention": [], "skip_mlp": []},
            max_new_tokens=NEW,
            do_sample=sampled,
            seed=0,
        )
        assert out.stats.total.alpha == 1.0


@pytest.mark.parametrize("settings", sampling.SETTINGS)
@pytest.mark.parametrize("confidence", [0.0, 0.45])
def test_follows_the_enumerated_law(settings: dict[str, Any], confidence: float) -> None:
    model = build_model(layers=3, vocab_size=sampling.VOCAB, initializer_range=0.12)
    params = {"skip_attention": [1], "skip_mlp": [1, 2], "gamma": 2, "confidence": confidence}
    assert sampling.p_value(model, settings, "skip_set", params) > 1e-3


def test_the_threshold_moves_by_the_papers_step() -> None:
    rule = AdaptiveThreshold(theta=0.6, aim=0.8, epsilon=0.01, beta1=0.5, beta2=0.9)
    rule.update(accepted=4, drafted=4)  # A = 0.5 ≤ 0.8
    assert (rule.acceptance, rule.theta) == (0.5, pytest.approx(0.6 + 0.1 * 0.01))
    rule.update(accepted=4, drafted=4)  # 0.75 ≤ 0.8
    rule.update(accepted=4, drafted=4)  # 0.875 > 0.8
    assert rule.theta == pytest.approx(0.6 + 0.1 * 0.01)
    rule.update(accepted=0, drafted=0)
    assert rule.acceptance == pytest.approx(0.875)


def test_a_row_stops_after_the_token_it_doubts(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[float, list[int]]] = []
    original = SkipSetDrafter.observe

    def spy(self: SkipSetDrafter, feedback: Feedback) -> None:
        before = self.confidence
        original(self, feedback)
        seen.append((abs(self.confidence - before), feedback.counts))

    monkeypatch.setattr(SkipSetDrafter, "observe", spy)
    params = {"skip_attention": [1], "skip_mlp": [1], "gamma": 6, "confidence": 0.9}
    ssd_infer.generate(
        tiny_model(initializer_range=0.05),
        prompts(3, 97),
        draft="skip_set",
        draft_params=params,
        max_new_tokens=NEW,
    )
    assert all(moved == pytest.approx(0.001) for moved, _ in seen)
    assert {count for _, counts in seen for count in counts} == {
        1
    }  # the doubted token is appended, nothing after it


def test_an_exception_while_drafting_leaves_the_model_alone(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, rows = tiny_model(), prompts(2, 97)
    before, expected = model.config.to_dict(), reference(model, rows, 8)
    mlp = model.model.layers[3].mlp

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("drafting broke")

    params = PARAMS | {"skip_attention": [1], "skip_mlp": [1, 2]}
    with monkeypatch.context() as patch:
        patch.setattr(SkipSetDrafter, "step", broken)
        with pytest.raises(RuntimeError, match="drafting broke"):
            ssd_infer.generate(model, rows, draft="skip_set", draft_params=params, max_new_tokens=8)
    assert model.config.to_dict() == before
    assert model.model.layers[3].mlp is mlp
    assert reference(model, rows, 8) == expected


def test_two_interleaved_generations_do_not_interact(tiny_model: ModelFactory) -> None:
    model, rows = tiny_model(initializer_range=0.1), prompts(2, 97)
    expected = reference(model, rows, 16)
    inner: list[list[int]] = []
    outer_params = PARAMS | {"skip_attention": [1, 2], "skip_mlp": []}
    inner_params = PARAMS | {"skip_attention": [], "skip_mlp": [0, 2]}

    def nested(_row: int, _tokens: list[int]) -> None:
        if not inner:
            inner.extend(
                ssd_infer.generate(
                    model, rows[1:], draft="skip_set", draft_params=inner_params, max_new_tokens=16
                ).sequences
            )

    outer = ssd_infer.generate(
        model, rows[:1], draft="skip_set", draft_params=outer_params, max_new_tokens=16, streamer=nested
    )
    assert outer.sequences + inner == expected


@pytest.mark.parametrize(
    ("params", "key"),
    [
        ({"skip_attention": [4], "skip_mlp": []}, "draft_params.skip_attention"),
        ({"skip_attention": [1]}, "draft_params.skip_mlp"),
        ({"skip_attention": [], "skip_mlp": [-1]}, "draft_params.skip_mlp"),
        ({"gamma": 0}, "draft_params.gamma"),
        ({"confidence": 1.5}, "draft_params.confidence"),
        ({"skip_layers": [1]}, "draft_params.skip_layers"),
    ],
)
def test_bad_parameters_name_the_key(tiny_model: ModelFactory, params: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        ssd_infer.generate(tiny_model(), [[2, 3]], draft="skip_set", draft_params=params, max_new_tokens=4)


def test_layers_behind_a_wrapper_are_refused(tiny_model: ModelFactory) -> None:
    model = tiny_model()
    target = Target.of(model)
    layer = model.model.layers[2]
    layer.forward = layer.forward
    assert "wrapper" in (unsupported_reason(target) or "")


def test_layers_wrapped_between_two_decodings_are_examined_again(tiny_model: ModelFactory) -> None:
    model = tiny_model(initializer_range=0.1)
    assert unsupported_reason(Target.of(model)) is None
    layer = model.model.layers[2]
    layer.forward = layer.forward
    assert "wrapper" in (unsupported_reason(Target.of(model)) or "")


def test_settled_parameters_say_so() -> None:
    assert SkipSetParams([1], [], 3, 0.0).resolved
    assert not SkipSetParams([1], [], 3).resolved
    assert SkipSetParams([1], [], 3).skips == SkipSet.of([1], [])


def test_verification_goes_on_from_the_first_skipped_layer(tiny_model: ModelFactory) -> None:
    model = tiny_model(initializer_range=0.1)
    widths: dict[int, list[int]] = {1: [], 2: []}
    for index, seen in widths.items():
        model.model.layers[index].register_forward_pre_hook(
            lambda _, args, seen=seen: seen.append(args[0].shape[1])
        )
    assert unsupported_reason(Target.of(model)) is None  # asked once a view, by running its layers
    params = PARAMS | {"skip_attention": [2, 3], "skip_mlp": []}
    for seen in widths.values():
        seen.clear()
    ssd_infer.generate(model, [[2, 3, 4]], draft="skip_set", draft_params=params, max_new_tokens=NEW)
    assert set(widths[1][1:]) == {1}  # after the prompt, layer 1 runs token by token
    assert 5 in widths[2]  # layer 2 is verified for the pending token and four drafts at once
