"""Features on disk: computed once, read back by memory map, so that neither ranks nor runs repeat the work."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ssd_infer.atomic import write_text
from ssd_infer.families.speech.utterances import Utterance
from ssd_infer.jsonio import to_json

_FEATURES, _INDEX = "features.f16", "index.json"


class StoredSpeech:
    """Utterances whose features lie in one float16 file; `transformers` types are not involved."""

    def __init__(self, folder: Path) -> None:
        """Open what `write_speech` wrote."""
        index: dict[str, Any] = json.loads((folder / _INDEX).read_text("utf-8"))
        self.labels: list[list[int]] = index["labels"]
        self.seconds = float(index["seconds"])
        self._frames = np.asarray(index["frames"], dtype=np.int64)
        self._starts = np.concatenate([[0], np.cumsum(self._frames)])
        shape = (int(self._starts[-1]), int(index["mel"]))
        self._data = np.memmap(folder / _FEATURES, dtype=np.float16, mode="r", shape=shape)

    @property
    def frames(self) -> NDArray[np.int64]:
        """Feature frames of each utterance."""
        return self._frames

    def __len__(self) -> int:
        """Return the number of utterances."""
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return `features` float32 `(F, mel)` and `labels` of one utterance."""
        rows = self._data[self._starts[index] : self._starts[index + 1]]
        return {"features": torch.from_numpy(rows.astype(np.float32)), "labels": self.labels[index]}


def is_complete(folder: Path) -> bool:
    """Tell whether `write_speech` finished in `folder`."""
    try:
        index = json.loads((folder / _INDEX).read_text("utf-8"))
        size = (folder / _FEATURES).stat().st_size
    except (OSError, ValueError):
        return False
    return bool(size == 2 * sum(index["frames"]) * index["mel"])


def write_speech(
    folder: Path,
    utterances: Iterable[Utterance],
    extract: Callable[[Tensor], Tensor],
    encode: Callable[[str], list[int]],
    rate: int,
) -> None:
    """Write features and labels of `utterances` into `folder`; the index comes last and makes it complete."""
    frames, labels, samples, mel = [], [], 0, 0
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _FEATURES).open("wb") as file:
        for item in utterances:
            features = extract(item.samples)
            file.write(features.numpy().astype(np.float16).tobytes())
            mel = features.shape[1]
            frames.append(len(features))
            labels.append(encode(item.text))
            samples += len(item.samples)
    about = {"frames": frames, "labels": labels, "mel": mel, "seconds": round(samples / rate, 3)}
    write_text(folder / _INDEX, to_json(about, indent=2))
