"""Data, tokenizers and models are known by what they hold: same name, size and time, other bytes, other identity."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pytest
import soundfile
import torch

from ssd_infer.checkpoint.content import file_digest, files_digest, folder_digest, weights_digest
from ssd_infer.errors import ConfigError, DataError
from ssd_infer.families.speech.utterances import FOLDER
from ssd_train import data, run
from ssd_train.config.schema import HFModelConfig, HubTextConfig, LocalTextConfig, Root, ScratchModelConfig
from ssd_train.config.schema_speech import HubSpeechConfig
from ssd_train.data import contents as data_contents
from ssd_train.data import speech
from ssd_train.data.contents import contents
from ssd_train.data.hub import hub_source
from ssd_train.data.speech.asterisk import asterisk_source
from ssd_train.data.speech.hub import hub_source as speech_hub_source
from ssd_train.data.speech.manifest import manifest_source
from ssd_train.data.tokenizer import vocabulary_hash
from ssd_train.recipes import registry as recipes
from ssd_train.recipes.asr_ctc.model import build_processor, speech_config
from ssd_train.runs import identity
from tests.train.diffusion_support import OBJECTIVES, diffusion_root
from tests.train.speech_support import manifest_config, speech_model, speech_root, tone, write_clips
from tests.train.support import base_model, llama_tokenizer, tiny_llama, tiny_root


def change(path: Path, old: bytes, new: bytes) -> None:
    """Replace bytes of a file, its size and its times kept."""
    before, held = path.stat(), path.read_bytes()
    assert len(old) == len(new)
    assert held.count(old) == 1
    path.write_bytes(held.replace(old, new))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def long_text(path: Path) -> Path:
    lines = [f"{number:07d} alpha beta gamma delta exit layer draft" for number in range(80_000)]
    path.write_text("\n".join(lines))
    return path


# -- the digests ------------------------------------------------------------------------------------------------------


def test_every_byte_counts_and_neither_name_nor_time(tmp_path: Path) -> None:
    one = tmp_path / "one.bin"
    one.write_bytes(bytes(9_000_000))
    first = file_digest(one)
    other = tmp_path / "other.bin"
    other.write_bytes(bytes(9_000_000))
    assert file_digest(other) == first
    for place in (0, 4_500_000, 8_999_999):
        held = bytearray(9_000_000)
        held[place] = 1
        one.write_bytes(held)
        assert file_digest(one) != first, place


def test_a_folder_is_known_by_names_and_content_and_what_is_nobodys_data_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "sub" / "b.txt").write_text("b")
    first = folder_digest(tmp_path, "data.name")
    for aside in (".hidden", "cache-123.arrow", "sub/.lock"):
        (tmp_path / aside).write_text("x")
    assert folder_digest(tmp_path, "data.name") == first
    (tmp_path / "sub" / "b.txt").rename(tmp_path / "sub" / "c.txt")
    assert folder_digest(tmp_path, "data.name") != first
    linked = tmp_path.parent / f"{tmp_path.name}-linked"
    linked.mkdir()
    (linked / "sub").symlink_to(tmp_path / "sub")
    before = folder_digest(linked, "data.name")
    (tmp_path / "sub" / "c.txt").write_text("B")
    assert folder_digest(linked, "data.name") != before


def test_an_unreadable_file_is_named_with_its_key(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.path: .*gone\.txt cannot be read \(No such file"):
        files_digest([tmp_path / "gone.txt"], "data.path")


def test_one_value_of_a_model_makes_other_weights_of_it() -> None:
    model = tiny_llama(hidden_size=64)
    first = weights_digest(model)
    assert weights_digest(model) == first
    assert weights_digest(tiny_llama(hidden_size=64)) == first
    with torch.no_grad():
        model.model.layers[2].mlp.up_proj.weight[7, 11] += 1e-3
    changed = weights_digest(model)
    assert changed != first
    assert weights_digest(tiny_llama(hidden_size=64, dtype=torch.bfloat16)) not in (first, changed)


# -- text -------------------------------------------------------------------------------------------------------------


def text_run(tmp_path: Path, **changes: Any) -> Root:
    cfg = replace(tiny_root(tmp_path, plain=True, max_steps=2, save_steps=1), model=base_model(tmp_path))
    source = LocalTextConfig(path=str(tmp_path / "long.txt"), block_size=24, validation_blocks=4)
    return replace(cfg, data=replace(source, **changes))


def packed(cfg: Root) -> tuple[Path, str]:
    text = data.build(cfg, cfg.run_dir)
    return text.train.path, text.tokenizer.decode(np.fromfile(text.train.path, dtype="uint16").tolist())


@pytest.mark.parametrize("side", ["path", "validation_path"])
def test_a_text_changed_in_its_middle_is_tokenized_again(side: str, tmp_path: Path) -> None:
    path = long_text(tmp_path / "long.txt")
    (tmp_path / "other.txt").write_text("alpha beta gamma " * 90)
    cfg = text_run(tmp_path, validation_path=str(tmp_path / "other.txt"))
    if side == "validation_path":
        cfg = replace(
            cfg, data=replace(cfg.data, path=str(tmp_path / "other.txt"), validation_path=str(path))
        )
    assert path.stat().st_size > 3_800_000
    first, _ = packed(cfg)
    change(path, b"0040000 alpha", b"0040000 ALPHA")
    again, _ = packed(cfg)
    assert again != first
    if side == "path":
        assert "0040000 ALPHA" in packed(cfg)[1]


def test_a_text_changed_while_it_is_read_leaves_no_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "long.txt"
    path.write_text("alpha beta gamma delta\n" * 90)
    cfg = text_run(tmp_path)
    write = data.write_tokens

    def written_over(*args: Any) -> int:
        count = write(*args)
        path.write_text("ALPHA beta gamma delta\n" * 90)
        return count

    with monkeypatch.context() as patch:
        patch.setattr(data, "write_tokens", written_over)
        with pytest.raises(DataError, match=r"data\.path: was changed while it was read .*start again"):
            data.build(cfg, cfg.run_dir)
    assert "ALPHA" in packed(cfg)[1]


def hub_folder(tmp_path: Path, first: str) -> Path:
    folder = tmp_path / "set"
    folder.mkdir(exist_ok=True)
    rows = [first, *(f"alpha beta gamma {number:04d}" for number in range(200))]
    (folder / "train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
    return folder


@pytest.mark.parametrize("streaming", [True, False])
def test_a_hub_folder_changed_in_place_is_read_again(
    streaming: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = hub_folder(tmp_path, "the first document")
    cfg = replace(
        text_run(tmp_path), data=HubTextConfig(name=str(folder), streaming=streaming, block_size=24)
    )
    first, text = packed(cfg)
    assert "the first document" in text
    change(folder / "train.jsonl", b"the first document", b"the other document")
    again, text = packed(cfg)
    assert again != first
    assert "the other document" in text
    assert "the first document" not in text


def test_a_saved_dataset_that_was_replaced_is_another(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    cfg = HubTextConfig(name=str(folder))
    found = []
    for word in ("one", "two", "one"):
        shutil.rmtree(folder, ignore_errors=True)
        datasets.Dataset.from_dict({"text": [word] * 9}).save_to_disk(str(folder))
        for name in ("state.json", "dataset_info.json"):
            state = json.loads((folder / name).read_text())
            (folder / name).write_text(json.dumps({**state, "_fingerprint": "the same"}))
        found.append(hub_source(cfg).fingerprint)
    assert found[0] != found[1]


@pytest.mark.parametrize("streaming", [True, False])
def test_a_hub_dataset_is_known_by_its_commit(
    streaming: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = datasets.Dataset.from_dict({"text": ["a", "b"]})
    found = SimpleNamespace(hash="one")
    given = rows.to_iterable_dataset() if streaming else rows
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: given)
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda *_, **__: found)
    source = HubTextConfig(name="org/name", streaming=streaming)
    first = hub_source(source).fingerprint
    assert hub_source(source).fingerprint == first
    cfg = replace(tiny_root(tmp_path, plain=True), data=source)
    then = contents(cfg)
    found.hash = "two"
    assert hub_source(source).fingerprint != first
    with pytest.raises(
        ConfigError, match=r"^data\.name: .*with, commit one .*set data\.revision=one, choose"
    ):
        identity.check_same_contents(cfg, contents(cfg), then)
    pinned = replace(cfg, data=replace(source, revision="one"))
    assert identity.identity(pinned) == identity.identity(cfg)


# -- a run that goes on -----------------------------------------------------------------------------------------------


def started(tmp_path: Path, **changes: Any) -> Root:
    (tmp_path / "long.txt").write_text("alpha beta gamma delta\n" * 90 + "the end\n")
    (tmp_path / "held.txt").write_text("exit layer draft token\n" * 30 + "the end\n")
    cfg = text_run(tmp_path, **changes)
    run.train(cfg)
    return replace(cfg, train=replace(cfg.train, max_steps=4))


def test_a_run_goes_on_with_the_same_content_wherever_it_lies_in_time(tmp_path: Path) -> None:
    cfg = started(tmp_path, validation_path=str(tmp_path / "held.txt"))
    for name in ("long.txt", "held.txt"):
        os.utime(tmp_path / name, (1, 1))
    assert (run.train(cfg) / "checkpoints" / "step-4").exists()


@pytest.mark.parametrize(
    ("file", "key"), [("long.txt", r"data\.path"), ("held.txt", r"data\.validation_path")]
)
def test_a_run_does_not_go_on_with_other_text(file: str, key: str, tmp_path: Path) -> None:
    cfg = started(tmp_path, validation_path=str(tmp_path / "held.txt"))
    before = (cfg.run_dir / "metrics.jsonl").read_bytes()
    change(tmp_path / file, b"the end", b"THE END")
    said = rf"{key}: holds other content .*\(got '.*{file}'\); put the earlier content back.*resume=never"
    with pytest.raises(ConfigError, match=said) as caught:
        run.train(cfg)
    assert len(caught.value.problems) == 1
    assert (cfg.run_dir / "metrics.jsonl").read_bytes() == before
    change(tmp_path / file, b"THE END", b"the end")
    run.train(cfg)


def test_a_run_from_scratch_names_the_side_that_changed(tmp_path: Path) -> None:
    (tmp_path / "held.txt").write_text("exit layer draft token\n" * 30 + "the end\n")
    cfg = tiny_root(tmp_path, plain=True, max_steps=1)
    cfg = replace(cfg, data=replace(cfg.data, validation_path=str(tmp_path / "held.txt")))
    run.train(cfg)
    change(tmp_path / "held.txt", b"the end", b"THE END")
    with pytest.raises(ConfigError, match=r"^data\.validation_path: holds other content"):
        run.train(cfg)


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_run_does_not_go_on_from_another_base_model(file: str, tmp_path: Path) -> None:
    cfg = started(tmp_path)
    assert isinstance(cfg.model, HFModelConfig)
    path = Path(cfg.model.name) / file
    held = path.read_bytes()
    if file == "model.safetensors":
        path.write_bytes(held[:-1] + bytes([held[-1] ^ 1]))
    elif file == "tokenizer.json":
        tokens = json.loads(held)
        tokens["added_tokens"][2]["normalized"] = not tokens["added_tokens"][2]["normalized"]
        path.write_text(json.dumps(tokens))
    else:
        path.write_text(json.dumps({**json.loads(held), "rms_norm_eps": 1e-4}))
    with pytest.raises(ConfigError, match=r"^model\.name: holds other content .*base'\)"):
        run.train(cfg)
    path.write_bytes(held)
    (Path(cfg.model.name) / "ssd_skip_set.json").write_text("{}")
    run.train(cfg)


def test_a_run_does_not_go_on_with_another_named_tokenizer(tmp_path: Path) -> None:
    llama_tokenizer().save_pretrained(tmp_path / "words")
    cfg = tiny_root(tmp_path, plain=True, max_steps=1)
    assert isinstance(cfg.model, ScratchModelConfig)
    cfg = replace(cfg, model=replace(cfg.model, tokenizer=str(tmp_path / "words")))
    run.train(cfg)
    llama_tokenizer("$A").save_pretrained(tmp_path / "words")
    with pytest.raises(ConfigError, match=r"^model\.tokenizer: holds other content"):
        run.train(cfg)


def test_a_hub_model_is_known_by_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = tmp_path / "models--org--name" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    monkeypatch.setattr("transformers.utils.hub.cached_file", lambda *_, **__: str(snapshot / "config.json"))
    (tmp_path / "long.txt").write_text("alpha")
    cfg = replace(text_run(tmp_path), model=HFModelConfig(name="org/name"))
    assert contents(cfg)["model.name"] == "commit " + "a" * 40


def test_pairs_that_changed_are_refused_and_held_out_files_are_read(tmp_path: Path) -> None:
    rows = [{"ask": f"alpha {i}", "text": "beta gamma"} for i in range(40)]
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = replace(OBJECTIVES["llada_sft"], logit_shift=True)
    cfg = replace(diffusion_root(tmp_path, config, max_steps=1), model=base_model(tmp_path))
    source = LocalTextConfig(path=str(tmp_path / "a.jsonl"), prompt_field="ask", block_size=48)
    cfg = replace(cfg, data=replace(source, validation_path=str(tmp_path / "b.jsonl")))
    found = recipes.build(config).build_data(cfg, cfg.run_dir)
    assert (len(found.train), len(found.validation)) == (40, 40)
    run.train(cfg)
    change(tmp_path / "b.jsonl", b'"alpha 20"', b'"ALPHA 20"')
    with pytest.raises(ConfigError, match=r"^data\.validation_path: holds other content"):
        run.train(cfg)


def test_a_checkpoint_of_an_earlier_version_goes_on_aloud(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cfg = text_run(tmp_path)
    identity.check_same_contents(cfg, {"data.path": "a"}, None)
    assert "does not say what its data held" in caplog.text
    saved = {
        key: value
        for key, value in identity.identity(cfg).items()
        if key not in ("data.add_bos", "data.control_tokens")
    }
    with pytest.raises(ConfigError, match=r"data\.add_bos: .*set data\.add_bos=False") as caught:
        identity.check_same_run(cfg, saved, 0)
    assert "set data.control_tokens=parse" in str(caught.value)
    old = replace(cfg, data=replace(cfg.data, add_bos=False, control_tokens="parse"))
    identity.check_same_run(old, saved, 0)
    heard = speech_root(tmp_path)
    known = {key: value for key, value in identity.identity(heard).items() if key in saved or "rate" in key}
    dropped = set(identity.identity(heard)) - set(known)
    assert {"data.add_bos", "data.control_tokens"} <= dropped
    with pytest.raises(ConfigError) as other:
        identity.check_same_run(heard, known, 0)
    assert not {"data.add_bos", "data.control_tokens"} & {item.key for item in other.value.problems}


def test_a_tokenizer_trained_by_an_earlier_version_is_kept_aloud(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cfg = tiny_root(tmp_path, plain=True, max_steps=1)
    run.train(cfg)
    mark = cfg.run_dir / "tokenizer" / "tokenizer_identity.json"
    held = json.loads(mark.read_text())
    held.pop("format")
    mark.write_text(json.dumps({**held, "source": "local-of-an-earlier-version"}))
    data.build(cfg, cfg.run_dir)
    assert "was made by an earlier version: its text is not compared" in caplog.text


def test_a_python_tokenizer_is_known_by_its_files(tmp_path: Path) -> None:
    class Tokenizer:
        def __init__(self, merges: str) -> None:
            self.merges = merges

        def get_vocab(self) -> dict[str, int]:
            return {"a": 0}

        def save_vocabulary(self, folder: str) -> None:
            (Path(folder) / "merges.txt").write_text(self.merges)

    hashes = [vocabulary_hash(Tokenizer(merges)) for merges in ("a b", "a b", "b a")]  # type: ignore[arg-type]
    assert hashes[0] == hashes[1] != hashes[2]


# -- speech -----------------------------------------------------------------------------------------------------------


def louder(path: Path) -> None:
    """Change one sample of a recording; size and times stay."""
    before, held = path.stat(), bytearray(path.read_bytes())
    held[-2] ^= 1
    path.write_bytes(held)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def unjoined(tmp_path: Path) -> Root:
    cfg = speech_root(tmp_path, max_steps=1)
    path = tmp_path / "clips" / "manifest.jsonl"
    return replace(cfg, data=manifest_config(path, join_clips=None, validation_share=0.65))


def speech_built(cfg: Root, **model: Any) -> speech.SpeechData:
    options = speech_model(**model)
    processor = build_processor(options, cfg.data.sampling_rate)  # type: ignore[attr-defined]
    return speech.build(cfg, cfg.run_dir, processor, speech_config(options, processor).encoder_config())


def test_a_recording_behind_the_same_manifest_counts(tmp_path: Path) -> None:
    path = write_clips(tmp_path / "clips")
    cfg = manifest_config(path)
    first = manifest_source(cfg, 0).fingerprint
    louder(tmp_path / "clips" / "la_ann_3.wav")
    second = manifest_source(cfg, 0).fingerprint
    (tmp_path / "clips" / "la_ann_3.wav").unlink()
    assert len({first, second, manifest_source(cfg, 0).fingerprint}) == 3


def test_stored_features_are_those_of_the_recordings_and_of_the_settings(tmp_path: Path) -> None:
    cfg = unjoined(tmp_path)

    def folder(found: Root) -> Any:
        return Path(speech_built(found).train.samples._data.filename)  # type: ignore[attr-defined]

    first = folder(cfg)
    assert folder(cfg) == first
    louder(tmp_path / "clips" / "la_ann_3.wav")
    assert folder(cfg) != first
    assert folder(replace(cfg, data=replace(cfg.data, max_seconds=3.0))) != first


def test_held_out_speech_of_a_start_that_never_trained_is_replaced(tmp_path: Path) -> None:
    cfg = unjoined(tmp_path)
    speech_built(cfg)

    def held() -> bytes:
        return b"".join(item.read_bytes() for item in sorted((cfg.run_dir / FOLDER / "test").glob("*.wav")))

    first = held()
    soundfile.write(tmp_path / "clips" / "la_ann_0.wav", tone("so", 0.5), 8000)
    speech_built(cfg)
    assert held() != first


def test_held_out_speech_of_a_trained_run_stays(tmp_path: Path) -> None:
    cfg = unjoined(tmp_path)
    speech_built(cfg)
    (cfg.run_dir / "checkpoints" / "step-1").mkdir(parents=True)
    (cfg.run_dir / FOLDER / "identity.json").unlink()  # as an earlier version left it
    before = {item: item.stat().st_mtime_ns for item in (cfg.run_dir / FOLDER).rglob("*.wav")}
    speech_built(cfg)
    assert before == {item: item.stat().st_mtime_ns for item in (cfg.run_dir / FOLDER).rglob("*.wav")}


def test_a_speech_run_does_not_go_on_with_other_recordings(tmp_path: Path) -> None:
    cfg = speech_root(tmp_path, max_steps=1)
    run.train(cfg)
    louder(tmp_path / "clips" / "la_ann_3.wav")
    with pytest.raises(ConfigError, match=r"^data\.path: holds other content .*manifest\.jsonl"):
        run.train(cfg)


def test_prompts_of_a_package_are_known_by_recordings_and_shares(tmp_path: Path) -> None:
    from tests.train.data.speech.test_speech_data import _unpacked

    cfg = _unpacked(tmp_path)
    first = asterisk_source(cfg).fingerprint
    assert asterisk_source(cfg).fingerprint == first
    assert asterisk_source(replace(cfg, validation_share=0.65)).fingerprint != first
    louder(next(tmp_path.rglob("vm-goodbye.wav")))
    assert asterisk_source(cfg).fingerprint != first


def test_a_speech_dataset_is_known_by_its_rows_and_by_files_they_only_name(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", tone("la", 1.0), 8000)
    rows = [{"audio": {"bytes": None, "path": str(tmp_path / "a.wav")}, "text": "la"}] * 3
    datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)}).save_to_disk(str(tmp_path / "set"))
    cfg = HubSpeechConfig(name=str(tmp_path / "set"), sampling_rate=8000)
    first = speech_hub_source(cfg).fingerprint
    assert speech_hub_source(cfg).fingerprint == first
    louder(tmp_path / "a.wav")
    assert speech_hub_source(cfg).fingerprint != first


def test_two_vocabularies_of_one_length_do_not_share_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = unjoined(tmp_path)
    first: Any = speech_built(cfg)
    from ssd_infer.models import asr_processor
    from ssd_train.recipes.asr_ctc import model as speech_models

    reverse = asr_processor.LETTERS[::-1]
    monkeypatch.setattr(
        speech_models, "character_tokenizer", lambda: asr_processor.character_tokenizer(reverse)
    )
    second: Any = speech_built(cfg)
    assert len(first.processor.tokenizer) == len(second.processor.tokenizer)
    assert first.train.samples.labels != second.train.samples.labels


def test_all_kinds_of_data_say_what_they_hold(tmp_path: Path) -> None:
    from ssd_train.config.schema import StdlibTextConfig
    from ssd_train.config.schema_speech import TTSSpeechConfig

    cfg = tiny_root(tmp_path, plain=True)
    kinds: list[tuple[Any, Callable[[str], bool]]] = [
        (StdlibTextConfig(), lambda key: key == "data.kind"),
        (TTSSpeechConfig(), lambda key: key == "data.voices"),
        (cfg.data, lambda key: key == "data.path"),
    ]
    for source, named in kinds:
        found = data_contents.contents(replace(cfg, data=source))
        assert found
        assert all(map(named, found))
