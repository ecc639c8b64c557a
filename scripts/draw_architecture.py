"""Draw docs/architecture.svg from the imports themselves: every package on its floor, every arrow that exists.

    python scripts/draw_architecture.py [--check]

`--check` writes nothing and fails when the picture in the repository is not what the code says now.
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
from collections import Counter
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "architecture.svg"
INK, MUTED, INFER, TRAIN, ROOM = "#1f2937", "#9ca3af", "#dbeafe", "#ffedd5", "#eff6ff"
WIDTH, HEIGHT = 0.9, 0.56
STYLE = {"font.family": "DejaVu Sans", "svg.hashsalt": "ssd", "svg.fonttype": "path"}


def module_files() -> dict[str, Path]:
    """Return dotted name → file of every module of both packages."""
    found = {}
    for top in ("ssd_infer", "ssd_train"):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def package_of(module: str) -> str:
    """Return the package a module is drawn in: the second part of its name; strategies by their rooms."""
    parts = module.split(".")
    room = parts[1:2] == ["strategies"] and (ROOT / Path(*parts[:3])).is_dir()
    return ".".join(parts[: 3 if room else 2])


def arrows(files: dict[str, Path]) -> Counter[tuple[str, str]]:
    """Count imports between packages, those inside functions included."""
    found: Counter[tuple[str, str]] = Counter()
    for module, path in files.items():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            for name in _names(node, files):
                ends = (package_of(module), package_of(name))
                if ends[0] != ends[1]:
                    found[ends] += 1
    return found


def _names(node: ast.AST, files: dict[str, Path]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names if alias.name in files]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        full = [f"{node.module}.{alias.name}" for alias in node.names]
        return list({name if name in files else node.module for name in full} & set(files))
    return []


def floors(found: Counter[tuple[str, str]]) -> dict[str, int]:
    """Return how high each package stands: one above the highest it imports; raises ValueError on a circle."""
    below: dict[str, set[str]] = {}
    for upper, lower in found:
        below.setdefault(upper, set()).add(lower)
        below.setdefault(lower, set())
    height: dict[str, int] = {}
    while len(height) < len(below):
        ready = [name for name in below if name not in height and below[name] <= set(height)]
        if not ready:
            raise ValueError(f"these packages import each other: {sorted(set(below) - set(height))}")
        height.update({name: 1 + max((height[low] for low in below[name]), default=-1) for name in ready})
    return height


def draw(files: dict[str, Path]) -> str:
    """Return the picture as an SVG document."""
    found = arrows(files)
    height = floors(found)
    rows: dict[int, list[str]] = {}
    for name in sorted(height):
        rows.setdefault(height[name], []).append(name)
    widest = max(map(len, rows.values()))
    place = {
        name: ((index + 0.5) * widest / len(names), float(level))
        for level, names in rows.items()
        for index, name in enumerate(names)
    }
    lines = Counter[str]()
    for module, path in files.items():
        lines[package_of(module)] += len(path.read_text("utf-8").splitlines())
    figure = Figure(figsize=(1.75 * widest, 1.0 * len(rows) + 0.4))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, widest), ylim=(-0.6, len(rows) - 0.3))
    axes.set_axis_off()
    for (upper, lower), count in sorted(found.items()):
        _arrow(axes, place[upper], place[lower], count)
    for name, (x, y) in place.items():
        _box(axes, name, lines[name], x, y)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], count: int) -> None:
    style = {"arrowstyle": "-|>", "color": MUTED, "lw": 0.4 + 0.05 * min(count, 30), "alpha": 0.55}
    tips = ((end[0], end[1] + HEIGHT / 2), (start[0], start[1] - HEIGHT / 2))
    axes.annotate("", *tips, arrowprops=style, zorder=1)


def _box(axes: Axes, name: str, lines: int, x: float, y: float) -> None:
    room = name.count(".") == 2
    colour = ROOM if room else INFER if name.startswith("ssd_infer") else TRAIN
    corner = (x - WIDTH / 2, y - HEIGHT / 2)
    shape = "round,pad=0,rounding_size=0.06"
    axes.add_patch(FancyBboxPatch(corner, WIDTH, HEIGHT, shape, fc=colour, ec=INK, lw=0.7, zorder=2))
    top, _, rest = name.partition(".")
    axes.text(x, y + 0.16, top, ha="center", va="center", fontsize=6.5, color="#6b7280", zorder=3)
    axes.text(
        x, y, rest.replace("strategies.", "") or "(package)", ha="center", va="center", fontsize=8.5, zorder=3
    )
    axes.text(
        x, y - 0.17, f"{lines} lines", ha="center", va="center", fontsize=6.5, color="#6b7280", zorder=3
    )


def main() -> int:
    """Write the picture, or compare it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check
    with mpl.rc_context(STYLE):
        picture = draw(module_files())
    if not check:
        PICTURE.write_text(picture, encoding="utf-8")
        return 0
    same = PICTURE.is_file() and PICTURE.read_text("utf-8") == picture
    if not same:
        print(
            f"{PICTURE.relative_to(ROOT)} is not what the imports say; run python scripts/draw_architecture.py"
        )
    return int(not same)


if __name__ == "__main__":
    sys.exit(main())
