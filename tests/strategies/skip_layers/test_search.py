"""Bayesian search, saved results, and how `auto` uses them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

import ssd_infer
from ssd_infer.checkpoint import machine
from ssd_infer.checkpoint.content import weights_digest
from ssd_infer.engine.sampling import SamplingParams
from ssd_infer.engine.sublayers import SkipSet
from ssd_infer.engine.target import Target
from ssd_infer.errors import ConfigError
from ssd_infer.strategies.skip_layers import bayes
from ssd_infer.strategies.skip_layers import saved_search as store
from ssd_infer.strategies.skip_layers import skip_calibration as calibration
from ssd_infer.strategies.skip_layers.bayes import Progress, probes, search_bayes
from ssd_infer.strategies.skip_layers.offline_search import prepare, search, tokens_per_second
from ssd_infer.strategies.skip_layers.search_result import SearchResult
from ssd_infer.tuning.calibration_text import CalibrationSet, write_calibration_set
from ssd_infer.tuning.rounds import Prediction
from ssd_infer.tuning.sublayer_costs import cached_sublayer_costs, remember_costs
from tests.conftest import ModelFactory, build_model
from tests.engine.test_exactness import prompts, reference
from tests.strategies.skip_layers.test_dp import flat_costs


def prediction(speedup: float) -> Prediction:
    return Prediction(3, 0.0, 0.8, 3.4, 3.0, 0.4, 1.1, speedup)


def dead_middle(model: Any) -> Any:
    """Silence the MLPs of layers 1 and 2, so that skipping them costs no acceptance."""
    with torch.no_grad():
        for index in (1, 2):
            model.model.layers[index].mlp.down_proj.weight.zero_()
    return model


def material_of(model: Any) -> CalibrationSet:
    rows = [row.tolist() for row in prompts(3, 97)]
    return write_calibration_set(Target.of(model), rows, SamplingParams(), 17)


def test_bayes_finds_dead_sublayers_and_reports_progress(tiny_model: ModelFactory) -> None:
    material = material_of(dead_middle(tiny_model()))
    seen: list[Progress] = []
    found = search_bayes(material, flat_costs(4), seconds=1e9, trials=24, seed=1, watch=seen.append)
    assert (found.method, found.trials, len(seen)) == ("bayes", 24, 24)
    assert {1, 2} & found.skips.mlp
    assert [step.best.speedup for step in seen] == sorted(step.best.speedup for step in seen)
    assert found.prediction == seen[-1].best


def test_bayes_starts_from_its_probes_and_obeys_its_time(tiny_model: ModelFactory) -> None:
    asked: list[SkipSet] = []

    def objective(skips: SkipSet, _outlook: Prediction) -> float:
        asked.append(skips)
        return float(len(skips))

    found = search_bayes(material_of(tiny_model()), flat_costs(4), 1e9, 4, objective)
    assert asked[:2] == probes(4)
    assert found.skips == max(asked, key=len)
    assert search_bayes(material_of(tiny_model()), flat_costs(4), 0.0, 100).trials == 1


def test_without_optuna_the_remedy_is_named(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"ssd-toolkit\[search\]"), bayes._study(0, True):
        pass


def test_measured_objective_decodes(tiny_model: ModelFactory) -> None:
    model = tiny_model()
    target = Target.of(model)
    rate = tokens_per_second(target, [[2, 3, 4]], do_sample=False)
    assert rate(SkipSet.of([1], [1]), prediction(1.2)) > 0


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A saved model whose middle MLPs do nothing."""
    dead_middle(build_model()).save_pretrained(tmp_path / "ckpt")
    return tmp_path / "ckpt"


def test_a_result_is_saved_beside_the_checkpoint_and_used_by_auto(checkpoint: Path) -> None:
    loaded = ssd_infer.load(checkpoint, device="cpu")
    target = Target.of(loaded.model)
    found = SearchResult(SkipSet.of([], [1, 2]), prediction(1.5), "dp", 2.0, 9)
    store.save(checkpoint, target, False, found)
    again = ssd_infer.load(checkpoint, device="cpu")
    rows = prompts(2, 97)
    out = ssd_infer.generate(again, rows, draft="skip_set", max_new_tokens=12)
    assert out.sequences == reference(again.model, rows, 12)
    assert (out.draft_params["skip_attention"], out.draft_params["skip_mlp"]) == ([], [1, 2])
    assert (out.draft_params["gamma"], out.draft_params["aim"]) == (3, 0.8)
    assert out.stats.total.alpha == 1.0
    assert "by dp in 2.0 s" in out.note


def test_other_circumstances_are_named_and_measured_again(checkpoint: Path) -> None:
    loaded = ssd_infer.load(checkpoint, device="cpu")
    target = Target.of(loaded.model)
    path = store.save(
        checkpoint, target, False, SearchResult(SkipSet.of([1], []), prediction(9.9), "dp", 2.0, 9)
    )
    found, note = store.load(checkpoint, target, False)
    assert found is not None
    assert (found.skips, note) == (SkipSet.of([1], []), "")
    assert store.load(checkpoint, target, True)[0] is None
    text = json.loads(path.read_text())
    text["results"][0]["where"]["attention"] = "flash_attention_2"
    path.write_text(json.dumps(text))
    found, note = store.load(checkpoint, target, False)
    assert found is None
    assert "attention was flash_attention_2, is sdpa" in note
    remember_costs(target, flat_costs(4))
    _, note = calibration.cached_search(target, [[2, 3, 4, 5]], do_sample=False)
    assert "measured again" in note


def test_changed_weights_void_a_result(checkpoint: Path) -> None:
    loaded = ssd_infer.load(checkpoint, device="cpu")
    target = Target.of(loaded.model)
    store.save(checkpoint, target, False, SearchResult(SkipSet.of([1], []), prediction(9.9), "dp", 2.0, 9))
    changed = ssd_infer.load(checkpoint, device="cpu")
    other = Target.of(changed.model)
    with torch.no_grad():
        other.model.get_parameter("model.layers.2.mlp.up_proj.weight").mul_(1.5)
    found, note = store.load(checkpoint, other, False)
    assert found is None
    assert "other weights" in note


def test_results_for_several_circumstances_live_together(checkpoint: Path) -> None:
    loaded = ssd_infer.load(checkpoint, device="cpu")
    target = Target.of(loaded.model)
    for sampled, layer in ((False, 1), (True, 2), (False, 3)):
        store.save(
            checkpoint, target, sampled, SearchResult(SkipSet.of([layer], []), prediction(1.1), "dp", 1.0, 1)
        )
    greedy, _ = store.load(checkpoint, target, False)
    sampling, _ = store.load(checkpoint, target, True)
    assert greedy is not None
    assert sampling is not None
    assert (greedy.skips.attention, sampling.skips.attention) == ({3}, {2})


@pytest.mark.parametrize(
    "text", ["", "{ not json", "[]", '{"version": 1}', '{"version": 1, "results": null}']
)
def test_a_damaged_file_is_named_and_written_anew(checkpoint: Path, text: str) -> None:
    loaded = ssd_infer.load(checkpoint, device="cpu")
    target = Target.of(loaded.model)
    assert store.load(checkpoint, target, False) == (None, "")
    (checkpoint / store.FILE).write_text(text)
    assert store.load(checkpoint, target, False) == (
        None,
        f"{store.FILE} is damaged, so it was measured again",
    )
    kept = SearchResult(SkipSet.of([1], []), prediction(1.2), "dp", 2.0, 9)
    store.save(checkpoint, target, False, kept)
    assert store.load(checkpoint, target, False) == (kept, "")


def test_a_file_that_is_none_or_of_another_version_says_so(checkpoint: Path) -> None:
    loaded = ssd_infer.load(checkpoint, device="cpu")
    target = Target.of(loaded.model)
    path = checkpoint / store.FILE
    path.write_text('{"version": 7, "results": []}')
    assert "is of version 7, not 1" in store.load(checkpoint, target, False)[1]
    path.unlink()
    path.mkdir()
    assert "cannot be read" in store.load(checkpoint, target, False)[1]


@pytest.mark.parametrize(
    "change",
    [
        {"skip_attention": None},
        {"skip_attention": "1"},
        {"skip_mlp": [1.5]},
        {"skip_mlp": [4]},
        {"skip_mlp": [-1]},
        {"method": None},
        {"seconds": "2"},
        {"where": None},
        {"extra": []},
        {"outlook": None},
        {"outlook": {"gamma": 3}},
        {"outlook": {**asdict(prediction(1.2)), "speedup": float("nan")}},
        {"outlook": {**asdict(prediction(1.2)), "gamma": 0}},
    ],
)
def test_a_damaged_result_is_passed_over(checkpoint: Path, change: dict[str, Any]) -> None:
    loaded = ssd_infer.load(checkpoint, device="cpu")
    target = Target.of(loaded.model)
    path = store.save(
        checkpoint, target, False, SearchResult(SkipSet.of([1], []), prediction(9.9), "dp", 2.0, 9)
    )
    stored = json.loads(path.read_text())
    stored["results"][0] |= change
    path.write_text(json.dumps(stored))
    found, note = store.load(checkpoint, target, False)
    assert found is None
    assert "is damaged" in note
    remember_costs(target, flat_costs(4, attention=1e-9, mlp=1e-9, step=1.0))
    _, note = calibration.cached_search(target, [[2, 3, 4, 5]], do_sample=False)
    assert "is damaged, so it was measured again" in note
    sound = SearchResult(SkipSet.of([2], []), prediction(1.1), "bayes", 2.0, 9)
    store.save(checkpoint, target, False, sound)
    assert store.load(checkpoint, target, False) == (sound, "")


def test_another_processor_is_another_device(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = ssd_infer.load(checkpoint, device="cpu")
    target = Target.of(loaded.model)
    store.save(checkpoint, target, False, SearchResult(SkipSet.of([1], []), prediction(9.9), "dp", 2.0, 9))
    monkeypatch.setattr(machine, "cpu_name", lambda: "Another CPU")
    found, note = store.load(checkpoint, target, False)
    assert found is None
    assert "is Another CPU" in note


@pytest.mark.parametrize("how", ["dtype", "attention", "threads"])
def test_a_model_that_runs_otherwise_is_searched_and_measured_again(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """What a process remembers holds under the search_environment it was found in, as what a file says does."""
    model = tiny_model()
    target = Target.of(model)
    costs = flat_costs(4)
    known = SearchResult(SkipSet.of([1], []), prediction(9.9), "dp", 2.0, 9)
    remember_costs(target, costs)
    calibration.remember(target, known)
    assert cached_sublayer_costs(target) is costs
    assert calibration.cached_search(target, [[2, 3, 4, 5]], False)[0] is known
    if how == "dtype":
        model.to(torch.float32 if target.dtype == torch.float64 else torch.float64)
    elif how == "attention":
        model.set_attn_implementation("eager")
    else:
        monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    assert cached_sublayer_costs(target) is not costs
    assert calibration.cached_search(target, [[2, 3, 4, 5]], False)[0] is not known


def test_auto_searches_by_itself_and_falls_back_to_plain(tiny_model: ModelFactory) -> None:
    model, rows = tiny_model(), prompts(2, 97)
    target = Target.of(model)
    remember_costs(target, flat_costs(4, attention=1e-9, mlp=1e-9, step=1.0))  # skipping saves nothing
    out = ssd_infer.generate(model, rows, draft="skip_set", max_new_tokens=8)
    assert out.draft is None
    assert "plain decoding: no skip set is expected to gain" in out.note
    assert out.sequences == reference(model, rows, 8)


def test_auto_takes_what_is_free(tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "measured_speedup", lambda *_: 1.2)
    model, rows = dead_middle(tiny_model()), prompts(2, 97)
    remember_costs(Target.of(model), flat_costs(4, step=0.0))
    out = ssd_infer.generate(model, rows, draft="skip_set", max_new_tokens=24)
    assert out.draft == "skip_set"
    assert {1, 2} <= set(out.draft_params["skip_mlp"])
    assert out.sequences == reference(model, rows, 24)


def test_a_given_set_gets_its_gamma(tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "measured_speedup", lambda *_: 1.2)
    model = dead_middle(tiny_model())
    remember_costs(Target.of(model), flat_costs(4, step=0.0))
    params = {"skip_attention": [], "skip_mlp": [1, 2], "confidence": 0.0}
    out = ssd_infer.generate(model, prompts(2, 97), draft="skip_set", draft_params=params, max_new_tokens=8)
    assert out.draft_params["gamma"] == 12  # everything is accepted and verifying is flat, so long drafts win


@pytest.mark.parametrize("method", ["dp", "bayes"])
def test_one_search_from_prompts_to_file(checkpoint: Path, method: str) -> None:
    loaded = ssd_infer.load(checkpoint, device="cpu")
    target = Target.of(loaded.model)
    rows = [row.tolist() for row in prompts(3, 97)]
    said: list[str] = []
    found = search(target, rows, method, seconds=1e9, trials=3, folder=checkpoint, say=said.append)
    assert store.load(checkpoint, target, False)[0] is not None
    assert calibration.cached_search(target, rows, False)[0] is found
    assert len(said) == 3


def test_both_methods_search_on_the_same_ground(checkpoint: Path) -> None:
    loaded = ssd_infer.load(checkpoint, device="cpu")
    target = Target.of(loaded.model)
    rows = [row.tolist() for row in prompts(3, 97)]
    ground = prepare(target, rows)
    found = [
        search(target, rows, method, seconds=1e9, trials=3, folder=checkpoint, ground=ground)
        for method in ("dp", "bayes")
    ]
    assert found[0].extra["costs"] == found[1].extra["costs"]
    assert [store.load(checkpoint, target, False, item.method)[0] for item in found] == found


def test_a_change_of_one_value_makes_other_weights(checkpoint: Path) -> None:
    model, again = (ssd_infer.load(checkpoint, device="cpu").model for _ in range(2))
    first = weights_digest(model)
    assert weights_digest(again) == first
    with torch.no_grad():
        model.get_parameter("model.layers.0.mlp.up_proj.weight")[3, 5] += 1e-3
    assert weights_digest(model) != first
