"""Speech sources: what they yield, what they refuse, and that nothing is dropped without being counted."""

from __future__ import annotations

import gzip
import itertools
import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from ssd_infer.errors import DataError
from ssd_infer.families.speech.utterances import Utterance, heldout_sets, read_manifest
from ssd_infer.models.asr_processor import CTCASRProcessor
from ssd_train.config.schema import LocalTextConfig
from ssd_train.config.schema_speech import AsteriskSpeechConfig, HubSpeechConfig, TTSSpeechConfig
from ssd_train.data.speech import BatchedSamples, build, collate, grammar, tts
from ssd_train.data.speech.asterisk import asterisk_source, normalise, transcripts
from ssd_train.data.speech.batches import length_batches
from ssd_train.data.speech.engines import ENGINES, usable_voices
from ssd_train.data.speech.hub import hub_source
from ssd_train.data.speech.manifest import manifest_source, split_lines
from ssd_train.data.speech.open_speech import open_speech
from ssd_train.data.speech.screening import Screen, Tally
from ssd_train.data.speech.store import StoredSpeech, is_complete, write_speech
from ssd_train.recipes.asr_ctc.model import build_processor, speech_config
from tests.train.speech_support import RATE, manifest_config, speech_model, speech_root, tone, write_clips


def _processor(rate: int = RATE) -> CTCASRProcessor:
    return build_processor(speech_model(), rate)


def _screen(rate: int = RATE, **changes: object) -> Screen:
    processor = _processor(rate)
    encoder = speech_config(speech_model(), processor).encoder_config()
    screen = Screen(processor.tokenizer, encoder, processor.feature_extractor.hop_length, 20.0, rate)
    return replace(screen, **changes)  # type: ignore[arg-type]


def _utterance(seconds: float, text: str) -> Utterance:
    return Utterance(torch.zeros(int(seconds * RATE)), text, "u")


# -- screening --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text", "reason"),
    [
        (1.0, "good morning", None),
        (1.0, "  ", "without text"),
        (1.0, "café 9", "characters outside the vocabulary (é 9)"),
        (21.0, "long", "longer than data.max_seconds"),
        (0.12, "much too long for it", "more text than their audio has frames"),
    ],
)
def test_what_cannot_be_learned_from_has_a_reason(seconds: float, text: str, reason: str | None) -> None:
    found = _screen().problem(int(seconds * RATE), text)
    assert (found is None) if reason is None else (reason in str(found))


def test_the_edge_of_feasibility_counts_repeats() -> None:
    screen = _screen()
    samples = 80 * 12  # 13 feature frames, 4 encoder frames
    assert screen.problem(samples, "abcd") is None
    assert screen.problem(samples, "abbd") == "with more text than their audio has frames"


def test_a_few_bad_utterances_are_counted_and_many_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    good = [_utterance(1.0, "fine")] * 199
    tally = Tally("corpus")
    assert len(list(_screen().keep([*good, _utterance(1.0, "né")], tally))) == 199
    with caplog.at_level(logging.WARNING):
        tally.close()
    assert "1 of 200 utterances cannot be used" in caplog.text
    tally = Tally("corpus")
    list(_screen().keep([*good[:97], *[_utterance(1.0, "")] * 3], tally))
    with pytest.raises(DataError, match=r"3 of 100 .* 3 without text; at most 1%"):
        tally.close()


def test_kept_text_is_lower_case_and_single_spaced() -> None:
    (kept,) = _screen().keep([_utterance(1.0, " Good\t\u00a0  MORNING\n")], Tally("corpus"))
    assert kept.text == "good morning"
    assert [item.text for item in _screen().keep([_utterance(0.12, "a" + 20 * " " + "b")], Tally("c"))] == [
        "a b"
    ]


# -- batches ----------------------------------------------------------------------------------------------------------


def test_every_pass_has_every_utterance_once_and_respects_the_budget() -> None:
    rng = np.random.default_rng(0)
    frames = rng.integers(20, 400, 200)
    batches = length_batches(frames, 1000, 8, rng)
    assert sorted(itertools.chain(*batches)) == list(range(200))
    for batch in batches:
        assert len(batch) <= 8
        assert len(batch) == 1 or len(batch) * frames[batch].max() <= 1000
    padded = sum(len(batch) * frames[batch].max() for batch in batches)
    assert padded < 1.25 * frames.sum()


def test_an_utterance_longer_than_the_budget_stands_alone() -> None:
    batches = length_batches(np.array([50, 5000, 60]), 1000, 8, np.random.default_rng(0))
    assert [1] in batches


class _Listed:
    frames = np.array([3, 9, 4, 8])

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, object]:
        return {"features": torch.full((int(self.frames[index]), 2), float(index)), "labels": [index] * index}


def test_passes_differ_but_follow_from_the_seed() -> None:
    one, two = (BatchedSamples(_Listed(), 20, 4, seed=5, at_least=20) for _ in range(2))
    assert one.batches == two.batches
    assert len(one) >= 20
    assert BatchedSamples(_Listed(), 20, 4, seed=6, at_least=20).batches != one.batches


def test_a_batch_is_padded_and_knows_its_lengths() -> None:
    listed = _Listed()
    batch = collate([[listed[0], listed[1]], [listed[3]]])
    assert batch["input_features"].shape == (3, 9, 2)
    assert batch["feature_lengths"].tolist() == [3, 9, 8]
    assert batch["labels"].tolist() == [[0, 0, 0], [1, 0, 0], [3, 3, 3]]
    assert batch["label_lengths"].tolist() == [0, 1, 3]


def test_stored_features_come_back(tmp_path: Path) -> None:
    processor, screen = _processor(), _screen()
    said = [Utterance(torch.from_numpy(tone(word)), word, word) for word in ("la", "mi")]
    extract = processor.feature_extractor.extract
    assert not is_complete(tmp_path)
    write_speech(tmp_path, said, extract, screen.labels, RATE)
    assert is_complete(tmp_path)
    stored = StoredSpeech(tmp_path)
    assert stored.seconds == pytest.approx(0.7)
    for row, item in enumerate(said):
        torch.testing.assert_close(stored[row]["features"], extract(item.samples), atol=4e-3, rtol=1e-3)
        assert stored[row]["labels"] == screen.labels(item.text)
        assert stored.frames[row] == len(stored[row]["features"])
    with (tmp_path / "features.f16").open("ab") as file:
        file.truncate(10)
    assert not is_complete(tmp_path)


# -- manifests --------------------------------------------------------------------------------------------------------


def test_parts_of_a_manifest_share_no_clip(tmp_path: Path) -> None:
    path = write_clips(tmp_path)
    parts = split_lines(manifest_config(path, leave_out="bob"), read_manifest(path))
    assert {name: len(part) > 0 for name, part in parts.items()} == dict.fromkeys(
        ("train", "dev", "test", "test_speaker"), True
    )
    files = [line.audio for part in parts.values() for line in part]
    assert len(files) == len(set(files)) == 48
    speakers = {line.more["speaker"] for name in ("train", "dev", "test") for line in parts[name]}
    assert speakers == {"ann"}


@pytest.mark.parametrize("split", ["validation", "Test", 3])
def test_a_split_of_another_name_is_not_trained_on(tmp_path: Path, split: object) -> None:
    path = write_clips(tmp_path)
    first, *others = path.read_text().splitlines()
    path.write_text("\n".join([*others, json.dumps(json.loads(first) | {"split": split})]))
    with pytest.raises(DataError, match=rf"line 48: 'split' must be .* \(got {split!r}\)"):
        manifest_source(manifest_config(path), seed=0)


def test_an_unknown_speaker_cannot_be_left_out(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data.leave_out: .* \(got 'bop'\); did you mean 'bob'\?"):
        manifest_source(manifest_config(write_clips(tmp_path), leave_out="bop"), seed=0)


def test_strings_are_of_one_speaker_and_the_same_each_time(tmp_path: Path) -> None:
    cfg = manifest_config(write_clips(tmp_path))
    source = manifest_source(cfg, seed=3)
    tally = Tally("clips")
    clips = list(source.train(tally))
    assert source.compose is not None
    processor, screen = _processor(), _screen()
    strings = source.compose(clips, screen, processor.feature_extractor.extract)
    again = source.compose(clips, screen, processor.feature_extractor.extract)
    assert len(strings) == cfg.strings
    for number in range(5):
        sample = strings[number]
        assert torch.equal(sample["features"], again[number]["features"])
        assert len(sample["features"]) == strings.frames[number]
        words = processor.decode(sample["labels"]).split()
        assert 2 <= len(words) <= 3
        plan = strings.plans[number]
        assert len({clips[clip].more["speaker"] for clip in plan.clips}) == 1
        assert words == [clips[clip].text for clip in plan.clips]
    spoken = {tuple(strings.plans[number].clips) for number in range(cfg.strings)}
    assert len(spoken) > cfg.strings // 2


def test_clips_are_utterances_when_nothing_joins_them(tmp_path: Path) -> None:
    cfg = manifest_config(write_clips(tmp_path), join_clips=None, validation_share=0.65)
    source = manifest_source(cfg, seed=0)
    assert source.compose is None
    texts = {name: {item.text for item in stream(Tally(name))} for name, stream in source.heldout.items()}
    train = {item.text for item in source.train(Tally("train"))}
    assert train
    assert texts["dev"].isdisjoint(train)


@pytest.mark.parametrize("damage", ["empty", "silent", "one_sample", "nan", "text", "missing"])
def test_unusable_audio_is_counted_by_name(tmp_path: Path, damage: str) -> None:
    path = write_clips(tmp_path)
    victim = tmp_path / "la_ann_3.wav"
    if damage == "empty":
        victim.write_bytes(b"")
    elif damage == "silent":
        soundfile.write(victim, np.zeros(RATE, np.float32), RATE)
    elif damage == "one_sample":
        soundfile.write(victim, np.ones(1, np.float32), RATE)
    elif damage == "nan":
        soundfile.write(victim, np.full(RATE, np.nan, np.float32), RATE, subtype="FLOAT")
    elif damage == "text":
        victim.write_text("no audio at all")
    else:
        victim.unlink()
    tally = Tally("clips")
    source = manifest_source(manifest_config(path), seed=0)
    found = [*source.train(tally), *(item for item in source.heldout["dev"](tally))]
    assert found
    assert tally.skipped == 1
    assert "la_ann_3" in tally.examples[0]
    with pytest.raises(DataError, match="whose audio cannot be used"):
        tally.close()


@pytest.mark.parametrize("rate", [8000, 16000, 44100, 48000])
@pytest.mark.parametrize("channels", [1, 2])
def test_any_rate_and_channel_count_becomes_mono_at_the_models_rate(
    tmp_path: Path, rate: int, channels: int
) -> None:
    wave = tone("la", 0.5, rate)
    soundfile.write(tmp_path / "a.wav", np.stack([wave] * channels, axis=1), rate)
    lines = [
        {"audio": "a.wav", "text": "la", "split": "train"},
        {"audio": "a.wav", "text": "la", "split": "dev"},
    ]
    lines += [{"audio": "a.wav", "text": "la", "split": "test"}]
    (tmp_path / "m.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    cfg = manifest_config(tmp_path / "m.jsonl", join_clips=None, validation_share=0.0)
    (item,) = manifest_source(cfg, seed=0).train(Tally("one"))
    assert item.samples.shape == (RATE // 2,)
    reference = torch.from_numpy(tone("la", 0.5, RATE))
    assert float(torch.nn.functional.cosine_similarity(item.samples, reference, dim=0)) > 0.98


def test_a_wrong_extension_changes_nothing(tmp_path: Path) -> None:
    path = write_clips(tmp_path)
    (tmp_path / "la_ann_3.wav").rename(tmp_path / "la_ann_3.mp3")
    path.write_text(path.read_text().replace("la_ann_3.wav", "la_ann_3.mp3"))
    tally = Tally("clips")
    source = manifest_source(manifest_config(path, join_clips=None, validation_share=0.65), seed=0)
    found = [item.name for item in source.train(tally)]
    assert any(name.endswith("la_ann_3.mp3") for name in found)
    assert tally.skipped == 0


def test_building_writes_held_out_sets_beside_the_run(tmp_path: Path) -> None:
    cfg = speech_root(tmp_path)
    processor = _processor()
    encoder = speech_config(speech_model(), processor).encoder_config()
    data = build(cfg, cfg.run_dir, processor, encoder)
    sets = heldout_sets(cfg.run_dir / "checkpoints" / "step-1")
    assert set(sets) == {"dev", "test"}
    assert len(read_manifest(sets["test"])) == 6
    assert len(data.train) >= cfg.train.max_steps
    batch = collate([data.train[0]])
    assert len(batch["input_features"]) == len(data.train.batches[0])
    assert "24 training utterances" in data.describe()


def test_text_is_no_speech() -> None:
    with pytest.raises(DataError, match="must be speech for this recipe"):
        open_speech(LocalTextConfig(path="x"), 0)


# -- synthesised speech -----------------------------------------------------------------------------------------------


def test_sentences_are_closed_and_never_repeat() -> None:
    said = list(itertools.islice(grammar.sentences(0), 400))
    assert len(set(said)) == 400
    assert {word for text in said for word in text.split()} <= grammar.words()
    assert all(char in " abcdefghijklmnopqrstuvwxyz" for text in said for char in text)
    parts = {tts.part_of(text) for text in said}
    assert parts == {"train", "dev", "test"}


def test_training_sentences_may_repeat_so_that_every_pattern_keeps_its_share() -> None:
    said = list(itertools.islice(grammar.sentences(0, distinct=False), 6000))
    strings = sum(text.startswith("my number is") for text in said)
    assert 400 < strings < 600  # a twelfth
    assert len(set(said)) < len(said)


def test_numbers_are_read_in_words() -> None:
    assert [grammar.number(value) for value in (0, 12, 17, 40, 99)] == [
        "zero",
        "twelve",
        "one seven",
        "forty",
        "ninety nine",
    ]


def test_synthesis_is_repeatable_and_holds_texts_and_a_voice_back() -> None:
    pytest.importorskip("py_nanotts")
    cfg = TTSSpeechConfig(utterances=4, heldout_utterances=2)
    source = tts.tts_source(cfg)
    one, two = (list(source.train(Tally("tts"))) for _ in range(2))
    assert [item.text for item in one] == [item.text for item in two]
    for first, second in zip(one, two, strict=True):  # the engine keeps some state: one part in a thousand
        torch.testing.assert_close(first.samples, second.samples, atol=5e-3, rtol=0)
    assert {item.more["voice"] for item in one} == {"nanotts:en-US"}
    other = list(source.heldout["test_voice"](Tally("tts")))
    assert {item.more["voice"] for item in other} == {"nanotts:en-GB"}
    assert all(tts.part_of(item.text) == "test" for item in other)
    assert all(tts.part_of(item.text) == "train" for item in one)
    assert all(float(item.samples.abs().max()) <= 1.0 and len(item.samples) > 8000 for item in one)


def test_noise_has_the_asked_for_level() -> None:
    wave = tone("la", 1.0)
    noise = tts.coloured_noise(wave, 10.0, np.random.default_rng(0))
    assert 10 * np.log10((wave**2).mean() / (noise**2).mean()) == pytest.approx(10.0, abs=0.05)


def test_voices_need_their_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = replace(ENGINES["espeak"], available=lambda: False)
    monkeypatch.setitem(ENGINES, "espeak", gone)
    assert usable_voices(["nanotts:en-US"], ["espeak:en-us"]) == ["nanotts:en-US"]
    with pytest.raises(DataError, match=r"not installed .*install espeak-ng"):
        usable_voices(["espeak:en-us"], [])
    with pytest.raises(DataError, match="ENGINE:VOICE"):
        usable_voices(["alloy"], [])


# -- asterisk ---------------------------------------------------------------------------------------------------------

PROMPTS = """\ufeff; core sounds
digits/1: 1
vm-goodbye: Goodbye.
queue-thankyou: "Thank you, for calling"
umute: You are now umute.
pound: Press # or *
beep: [this is a beep]
silence/1: [silence]
invalid: I am sorry, that is not valid.
no-audio: Nobody said this
comma:half: An 'odd' one's line
"""


def _unpacked(directory: Path) -> AsteriskSpeechConfig:
    docs = directory / "usr/share/doc/asterisk-core-sounds-en"
    sounds = directory / "usr/share/asterisk/sounds/en_US_f_Allison"
    docs.mkdir(parents=True)
    (docs / "core-sounds-en.txt.gz").write_bytes(gzip.compress(PROMPTS.encode()))
    for name in ("digits/1", "vm-goodbye", "queue-thankyou", "umute", "pound", "beep", "invalid"):
        path = sounds / f"{name}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, tone("la", 1.0), 8000)
    return AsteriskSpeechConfig(path=str(directory), sampling_rate=8000, validation_share=0.0, test_share=0.0)


def test_prompts_are_normalised_and_the_exclusion_list_holds(tmp_path: Path) -> None:
    cfg = _unpacked(tmp_path)
    found = {item.name: item.text for item in asterisk_source(cfg).train(Tally("prompts"))}
    assert found == {
        "digits/1": "one",
        "vm-goodbye": "goodbye",
        "queue-thankyou": "thank you for calling",
        "umute": "you are now unmute",
        "pound": "press pound or star",
    }


@pytest.mark.parametrize(
    ("raw", "spoken"),
    [
        ("It's 42!", "it's four two"),
        ("... is un-indentified", "is unidentified"),
        ("'quoted' don’t", "quoted don't"),
        ("[tones]", "tones"),
    ],
)
def test_normalisation(raw: str, spoken: str) -> None:
    assert normalise(raw) == spoken


def test_parts_are_split_by_normalised_text(tmp_path: Path) -> None:
    cfg = replace(_unpacked(tmp_path), validation_share=0.3, test_share=0.3)
    source = asterisk_source(cfg)
    streams = {"train": source.train, **source.heldout}
    texts = {name: {item.text for item in stream(Tally(name))} for name, stream in streams.items()}
    assert sum(len(part) for part in texts.values()) == 5
    for one, other in itertools.combinations(texts.values(), 2):
        assert one.isdisjoint(other)


def test_a_directory_without_the_packages_says_what_to_unpack(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="dpkg-deb -x"):
        asterisk_source(AsteriskSpeechConfig(path=str(tmp_path)))
    empty = tmp_path / "core-sounds-en.txt"
    empty.write_text("; nothing\n")
    with pytest.raises(DataError, match="no transcripts of the form"):
        transcripts(empty)


# -- hub --------------------------------------------------------------------------------------------------------------


def _dataset(directory: Path, rows: list[dict[str, object]]) -> str:
    import datasets

    datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)}).save_to_disk(str(directory))
    return str(directory)


def test_a_hub_dataset_gives_bytes_paths_and_counts_what_is_broken(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.flac", tone("la", 1.0, 16000), 16000)
    data = (tmp_path / "a.flac").read_bytes()
    rows: list[dict[str, object]] = [
        {"audio": {"bytes": data, "path": None}, "text": "ONE"},
        {"audio": {"bytes": None, "path": str(tmp_path / "a.flac")}, "text": "TWO"},
        {"audio": {"bytes": b"broken", "path": None}, "text": "THREE"},
        {"audio": {"bytes": None, "path": None}, "text": "FOUR"},
    ]
    cfg = HubSpeechConfig(name=_dataset(tmp_path / "set", rows), sampling_rate=8000, validation_share=0.0)
    tally = Tally("hub")
    found = list(hub_source(cfg).train(tally))
    assert [item.text for item in found] == ["ONE", "TWO"]
    assert all(len(item.samples) == 8000 for item in found)
    assert tally.skipped == 2


def test_a_missing_column_or_split_is_named(tmp_path: Path) -> None:
    name = _dataset(tmp_path / "set", [{"sound": "x", "text": "y"}])
    with pytest.raises(DataError, match=r"data.audio_field: no such column .*found sound, text"):
        hub_source(HubSpeechConfig(name=name))
    with pytest.raises(DataError, match="split 'test'"):
        hub_source(HubSpeechConfig(name=name, split="test"))
