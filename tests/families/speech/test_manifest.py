"""Manifests: what training writes is what evaluation reads, and a wrong line is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ssd_infer.errors import DataError
from ssd_infer.families.speech.utterances import (
    Utterance,
    heldout_sets,
    read_manifest,
    read_utterances,
    save_utterances,
)

RATE = 8000


def utterances(count: int) -> list[Utterance]:
    generator = torch.Generator().manual_seed(0)
    return [
        Utterance(0.3 * torch.rand(4000 + index, generator=generator), f"text {index}", "", {"speaker": "a"})
        for index in range(count)
    ]


def test_what_is_saved_is_read(tmp_path: Path) -> None:
    path = save_utterances(tmp_path / "dev", utterances(3), RATE)
    found, skipped = read_utterances(read_manifest(path), RATE)
    assert skipped == []
    assert [item.text for item in found] == ["text 0", "text 1", "text 2"]
    assert found[1].more == {"speaker": "a"}
    for item, want in zip(found, utterances(3), strict=True):
        assert torch.allclose(item.samples, want.samples, atol=1e-4)


def test_only_a_newline_ends_a_line(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text(
        '{"audio": "a.wav", "text": "a\u2028b\u0085c"}\r\n\n', "utf-8", newline=""
    )
    (line,) = read_manifest(tmp_path / "m.jsonl")
    assert (line.text, line.number) == ("a\u2028b\u0085c", 1)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", r"m\.jsonl:2 is not JSON"),
        ("[1]", "got list"),
        ('{"text": "a"}', "'audio' must be a text"),
        ('{"audio": "a.wav", "text": ""}', "'text' must be a text that is not empty"),
        ('{"audio": "a.wav", "text": 5}', "got 5"),
    ],
)
def test_wrong_lines_are_named(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "m.jsonl").write_text('{"audio": "a.wav", "text": "b"}\n' + line + "\n")
    with pytest.raises(DataError, match=words):
        read_manifest(tmp_path / "m.jsonl")


def test_empty_missing_and_binary_manifests(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "binary.jsonl").write_bytes(bytes(range(256)))
    for name, words in {
        "empty": "holds no lines",
        "missing": "cannot be read",
        "binary": "is not UTF-8",
    }.items():
        with pytest.raises(DataError, match=words):
            read_manifest(tmp_path / f"{name}.jsonl")


def test_unusable_audio_is_counted_and_refused_above_the_limit(tmp_path: Path) -> None:
    path = save_utterances(tmp_path, utterances(200), RATE)
    lines = read_manifest(path)
    (tmp_path / "00007.wav").write_bytes(b"")
    found, skipped = read_utterances(lines, RATE)
    assert len(found) == 199
    assert len(skipped) == 1
    assert "line 8" in skipped[0]
    for index in range(3):
        (tmp_path / f"{index:05d}.wav").unlink()
    with pytest.raises(DataError, match="4 of 200 audio files cannot be used"):
        read_utterances(lines, RATE)


def test_heldout_sets_of_a_run_and_of_a_checkpoint(tmp_path: Path) -> None:
    checkpoint = tmp_path / "run" / "checkpoints" / "step-3"
    checkpoint.mkdir(parents=True)
    assert heldout_sets(checkpoint) == {}
    for name in ("dev", "test"):
        save_utterances(tmp_path / "run" / "heldout" / name, utterances(1), RATE)
    assert list(heldout_sets(checkpoint)) == ["dev", "test"]
    save_utterances(checkpoint / "heldout" / "own", utterances(1), RATE)
    assert list(heldout_sets(checkpoint)) == ["own"]
