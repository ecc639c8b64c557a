"""One table says how each kind of checkpoint is loaded, decoded and evaluated."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import ssd_infer
from ssd_infer import api
from ssd_infer.checkpoint import kinds
from ssd_infer.checkpoint.kinds import KINDS, kind_at, kind_of, register_classes
from ssd_infer.config.evaluation import EvalSettings
from ssd_infer.errors import DataError
from ssd_infer.evaluation import evaluate
from ssd_infer.evaluation.kind import PLACES, EvalKind, kind_class
from ssd_infer.strategies.diffusion_strategy import DiffusionStrategy
from ssd_infer.strategies.registry import infos, of_kind, reported
from ssd_infer.strategies.reported import KindStrategy, Reported
from ssd_infer.strategies.speech_strategy import SpeechStrategy
from tests.conftest import ModelFactory


@pytest.mark.parametrize(
    ("model_type", "kind"),
    [
        ("llama", "causal"),
        (None, "causal"),
        ("ssd_masked_diffusion", "diffusion"),
        ("ssd_ctc_asr", "speech"),
    ],
)
def test_the_model_type_decides(tmp_path: Path, model_type: str | None, kind: str) -> None:
    assert kind_of({"model_type": model_type}) == kind
    assert kind_of(types.SimpleNamespace(model_type=model_type)) == kind
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    assert kind_at(tmp_path) == kind


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_an_unreadable_configuration_counts_as_causal(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    assert kind_at(tmp_path) == "causal"


def test_each_model_type_belongs_to_one_kind() -> None:
    found = [name for spec in KINDS.values() for name in spec.model_types]
    assert len(found) == len(set(found))
    assert [kind for kind, spec in KINDS.items() if not spec.model_types] == ["causal"]


@pytest.fixture
def other_kind(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Let models of type llama be of another kind, which notes how it was called."""
    calls: list[tuple[str, Any]] = []

    class Other(KindStrategy):
        @classmethod
        def generate(cls, *given: Any, **named: Any) -> Any:
            calls.append(("generate", (given, named)))
            return "generated"

    class Opened:
        @classmethod
        def open(cls, *given: Any) -> Any:
            calls.append(("open", given))
            raise DataError("opened")

    spec = kinds.KindSpec(("llama",), "AutoModelForCausalLM", "AutoTokenizer", None)
    monkeypatch.setitem(KINDS, "diffusion", spec)
    module: Any = types.ModuleType("kind_of_a_test")
    module.Opened = Opened
    monkeypatch.setitem(sys.modules, "kind_of_a_test", module)
    monkeypatch.setitem(PLACES, "diffusion", "kind_of_a_test:Opened")
    monkeypatch.setattr(api, "of_kind", {"diffusion": Other}.__getitem__)
    return calls


def test_generate_hands_every_argument_to_the_kind(
    tiny_model: ModelFactory, other_kind: list[tuple[str, Any]]
) -> None:
    model, prompts = tiny_model(), [[1, 2]]
    given = {
        "draft": "x",
        "draft_params": {"gamma": 2},
        "max_new_tokens": 3,
        "do_sample": True,
        "temperature": 0.5,
        "top_k": 4,
        "top_p": 0.5,
        "eos_token_id": 6,
        "stop_sequences": [[7]],
        "seed": 8,
        "streamer": None,
    }
    out: Any = ssd_infer.generate(model, prompts, **given)  # type: ignore[arg-type]
    assert out == "generated"
    assert other_kind == [("generate", ((model, prompts, None), given))]


def test_evaluate_asks_the_kind(tmp_path: Path, other_kind: list[tuple[str, Any]]) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    settings = EvalSettings(checkpoint=str(tmp_path))
    with pytest.raises(DataError, match="opened"):
        evaluate(settings, print)
    assert other_kind == [("open", (settings, print))]


def test_every_kind_is_evaluated_and_decoded_by_someone() -> None:
    """The names of modules that are imported late lead somewhere."""
    assert set(PLACES) == set(KINDS)
    for kind in KINDS:
        assert issubclass(kind_class(kind), EvalKind)
        register_classes(kind)
    assert issubclass(of_kind("diffusion"), DiffusionStrategy)
    assert issubclass(of_kind("speech"), SpeechStrategy)
    for name, info in infos().items():
        assert issubclass(reported(name), Reported), name
        assert info.kind in KINDS


def test_load_tells_the_kind(tiny_model: ModelFactory, tmp_path: Path) -> None:
    model = tiny_model()
    model.save_pretrained(tmp_path)
    loaded = ssd_infer.load(tmp_path, device="cpu")
    assert (loaded.kind, loaded.processor, loaded.tokenizer) == ("causal", None, None)
    assert ssd_infer.load(model).kind == "causal"


def test_reading_the_kind_imports_no_torch() -> None:
    code = "import sys, ssd_infer.checkpoint.kinds, ssd_infer.evaluation; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
