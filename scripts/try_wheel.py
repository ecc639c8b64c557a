"""Install a wheel into an empty environment and train two steps with it, from another folder.

    python scripts/try_wheel.py dist/ssd_toolkit-0.1.0-py3-none-any.whl [--python /path/to/python3.13]

The environment borrows nothing: what the wheel needs is installed from the registry, in the versions of
`constraints.txt` where that file lies in the current folder.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

RUN = (
    "-m",
    "ssd_train",
    "+recipe=plain",
    "model=tiny",
    "train.max_steps=2",
    "tracking=none",
    "eval.enabled=false",
)


def main() -> int:
    """Try the wheel; return the exit code of its training."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", default=sys.executable, help="interpreter of the new environment")
    arguments = parser.parse_args()
    constraints = Path("constraints.txt").resolve()
    pinned = ["--constraint", str(constraints)] if constraints.is_file() else []
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([arguments.python, "-m", "venv", f"{folder}/env"], check=True)
        python = f"{folder}/env/bin/python"
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *pinned]
        subprocess.run([*install, str(arguments.wheel.resolve())], check=True)
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run([python, *RUN], cwd=folder, env=clean, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
