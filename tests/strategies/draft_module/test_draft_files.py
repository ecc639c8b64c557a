"""A draft module on disk: nothing of its model is copied, and every way it can be wrong is one clear refusal."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import ssd_infer
from ssd_infer.checkpoint.content import file_digest
from ssd_infer.checkpoint.draft_base import base_identity
from ssd_infer.checkpoint.draft_files import save_draft
from ssd_infer.checkpoint.draft_spec import FACTS, WEIGHTS, DraftSpec, spec_from
from ssd_infer.engine.target import Target
from ssd_infer.errors import CheckpointError, ConfigError, SSDError
from ssd_infer.models.draft_modules.build import build
from ssd_infer.models.draft_modules.files import draft_beside, load_draft
from ssd_infer.strategies import registry
from tests.strategies.draft_module.modules import make, prompts, tiny

PARAMS = {"gamma": 3, "confidence": 0.0}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Return a folder with a model in `base` and a module of it in `draft`."""
    tiny().save_pretrained(tmp_path / "base")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    module = make(model, "exit", rows=20)
    save_draft(tmp_path / "draft", module, replace(module.spec, base=base_identity(model)))
    return tmp_path


def drafted(loaded: Any, draft: str = "exit_module") -> int:
    """Decode with the module; return how many tokens it drafted."""
    out = ssd_infer.generate(
        loaded, prompts((5, 9)), draft=draft, draft_params=PARAMS, max_new_tokens=8, eos_token_id=[]
    )
    plain = ssd_infer.generate(loaded, prompts((5, 9)), max_new_tokens=8, eos_token_id=[])
    assert out.sequences == plain.sequences
    return int(out.stats.total.drafted)


def test_a_folder_of_its_own_loads_as_its_model(saved: Path) -> None:
    before = file_digest(saved / "base" / "model.safetensors")
    assert sorted(path.name for path in (saved / "draft").iterdir()) == [FACTS, WEIGHTS]
    loaded = ssd_infer.load(saved / "draft")
    assert loaded.path == str(saved / "draft")
    names = set(loaded.model.state_dict())
    assert drafted(loaded) > 0
    assert set(loaded.model.state_dict()) == names
    assert file_digest(saved / "base" / "model.safetensors") == before


def test_weights_come_back_bit_for_bit_and_in_the_models_precision(saved: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(saved / "base")
    stored = load_file(saved / "draft" / WEIGHTS)
    for name, weight in load_draft(saved / "draft", model).state_dict().items():
        assert torch.equal(weight, stored[name])
    half = AutoModelForCausalLM.from_pretrained(saved / "base", dtype=torch.bfloat16)
    assert load_draft(saved / "draft", half).norm.weight.dtype is torch.bfloat16


def test_the_files_beside_an_unchanged_model_are_found(saved: Path) -> None:
    for name in (FACTS, WEIGHTS):
        shutil.copy(saved / "draft" / name, saved / "base" / name)
    assert drafted(ssd_infer.load(saved / "base")) > 0
    assert drafted(AutoModelForCausalLM.from_pretrained(saved / "base")) > 0


@pytest.mark.parametrize("moved", ["both", "beside", "inside", "here"])
def test_a_model_that_has_moved_is_found(saved: Path, moved: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if moved == "both":
        (saved / "new").mkdir()
        for name in ("base", "draft"):
            (saved / name).rename(saved / "new" / name)
        assert drafted(ssd_infer.load(saved / "new" / "draft")) > 0
        return
    folder = saved / "far" / "away" / "draft"
    shutil.copytree(saved / "draft", folder)
    place = {"beside": folder.parent, "inside": folder, "here": saved / "here"}[moved]
    place.mkdir(exist_ok=True)
    (saved / "base").rename(place / "base")
    if moved == "here":
        monkeypatch.chdir(place)
    assert drafted(ssd_infer.load(folder)) > 0


def test_another_model_at_its_old_path_does_not_stand_in_the_way(saved: Path) -> None:
    shutil.copytree(saved / "base", saved / "new" / "base")
    (saved / "draft").rename(saved / "new" / "draft")
    tiny(seed=1).save_pretrained(saved / "base")
    assert drafted(ssd_infer.load(saved / "new" / "draft")) > 0


def test_a_model_whose_files_are_not_at_hand_is_known_by_its_name(saved: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(saved / "base")
    (saved / "base").rename(saved / "gone")
    assert load_draft(saved / "draft", model).spec.form == "exit"
    model.config._name_or_path = "another"
    with pytest.raises(
        CheckpointError, match=r"draft\.base\.name: must be the name of this model \(another\)"
    ):
        load_draft(saved / "draft", model)


def test_a_model_that_is_gone_is_named_with_a_place_for_it(saved: Path) -> None:
    shutil.rmtree(saved / "base")
    with pytest.raises(CheckpointError, match=r"not its model.*base.*put the model into"):
        ssd_infer.load(saved / "draft")


def test_another_model_is_refused_before_its_weights_load(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny(seed=1).save_pretrained(saved / "base")
    monkeypatch.setattr(
        AutoModelForCausalLM, "from_pretrained", lambda *_, **__: pytest.fail("weights were loaded")
    )
    with pytest.raises(CheckpointError, match=r"draft\.base\.files: must be that of the weights of"):
        ssd_infer.load(saved / "draft")


def test_another_tokenizer_is_refused(saved: Path) -> None:
    (saved / "base" / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"draft\.base\.tokenizer"):
        ssd_infer.load(saved / "draft")


def test_a_model_without_files_is_known_by_its_values(saved: Path) -> None:
    model = tiny(seed=5)
    module = build(DraftSpec(form="mtp", module="rank", rank=2, rollout=1), model)
    save_draft(saved / "other", module, replace(module.spec, base=base_identity(model)))
    assert load_draft(saved / "other", tiny(seed=5)).spec.form == "mtp"
    with pytest.raises(CheckpointError, match=r"draft\.base\.values"):
        load_draft(saved / "other", tiny(seed=6))


def _facts(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        stored = json.loads((folder / FACTS).read_text())
        changed = change(stored)
        (folder / FACTS).write_text(json.dumps(stored if changed is None else changed))

    return apply


def _weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        stored = load_file(folder / WEIGHTS)
        change(stored)
        save_file(stored, folder / WEIGHTS)
        _facts(lambda facts: facts.update(file=file_digest(folder / WEIGHTS)))(folder)

    return apply


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "no json": (lambda folder: (folder / FACTS).write_text("{") and None, "cannot be read"),
    "no text": (lambda folder: (folder / FACTS).write_bytes(b"\xff\xfe") and None, "cannot be read"),
    "deep": (lambda folder: (folder / FACTS).write_text("[" * 100_000) and None, "cannot be read"),
    "long": (lambda folder: (folder / FACTS).write_text(" " * (1 << 21)) and None, "too long"),
    "a list": (_facts(lambda _: []), "must be an object"),
    "no base": (_facts(lambda facts: facts.__delitem__("base")), r"draft\.base: must be an object"),
    "base a text": (_facts(lambda facts: facts.update(base="x")), r"draft\.base: must be an object"),
    "version": (_facts(lambda facts: facts.update(version=99)), r"draft\.version"),
    "form": (_facts(lambda facts: facts.update(form="other")), r"draft\.form: must be one of exit"),
    "form a number": (_facts(lambda facts: facts.update(form=3)), r"draft\.form: must be a text"),
    "body": (_facts(lambda facts: facts.update(module="__class__")), r"draft\.module"),
    "layer true": (
        _facts(lambda facts: facts.update(exit_layer=True)),
        r"draft\.exit_layer: must be a whole",
    ),
    "layer 0": (_facts(lambda facts: facts.update(exit_layer=0)), r"draft\.exit_layer: must lie in"),
    "layer 99": (_facts(lambda facts: facts.update(exit_layer=99)), r"draft\.exit_layer: must be < 4"),
    "layer huge": (_facts(lambda facts: facts.update(exit_layer=1 << 70)), r"draft\.exit_layer"),
    "rank unasked": (_facts(lambda facts: facts.update(rank=5)), r"draft\.rank: belongs to module rank only"),
    "rows": (_facts(lambda facts: facts.update(rows=21)), r"draft\.ids: must be 21 ids"),
    "unknown": (_facts(lambda facts: facts.update(extra=1)), r"draft\.extra: is no field"),
    "other save": (_facts(lambda facts: facts.update(file="0")), r"draft\.file"),
    "name a bomb": (_facts(lambda facts: facts["base"].update(name="\0" * 5000)), r"draft\.base\.name"),
    "name too long for a hub": (
        _facts(lambda facts: facts["base"].update(name="a" * 3000, relative="")),
        "is not there any more",
    ),
    "name without a letter": (
        _facts(lambda facts: facts["base"].update(name="\ud800")),
        r"draft\.base\.name",
    ),
    "rank made up": (
        _facts(lambda facts: facts.update(module="rank", rank=(1 << 24) - 1)),
        r"draft\.rank: must be that of",
    ),
    "width made up": (
        _facts(lambda facts: facts.update(module="attention_mlp", mlp_width=(1 << 24) - 1)),
        r"draft\.mlp_width: must be that of",
    ),
    "cut weights": (lambda folder: (folder / WEIGHTS).write_bytes(b"x" * 40) and None, r"draft\.file"),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), "cannot be read"),
    "ids fall": (_weights(lambda held: held.update(ids=held["ids"].flip(0).contiguous())), r"draft\.ids"),
    "ids beyond": (_weights(lambda held: held.update(ids=held["ids"] + 1000)), r"draft\.ids"),
    "shape": (
        _weights(lambda held: held.update({"norm.weight": torch.ones(3)})),
        r"norm\.weight must be \(32,\)",
    ),
    "missing": (_weights(lambda held: held.__delitem__("norm.weight")), r"missing: norm\.weight"),
    "more": (_weights(lambda held: held.update(more=torch.ones(1))), "unknown: more"),
    "integers": (_weights(lambda held: held.update({"norm.weight": torch.ones(32).long()})), r"norm\.weight"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_refused_in_one_sentence(saved: Path, damage: str) -> None:
    harm, said = DAMAGES[damage]
    harm(saved / "draft")
    with pytest.raises(CheckpointError, match=said) as raised:
        load_draft(saved / "draft", ssd_infer.load(saved / "draft").model)
    assert len(str(raised.value)) < 2000
    assert str(raised.value).encode()


def test_what_is_wrong_with_weights_is_said_by_the_draft_that_needs_them(saved: Path) -> None:
    DAMAGES["shape"][0](saved / "draft")
    loaded = ssd_infer.load(saved / "draft")
    reason = registry.get("exit_module").unsupported_reason(Target.of(loaded.model))
    assert reason is not None
    assert "norm.weight must be (32,)" in reason
    with pytest.raises(ConfigError, match="cannot be used"):
        drafted(loaded)


def test_without_a_module_a_draft_says_how_to_make_one() -> None:
    model = tiny()
    for name, form in (("exit_module", "exit"), ("mtp", "mtp")):
        reason = registry.get(name).unsupported_reason(Target.of(model))
        assert reason is not None
        assert f"recipe.form={form}" in reason


def test_a_module_of_another_form_is_named(saved: Path) -> None:
    loaded = ssd_infer.load(saved / "draft")
    reason = registry.get("mtp").unsupported_reason(Target.of(loaded.model))
    assert reason == "its draft module is of form exit, and this draft needs form mtp"


def test_a_module_belongs_to_its_model_alone(saved: Path) -> None:
    one, other = ssd_infer.load(saved / "draft").model, AutoModelForCausalLM.from_pretrained(saved / "base")
    assert draft_beside(one, "exit") is not None
    assert draft_beside(other, "exit") is None


def test_a_specification_is_the_same_after_json() -> None:
    spec = DraftSpec(form="exit", module="attention_mlp", exit_layer=3, mlp_width=64, rows=8, own_rows=True)
    found, problems = spec_from(json.loads(json.dumps(spec.to_dict())))
    assert (found, problems) == (spec, [])


def test_all_that_is_wrong_with_a_specification_is_said_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        build(DraftSpec(form="exit", module="rank", exit_layer=9, rows=3), tiny())
    keys = {problem.key for problem in raised.value.problems}
    assert keys == {"draft.rank", "draft.exit_layer", "draft.ids"}


@pytest.mark.parametrize("own", [False, True])
def test_rows_are_the_targets_own_or_begin_as_them(own: bool) -> None:
    model = tiny()
    module = make(model, "exit", rows=20, noise=0.0, own_rows=own)
    states = torch.randn(2, 3, 32)
    whole = model.lm_head(states)
    assert module.ids is not None
    assert torch.allclose(module.logits(states), whole[..., module.ids], atol=1e-6)
    assert any("row" in name for name, _ in module.named_parameters()) == own


def test_a_body_that_cannot_be_made_is_refused() -> None:
    model = tiny("bloom", attn_implementation="eager")
    with pytest.raises(SSDError, match="width of its MLP cannot be set"):
        build(DraftSpec(form="exit", module="attention_mlp", exit_layer=1, mlp_width=5), model)
