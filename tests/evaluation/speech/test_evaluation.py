"""The report of a speech checkpoint: every decoder a row, thresholds chosen on dev, encoder time on both sides."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ssd_infer
from ssd_infer.config.evaluation import EvalSettings
from ssd_infer.errors import ConfigError, DataError
from ssd_infer.evaluation import evaluate
from ssd_infer.families.speech.utterances import Utterance, save_utterances
from ssd_infer.models.asr_processor import ASRFeatureExtractor, CTCASRProcessor, character_tokenizer
from ssd_infer.report.html import render_html
from ssd_infer.report.markdown import render_markdown
from ssd_infer.report.rows import all_rows, exit_code, gains, headline, noise_rows
from ssd_infer.report.table import plots_of, tables_of
from ssd_infer.report.write import read_report
from ssd_infer.strategies.ctc_draft.saved_thresholds import thresholds_of
from tests.families.speech.support import MELS, tiny_asr

RATE = 8000


def utterances(loaded: Any, count: int, seed: int) -> list[Utterance]:
    """Return noise that says what plain decoding hears in it, every third time with a word more."""
    rng = np.random.default_rng(seed)
    waves = [(0.1 * rng.normal(size=3000 + 700 * index)).astype(np.float32) for index in range(count)]
    texts = ssd_infer.transcribe(loaded, waves, RATE).texts
    said = [f"{text} x" if index % 3 == 0 or not text else text for index, text in enumerate(texts)]
    return [Utterance(torch.from_numpy(wave), text, "") for wave, text in zip(waves, said, strict=True)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "run"
    checkpoint = folder / "checkpoints" / "step-7"
    tiny_asr(0, 31, eos=1.0).float().save_pretrained(checkpoint)
    CTCASRProcessor(ASRFeatureExtractor(MELS, RATE), character_tokenizer()).save_pretrained(checkpoint)
    loaded = ssd_infer.load(checkpoint, dtype="float32", device="cpu")
    for seed, (name, count) in enumerate({"dev": 9, "test": 6, "test_voice": 4}.items()):
        save_utterances(folder / "heldout" / name, utterances(loaded, count, seed), RATE)
    return checkpoint


def settings(checkpoint: Path, **changes: Any) -> EvalSettings:
    return EvalSettings(**{"checkpoint": str(checkpoint), "device": "cpu", "repeats": 2} | changes)


@pytest.fixture(scope="module")
def report(run: Path) -> dict[str, Any]:
    evaluate(settings(run))
    return read_report(run / "report")


def test_every_decoder_is_a_row_at_both_batch_sizes(report: dict[str, Any]) -> None:
    variants = ["", ":lossless", ":verify_only", ":gate_only", ":ctc_only", ":same_wer", ":best_wer"]
    names = {row["name"]: row for row in report["strategies"]}
    for suffix in ("", ":b8"):
        assert [row["name"] for row in report["baselines"] if row["name"].endswith(suffix)]
        for variant in variants:
            row = names[f"ctc_draft{variant}{suffix}"]
            assert row["status"] == "ok"
            assert row["speed"]["against"] == f"ar_greedy{suffix}"
            assert sum(row["extra"]["speech"]["routes"].values()) == pytest.approx(1.0)
            assert row["extra"]["speech"]["encoder_share"] > 0
            assert row["extra"]["speech"]["utterances"] == 10
            assert row["lossless"]["claimed"] == (variant == ":lossless")
    assert {row["name"] for row in report["peers"]} == {
        f"{name}{suffix}" for name in ("sasd", "rescoring") for suffix in ("", ":b8")
    } | {"transformers_generate"}
    assert names["early_exit"]["status"] == "not_applicable"
    assert "takes audio" in names["early_exit"]["reason"]


def test_the_lossless_row_passes_and_wins(report: dict[str, Any]) -> None:
    rows = {row["name"]: row for row in report["strategies"]}
    for name in ("ctc_draft:lossless", "ctc_draft:lossless:b8"):
        assert rows[name]["lossless"]["verdict"] == "pass"
        assert rows[name]["extra"]["speech"]["wer"] == report["baselines"][0]["extra"]["speech"]["wer"]
        assert rows[name]["extra"]["speech"]["exact_match"] == 1.0
    sure = gains(rows["ctc_draft:lossless"])
    assert report["verdict"]["best_strategy"] == ("ctc_draft:lossless" if sure else None)
    assert exit_code(report) == 0
    assert "word error rate" in headline(report)


def test_plain_decoding_is_measured_against_itself_at_every_batch_size(report: dict[str, Any]) -> None:
    found = {row["name"]: row["extra"]["again"] for row in noise_rows(report)}
    assert {name: facts["of"] for name, facts in found.items()} == {
        "ar_greedy:again": "ar_greedy",
        "ar_greedy:again:b8": "ar_greedy:b8",
    }
    row = next(row for row in report["strategies"] if row["name"] == "ctc_draft:lossless")
    noise = found["ar_greedy:again"]["noise"]
    assert row["extra"]["noise"] == noise
    assert row["speed"]["ci95"][1] >= row["speed"]["speedup"] * (1 + noise) - 1e-9


def test_thresholds_in_nats_and_relative_to_the_vocabulary(report: dict[str, Any], run: Path) -> None:
    row = next(row for row in report["strategies"] if row["name"] == "ctc_draft:gate_only")
    speech = row["extra"]["speech"]
    if speech["theta_ctc_nats"] is not None:
        assert speech["theta_ctc_relative"] == pytest.approx(speech["theta_ctc_nats"] / math.log(31))
    curve = next(row["extra"]["calibration"] for row in report["strategies"] if row["name"] == "ctc_draft")
    assert len(curve["points"]) > 20
    assert curve["utterances"] == 9 * (1 + len(curve["noise_db"]))
    off = [point for point in curve["points"] if point["theta_ctc"] is None and point["theta_lm"] > 1]
    assert [point["wer"] for point in off] == [curve["plain_wer"]], "both gates off is plain decoding"
    for point in curve["points"]:
        assert sum(point["routes"].values()) == pytest.approx(1.0)
    saved = thresholds_of(ssd_infer.load(run, dtype="float32", device="cpu").model)
    same = next(row for row in report["strategies"] if row["name"] == "ctc_draft:same_wer")
    expected = same["params"]["theta_ctc"]
    assert saved["theta_ctc"] == (expected if expected is None else pytest.approx(expected, rel=1e-3))


def test_the_curve_tells_what_decoding_does(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table look-up of every third point equals decoding the dev set at that point."""
    from ssd_infer.families.speech.scoring import total, words
    from ssd_infer.families.speech.utterances import heldout_sets, read_manifest, read_utterances
    from ssd_infer.strategies.ctc_draft import gate_calibration as calibration
    from ssd_infer.strategies.ctc_draft.gate_calibration import Costs, calibrate

    loaded = ssd_infer.load(run, dtype="float32", device="cpu")
    dev, _ = read_utterances(read_manifest(heldout_sets(run)["dev"]), RATE)
    monkeypatch.setattr(calibration, "FEWEST_ERRORS", 0)
    found = calibrate(loaded.model, loaded.processor, dev, Costs(1.0, 0.1, 0.5, 0.2))
    waves = [item.samples for item in dev]
    for point in found.points[::3]:
        params = {"theta_ctc": point.theta_ctc, "theta_lm": point.theta_lm}
        out = ssd_infer.transcribe(loaded, waves, RATE, draft="ctc_draft", draft_params=params)
        edits = total(words([item.text for item in dev], out.texts))
        assert edits.rate == point.wer, point
        shares = {name: out.routes.count(name) / len(dev) for name in point.routes}
        assert shares == pytest.approx(point.routes)


def test_both_renderings_show_the_speech_table(report: dict[str, Any]) -> None:
    text, page = render_markdown(report), render_html(report)
    for shown in (text, page):
        assert "RTFx" in shown
        assert "test_voice" in shown.replace("\\_", "_")
    assert text == render_markdown(json.loads(json.dumps(report)))
    assert "Word error rate against speed, predicted" in page
    speech = [table for _, table in tables_of(all_rows(report)) if table.title == "Speech"]
    assert len(speech) == 1
    names = {cells[0] for cells in speech[0].rows}
    assert {"ar_greedy", "ctc_draft", "ctc_draft:lossless", "sasd"} <= names
    measured = [
        plot for _, plot in plots_of(all_rows(report)) if plot.title == "Word error rate against speed"
    ]
    first = {name for name in names if not name.endswith(":b8")}
    assert {one.name for one in measured[0].series} == first
    assert "ctc_draft:best_wer" in first


def test_one_draft_with_given_thresholds(run: Path, tmp_path: Path) -> None:
    given = {"theta_ctc": 1.5, "theta_lm": 0.02}
    found = evaluate(settings(run, draft="ctc_draft", draft_params=given, out=str(tmp_path), repeats=1))
    rows = [row for row in found["strategies"] if row["status"] == "ok"]
    assert [row["name"] for row in rows] == ["ctc_draft", "ctc_draft:b8"]
    assert rows[0]["params"] == given
    noise = [row["extra"]["again"]["noise"] for row in noise_rows(found)]
    assert all(map(math.isfinite, noise)), "an empty transcript has a length of audio, if no token"


@pytest.mark.parametrize("name", ["sasd", "rescoring"])
def test_one_reference_is_measured_when_asked_for(run: Path, tmp_path: Path, name: str) -> None:
    found = evaluate(settings(run, draft=name, out=str(tmp_path), repeats=1))
    peers = {row["name"]: row for row in found["peers"]}
    assert peers[name]["speedup"] > 0
    assert peers[f"{name}:b8"]["speedup"] > 0
    assert [row["name"] for row in found["strategies"] if row["status"] == "ok"] == []
    assert exit_code(found) == 0


@pytest.mark.parametrize("measure", ["sequence", "max"])
def test_the_line_on_gate_one_names_its_measure(run: Path, tmp_path: Path, measure: str) -> None:
    from ssd_infer.evaluation.carried import show
    from ssd_infer.strategies.ctc_draft.ctc_params import AGGREGATES
    from ssd_infer.strategies.ctc_draft.speech_report import MEASURES, speech_tables

    assert set(MEASURES) == set(AGGREGATES)
    given = {"entropy_agg": measure}
    made = settings(run, draft="ctc_draft:ctc_only", draft_params=given, out=str(tmp_path), repeats=1)
    found = evaluate(made)
    row = next(row for row in found["strategies"] if "entropy" in row["extra"])
    doubt = row["extra"]["entropy"]
    assert doubt["measure"] == measure
    doubt |= {"auroc": 0.9, "right": [0.1] * 9, "wrong": [2.0] * 9}
    tables = speech_tables(row)
    assert tables[-1].caption.startswith(f"Gate 1: the {MEASURES[measure]} of a wrong CTC transcript exceeds")
    show(row, tables, [])
    assert render_markdown(found).count("Gate 1: the") == render_html(found).count("Gate 1: the") == 1


def test_an_undertrained_verifier_is_said() -> None:
    from ssd_infer.strategies.ctc_draft.gate_calibration import Calibration, Costs

    costs = Costs(1, 1, 1, 1)
    worse, better = Calibration([], 0.21, 0.06, 50, costs, 500), Calibration([], 0.05, 0.06, 50, costs, 500)
    assert "undertrained" in str(worse.undertrained)
    assert worse.uncertain is None
    assert better.undertrained is None
    few = Calibration([], 0.003, 0.001, 150, costs, 750)
    assert few.undertrained is None, "two words prove nothing"
    assert "only 3 word errors" in str(few.uncertain)


def test_too_few_errors_allow_only_settings_that_change_no_text() -> None:
    from ssd_infer.strategies.ctc_draft.gate_calibration import Calibration, Costs, Point

    def point(theta_ctc: float | None, theta_lm: float, speedup: float) -> Point:
        return Point(theta_ctc, theta_lm, 0.003, speedup, {})

    points = [point(2.0, 0.0, 5.0), point(None, 0.3, 4.0), point(None, 0.5, 3.0), point(None, 2.0, 1.0)]
    costs = Costs(1, 1, 1, 1)
    few = Calibration(points, 0.003, 0.003, 150, costs, 750)
    enough = Calibration(points, 0.003, 0.003, 1500, costs, 7500)
    assert few.fastest(0.14) == few.fastest(0.0) == points[2]
    assert enough.fastest(0.0) == points[0]


def test_noisy_copies_join_a_dev_set_without_errors(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ssd_infer.families.speech.utterances import heldout_sets, read_manifest, read_utterances
    from ssd_infer.strategies.ctc_draft import gate_calibration as calibration

    loaded = ssd_infer.load(run, dtype="float32", device="cpu")
    dev, _ = read_utterances(read_manifest(heldout_sets(run)["dev"]), RATE)
    costs = calibration.Costs(1.0, 0.1, 0.5, 0.2)
    monkeypatch.setattr(calibration, "FEWEST_ERRORS", 1)
    alone = calibration.calibrate(loaded.model, loaded.processor, dev, costs)
    assert alone.noise_db == ()
    monkeypatch.setattr(calibration, "FEWEST_ERRORS", 10**6)
    found = calibration.calibrate(loaded.model, loaded.processor, dev, costs)
    assert found.noise_db == calibration.NOISE_DB
    assert found.utterances == len(dev) * (1 + len(calibration.NOISE_DB))
    assert found.words == alone.words * (1 + len(calibration.NOISE_DB))
    harmless = [point for point in found.points if point.harmless]
    assert [point.wer for point in harmless] == [found.plain_wer] * 2


def test_noise_is_as_loud_as_said_and_always_the_same() -> None:
    from ssd_infer.strategies.ctc_draft.gate_calibration import noisy

    clean = [Utterance(torch.sin(torch.arange(16000) / 20), "a", "a"), Utterance(torch.zeros(50), "b", "b")]
    first, second = noisy(clean, 10.0), noisy(clean, 10.0)
    added = first[0].samples - clean[0].samples
    ratio = 10 * torch.log10(clean[0].samples.pow(2).mean() / added.pow(2).mean())
    assert float(ratio) == pytest.approx(10.0, abs=0.2)
    assert torch.equal(first[0].samples, second[0].samples)
    assert torch.equal(first[1].samples, clean[1].samples), "silence stays silent"


def test_wrong_speech_is_refused_before_measuring(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tasks: is no speech task"):
        evaluate(settings(run, tasks=["copy"]))
    with pytest.raises(ConfigError, match="draft: is no draft for speech"):
        evaluate(settings(run, draft="early_exit"))
    with pytest.raises(ConfigError, match=r"draft_params\.theta_x: is not a parameter"):
        evaluate(settings(run, draft="ctc_draft", draft_params={"theta_x": 1}))
    (tmp_path / "a.jsonl").write_text('{"audio": "missing.wav", "text": "a"}\n')
    with pytest.raises(DataError, match="1 of 1 audio files cannot be used"):
        evaluate(settings(run, tasks=[f"file:{tmp_path / 'a.jsonl'}"]))
    wordless = [Utterance(torch.rand(4000), "...", "")]
    save_utterances(tmp_path / "b", wordless, RATE)
    with pytest.raises(DataError, match="holds no word"):
        evaluate(settings(run, tasks=[f"file:{tmp_path / 'b' / 'manifest.jsonl'}"]))


def test_speech_is_timed_as_text_is(run: Path, tmp_path: Path) -> None:
    """Every decoder has the same recognitions in its own blocks; speed divides audio, its rate counts tokens."""
    found = evaluate(settings(run, draft="ctc_draft:lossless", out=str(tmp_path), repeats=2))
    lines = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    pairs = {
        name: [
            (line["unit"], line["repeat"])
            for line in lines
            if (line["name"], line["batch_size"]) == (name, 1)
        ]
        for name in ("ar_greedy", "ar_greedy:again", "ctc_draft:lossless", "sasd", "rescoring")
    }
    assert len(pairs["ar_greedy"]) == 20
    assert all(sorted(done) == sorted(pairs["ar_greedy"]) for done in pairs.values())
    mine = [line for line in lines if line["name"] == "ar_greedy" and line["batch_size"] == 1]
    row = found["baselines"][0]
    assert row["tokens"] == sum(len(tokens) for line in mine for tokens in line["tokens"])
    seconds = sum(task["extra"]["seconds"] for task in found["protocol"]["tasks"])
    assert row["extra"]["speech"]["rtfx"] == pytest.approx(2 * seconds / row["seconds"], rel=0.01)
    assert row["tokens_per_second"] == pytest.approx(row["tokens"] / row["seconds"])
    assert "rotating order, in blocks" in found["protocol"]["timer"]


def test_a_draft_that_is_wrong_in_company_fails_the_report(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole recognitions are right; only a budget that ends inside a draft of a batch shows the fault."""
    from ssd_infer.strategies.ctc_draft import decode

    right = decode.verify_exactly

    def cut_wrongly(decoder: Any, encoded: Any, drafts: Any, limits: Any, params: Any, out: Any) -> None:
        right(decoder, encoded, drafts, limits, params, out)
        if len(limits) > 1 and max(limits) < 6:
            out.rows[0].tokens[-1:] = [5]

    monkeypatch.setattr(decode, "verify_exactly", cut_wrongly)
    found = evaluate(settings(run, out=str(tmp_path), draft="ctc_draft:lossless", repeats=1))
    rows = {row["name"]: row for row in found["strategies"]}
    for name in ("ctc_draft:lossless", "ctc_draft:lossless:b8"):
        assert "10 of 10 outputs equal" in rows[name]["lossless"]["detail"]
        assert rows[name]["lossless"]["verdict"] == "fail", rows[name]["lossless"]["detail"]
        assert "row 0 differs from plain decoding" in rows[name]["lossless"]["detail"]
    assert exit_code(found) == 1


def test_the_lossless_row_says_at_which_batches_and_budgets(report: dict[str, Any]) -> None:
    row = next(row for row in report["strategies"] if row["name"] == "ctc_draft:lossless")
    facts = row["lossless"]["extra"]["batches"]
    assert facts["batch_sizes"] == [1, 4]
    assert facts["budgets"][:3] == [1, 2, 5]
    assert facts["equal"] == facts["outputs"] > 0
    assert "plain decoding of each utterance alone" in row["lossless"]["detail"]
