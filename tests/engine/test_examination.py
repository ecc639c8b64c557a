"""A model is refused where decoding it layer by layer would differ, wherever in a text that begins."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ssd_infer
from ssd_infer.engine import examine
from ssd_infer.engine.positions import beyond_positions, edges, switches, varying_rope
from ssd_infer.engine.target import Target
from ssd_infer.errors import ConfigError, UnsupportedModelError
from ssd_infer.evaluation.strategies import find_target
from ssd_infer.strategies import registry as drafts
from ssd_infer.strategies.early_exit.early_exit import EarlyExit
from tests.conftest import ModelFactory, build_model
from tests.engine.test_families import greedy

POSITIONS = 32
LONG = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "original_max_position_embeddings": POSITIONS}
ROPES: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": POSITIONS // 2},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": POSITIONS // 2,
    },
    "dynamic": {"factor": 8.0},
    "longrope": LONG,
}
VARYING = ("dynamic", "longrope")
SWIFT = {"gamma": 4, "share": 1.0, "fruitless": 1.0, "worth": 1.0, "confidence": 0.0, "window": 8}
SPARSE = {"selector": "pillar", "ratio": 0.5, "min_budget": 4, "gamma": 3, "cold_start": "dense"}
WAYS: list[tuple[str | None, dict[str, Any]]] = [
    (None, {}),
    ("early_exit", {"exit_layer": 3, "gamma": 4}),
    ("skip_set", {"skip_attention": [2], "skip_mlp": [3], "gamma": 4, "confidence": 0.0}),
]
MORE: list[tuple[str | None, dict[str, Any]]] = [
    ("early_exit+ngram", {"exit_layer": 3, "gamma": 4, "trust": 1}),
    ("swift", SWIFT),
    ("sparse_attention", SPARSE),
]
"""Drafts that look back, or keep keys of their own."""


def with_rope(kind: str, family: str = "llama", seed: int = 0, **more: Any) -> Any:
    """Build a model of one rotary type that attends sharply, so that another table changes its tokens."""
    rope = {"rope_type": kind, "rope_theta": 1e4, **ROPES[kind]}
    model = build_model(family, seed=seed, max_position_embeddings=POSITIONS, rope_parameters=rope, **more)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("q_proj.weight", "k_proj.weight", "qkv_proj.weight")):
                weight.mul_(3)
    return model


def alone(model: Any, rows: list[Tensor], new: int) -> list[list[int]]:
    """Return transformers' continuations, each by a model whose rotary embeddings have seen no other text."""
    return [greedy(copy.deepcopy(model), [row], new)[0] for row in rows]


@pytest.mark.parametrize("kind", ROPES)
def test_past_the_positions_of_a_model_decoding_is_exact(kind: str) -> None:
    model = with_rope(kind)
    rows = [
        torch.randint(3, 97, (size,), generator=torch.Generator().manual_seed(size))
        for size in (24, 11, 45, 33)
    ]
    expected, before = alone(model, rows, 40), state_of(model)
    assert expected == alone(model, rows, 40)
    for draft, params in [*WAYS, *(MORE if kind in VARYING else [])]:
        arguments = {"draft": draft, "draft_params": params, "max_new_tokens": 40, "eos_token_id": []}
        out = ssd_infer.generate(model, rows, **arguments)
        assert out.sequences == expected, draft
        assert "85 tokens go past the 32 positions" in out.note
        for row, tokens in zip(rows, expected, strict=True):
            assert ssd_infer.generate(model, [row], **arguments).sequences == [tokens]
    for name, part in before.items():
        assert torch.equal(part, state_of(model)[name])


def state_of(model: Any) -> dict[str, Tensor]:
    """Return copies of what a model's rotary embeddings remember."""
    return {name: part.clone() for name, part in model.model.rotary_emb.named_buffers()}


@pytest.mark.parametrize("kind", VARYING)
def test_tables_by_length_change_tokens_so_that_a_wrong_one_would_be_seen(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = with_rope(kind)
    rows = [torch.randint(3, 97, (24,), generator=torch.Generator().manual_seed(seed)) for seed in range(6)]
    target = Target.of(model)
    monkeypatch.setattr(target, "_varying", {})  # encode everything as one pass over all slots would
    found = ssd_infer.generate(model, rows, max_new_tokens=40, eos_token_id=[]).sequences
    assert found != alone(model, rows, 40)


@pytest.mark.parametrize("kind", VARYING)
def test_what_was_decoded_before_changes_nothing(kind: str) -> None:
    model = with_rope(kind)
    short, long = ([torch.arange(3, 3 + size)] for size in (20, 60))
    first = ssd_infer.generate(model, short, max_new_tokens=20, eos_token_id=[]).sequences
    greedy(model, long, 20)
    ssd_infer.generate(model, long, max_new_tokens=20, eos_token_id=[])
    assert ssd_infer.generate(model, short, max_new_tokens=20, eos_token_id=[]).sequences == first
    assert first == alone(with_rope(kind), short, 20)


def test_a_model_that_has_seen_a_long_text_is_taken_apart_as_a_new_one() -> None:
    used, rows = with_rope("dynamic"), [torch.arange(3, 40)]
    greedy(used, [torch.arange(3, 90)], 4)
    grown = used.model.rotary_emb.max_seq_len_cached
    found = ssd_infer.generate(used, rows, max_new_tokens=20, eos_token_id=[]).sequences
    assert found == alone(with_rope("dynamic"), rows, 20)
    assert used.model.rotary_emb.max_seq_len_cached == grown


def test_phi3_with_longrope_is_refused_where_generate_would_encode_the_text_anew() -> None:
    model = with_rope("longrope", "phi3", original_max_position_embeddings=POSITIONS)
    for length, new in ((20, 13), (33, 30), (50, 20)):
        row = torch.randint(3, 97, (length,), generator=torch.Generator().manual_seed(length))
        for draft, params in WAYS[:2]:
            out = ssd_infer.generate(
                model, [row], draft=draft, draft_params=params, max_new_tokens=new, eos_token_id=[]
            )
            assert out.sequences == alone(model, [row], new)
    for rows in ([20], [40, 32]):
        with pytest.raises(UnsupportedModelError, match=r"Phi3ForCausalLM .* change at 32 tokens"):
            ssd_infer.generate(model, [[5] * length for length in rows], max_new_tokens=14)


def test_a_rotary_type_is_found_wherever_a_configuration_keeps_it() -> None:
    class Config:
        def __init__(self, **values: Any) -> None:
            vars(self).update(values)

    nested = {"full_attention": {"rope_type": "dynamic"}, "sliding_attention": {"rope_type": "default"}}
    assert "'dynamic'" in (varying_rope(Config(rope_parameters=nested)) or "")
    assert "'longrope'" in (varying_rope(Config(rope_scaling={"type": "longrope"})) or "")
    module = nn.Module()
    module.rope_type = {"full_attention": "longrope"}  # type: ignore[assignment]
    assert "'longrope'" in (varying_rope(Config(), module) or "")
    assert varying_rope(Config(rope_parameters={"rope_type": "yarn"}, rope_scaling=None)) is None
    deep = Config(max_position_embeddings=4096, rope_parameters={"original_max_position_embeddings": 64})
    assert switches(deep) == [64, 4096]
    assert edges(Config(sliding_window=8, attention_chunk_size=16, hidden_size=32)) == [8, 16]


class Switching(nn.Module):
    """Rotary embeddings of a type of their own, which change past a position: in the whole pass, or there alone."""

    def __init__(self, inner: nn.Module, switch: int, whole: bool) -> None:
        super().__init__()
        self.inner, self.switch, self.whole = inner, switch, whole

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        past = position_ids.max() >= self.switch if self.whole else position_ids >= self.switch
        cos, sin = self.inner(x, position_ids=position_ids * torch.where(past, 3, 1))
        return cos, sin


@pytest.mark.parametrize("switch", [20, 300, 4096])
def test_tables_that_follow_the_longest_position_are_found_at_any_distance(
    tiny_model: ModelFactory, switch: int
) -> None:
    model: Any = tiny_model(max_position_embeddings=switch)
    model.model.rotary_emb = Switching(model.model.rotary_emb, switch, whole=True)
    with pytest.raises(UnsupportedModelError, match="depend on the other positions of a pass"):
        Target.of(model)


def test_tables_that_change_with_their_own_position_alone_are_exact(tiny_model: ModelFactory) -> None:
    model: Any = tiny_model(max_position_embeddings=20)
    model.model.rotary_emb = Switching(model.model.rotary_emb, 20, whole=False)
    row = torch.arange(3, 19)
    out = ssd_infer.generate(
        model, [row], draft="early_exit", draft_params={"exit_layer": 2, "gamma": 4}, max_new_tokens=12
    )
    assert out.sequences == greedy(model, [row], 12)


@pytest.mark.parametrize("place", [30, 300])
def test_what_a_model_does_past_a_position_is_found_without_running_up_to_it(
    tiny_model: ModelFactory, place: int
) -> None:
    model: Any = tiny_model(max_position_embeddings=place)
    forward = model.model.forward

    def changed(*args: Any, position_ids: Tensor | None = None, **more: Any) -> Any:
        out = forward(*args, position_ids=position_ids, **more)
        length = out.last_hidden_state.shape[1]
        at = torch.arange(length)[None] if position_ids is None else position_ids
        out.last_hidden_state = out.last_hidden_state * torch.where(at >= place, 1.1, 1.0)[..., None]
        return out

    model.model.forward = changed
    with pytest.raises(UnsupportedModelError, match="differs from its own forward"):
        Target.of(model)


@pytest.mark.parametrize("width", [8, 20, 4096])
def test_a_window_the_model_does_not_attend_by_is_found(width: int) -> None:
    kinds = {"num_experts": 4, "num_experts_per_tok": 2}
    model: Any = build_model("olmoe", max_position_embeddings=8192, **kinds)
    assert isinstance(Target.of(model), Target)
    model = build_model("olmoe", max_position_embeddings=8192, sliding_window=width, **kinds)
    with pytest.raises(UnsupportedModelError, match="differs from its own forward"):
        Target.of(model)


@pytest.mark.parametrize("width", [8, 20, 4096])
def test_a_window_the_model_attends_by_is_accepted_and_left_alone(width: int) -> None:
    model: Any = build_model("mistral", max_position_embeddings=8192, sliding_window=width)
    before = model.config.to_dict()
    target = Target.of(model)
    assert target.reach == [width] * 4
    assert model.config.to_dict() == before


@pytest.mark.parametrize("family", ["ministral", "exaone4", "starcoder2", "phi3"])
def test_a_window_too_wide_to_be_run_is_compared_narrowed(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = build_model(family, max_position_embeddings=8192, sliding_window=4096)
    target = Target.of(model)
    assert 4096 in target.reach
    target.reach = [None for _ in target.reach]  # a view that forgets the window
    narrowed = examine._narrowed(target)
    assert narrowed is not None
    monkeypatch.setattr(examine, "_narrowed", lambda _target: narrowed)
    with pytest.raises(UnsupportedModelError, match="past a narrowed window"):
        examine.examine(Target(model))


def test_a_model_that_hides_a_window_is_found(tiny_model: ModelFactory) -> None:
    model: Any = tiny_model()
    forward = model.model.forward

    def windowed(*args: Any, **more: Any) -> Any:
        ids = more["input_ids"]
        if not more.get("use_cache"):
            places = torch.arange(ids.shape[1])
            near = (places <= places[:, None]) & (places > places[:, None] - 20)
            more["attention_mask"] = torch.where(near, 0.0, torch.finfo(torch.float32).min)[None, None]
        return forward(*args, **more)

    model.model.forward = windowed
    with pytest.raises(UnsupportedModelError, match="differs from its own forward"):
        Target.of(model)


def test_a_forward_that_depends_on_how_many_tokens_it_gets_is_found(tiny_model: ModelFactory) -> None:
    model: Any = tiny_model()
    forward = model.model.forward

    def changed(*args: Any, **more: Any) -> Any:
        out = forward(*args, **more)
        if out.last_hidden_state.shape[1] == 1:
            out.last_hidden_state = out.last_hidden_state * 1.01
        return out

    model.model.forward = changed
    with pytest.raises(UnsupportedModelError, match=r"over several tokens at once differs .* token by token"):
        Target.of(model)


def test_a_model_is_examined_once_and_what_it_may_cost_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = build_model("mistral", max_position_embeddings=8192, sliding_window=4096)
    lengths: list[int] = []
    model.model.embed_tokens.register_forward_hook(lambda _m, args, _o: lengths.append(args[0].shape[1]))
    Target.of(model)
    count = len(lengths)
    assert 10 <= count <= 20
    Target.of(model)
    assert len(lengths) == count
    lengths.clear()
    monkeypatch.setattr(examine, "_EFFORT", 1)
    examine.examine(Target(model))
    assert max(lengths) <= 12


def test_autocast_does_not_make_a_model_look_like_another(tiny_model: ModelFactory) -> None:
    for seed in range(3):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert isinstance(Target.of(tiny_model(seed=seed)), Target)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_rounding_does_not_make_a_model_look_like_another(family: str, dtype: torch.dtype) -> None:
    for seed in range(2):
        model: Any = build_model(family, seed=seed, layers=8)
        model = model.to(dtype)
        assert isinstance(Target.of(model), Target)


def test_whatever_an_examination_runs_into_is_one_sentence_with_its_cause(tiny_model: ModelFactory) -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor, position_ids: Tensor) -> Tensor:
            raise OSError("no such kernel\nanywhere")

    model: Any = tiny_model()
    model.model.rotary_emb = Broken()
    with pytest.raises(UnsupportedModelError) as caught:
        Target.of(model)
    said = "LlamaForCausalLM cannot be decoded layer by layer here: examining it failed with OSError: no such kernel"
    assert str(caught.value) == f"{said} anywhere"
    assert isinstance(caught.value.__cause__, OSError)
    assert find_target(model) == str(caught.value)


def test_a_strategy_that_cannot_tell_whether_it_applies_says_why(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_target: Target) -> str | None:
        raise KeyError("gate")

    monkeypatch.setattr(EarlyExit, "applicable", broken)
    reason = "looking whether it applies failed with KeyError: 'gate'"
    assert drafts.get("early_exit").unsupported_reason(Target.of(tiny_model())) == reason
    with pytest.raises(ConfigError, match=re.escape(reason)) as caught:
        ssd_infer.generate(tiny_model(), [[2, 3]], draft="early_exit", max_new_tokens=2)
    assert isinstance(caught.value.__cause__, KeyError)


def test_only_texts_past_the_positions_of_a_checkpoint_are_remarked_on(tiny_model: ModelFactory) -> None:
    model = tiny_model(max_position_embeddings=16)
    assert beyond_positions(model, 16) is None
    assert beyond_positions(model, 17) is not None
    assert ssd_infer.generate(model, [[2, 3]], max_new_tokens=4).note == ""


def test_every_missing_part_is_named() -> None:
    from transformers import XGLMConfig, XGLMForCausalLM

    model = XGLMForCausalLM(
        XGLMConfig(vocab_size=50, d_model=16, num_layers=2, attention_heads=2, ffn_dim=32)
    )
    expected = "it has no final norm `norm` and no rotary embeddings `rotary_emb`"
    with pytest.raises(UnsupportedModelError, match=expected):
        ssd_infer.generate(model, [[1, 2]], max_new_tokens=2)


def test_a_bundled_engine_knows_families_and_rotary_tables(tmp_path: Path) -> None:
    from ssd_infer.hf import write_custom_generate

    for name, model in (
        ("dynamic", with_rope("dynamic")),
        ("cohere", build_model("cohere", logit_scale=0.25)),
    ):
        folder = tmp_path / name
        model.save_pretrained(folder)
        write_custom_generate(folder, {"exit_layer": 2, "gamma": 2})
        ids = torch.randint(3, 97, (1, 40), generator=torch.Generator().manual_seed(1))
        found = copy.deepcopy(model).generate(
            ids, custom_generate=str(folder), trust_remote_code=True, max_new_tokens=12, do_sample=False
        )
        assert found[0, 40:].tolist() == alone(model, [ids[0]], 12)[0]


def _backwards(_: nn.Module, __: Any, out: Any) -> Any:
    """Turn logits, or what the head is given, round."""
    name = "logits" if "logits" in out else "last_hidden_state"
    out[name] = out[name].flip(-1)
    return out


@pytest.mark.parametrize("where", ["model", "base", "forward"])
def test_what_is_put_around_a_model_after_its_first_use_is_seen(where: str) -> None:
    """A hook or another forward above the layers is not run here: it is refused, not dropped without a word."""
    model: Any = build_model()
    rows = [[5, 6, 7]]
    before = ssd_infer.generate(model, rows, max_new_tokens=4).sequences
    own = model.forward
    if where == "forward":
        model.forward = lambda *given, **more: _backwards(model, given, own(*given, **more))
    else:
        part = model if where == "model" else model.model
        handle = part.register_forward_hook(_backwards)
    for _ in range(2):
        with pytest.raises(UnsupportedModelError, match="differs from its own forward"):
            ssd_infer.generate(model, rows, max_new_tokens=4)
    if where == "forward":
        del model.forward
    else:
        handle.remove()
    assert ssd_infer.generate(model, rows, max_new_tokens=4).sequences == before


def test_a_hook_that_looks_on_changes_nothing() -> None:
    model: Any = build_model()
    model.model.register_forward_hook(lambda *_: None)
    prompt = torch.tensor([5, 6, 7])
    out = ssd_infer.generate(model, prompt, max_new_tokens=4, eos_token_id=[])
    assert out.sequences == greedy(model, [prompt], 4)
