"""Promises of the repository itself: what it packages, pins and documents."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_package_is_listed():
    found = {str(file.parent.relative_to(ROOT)).replace("/", ".") for file in ROOT.glob("ssd_*/**/*.py")}
    assert sorted(found | {"ssd_conf"}) == sorted(PROJECT["tool"]["setuptools"]["packages"])


def test_the_tested_set_lies_within_the_ranges():
    pins = dict(
        re.findall(
            r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE
        )
    )
    pins = {name.lower().replace("_", "-"): version for name, version in pins.items()}
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = [
        Requirement(r)
        for r in [
            *PROJECT["project"]["dependencies"],
            *extras["dev"],
            *extras["models"],
            *extras["search"],
            *extras["speech"],
            *extras["tensorboard"],
        ]
    ]
    assert [
        str(r) for r in wanted if r.name != "ssd-toolkit" and pins.get(r.name, "0") not in r.specifier
    ] == []


def test_the_image_has_the_tested_torch():
    image, pins = ((ROOT / name).read_text(encoding="utf-8") for name in ("Dockerfile", "constraints.txt"))
    tested = re.search(r"^torch==(\S+)$", pins, re.MULTILINE)
    assert tested is not None
    assert set(re.findall(r"torch==([\d.]+)", image)) == {tested[1]}


def test_changelog_keeps_its_form():
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d{2}-\d{2}", heading) for heading in headings[1:])
    kinds = set(re.findall(r"^### (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_readme_opens_with_the_two_commands():
    commands = re.findall(r"^make .*$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert [command.split()[1] for command in commands[:2]] == ["demo", "test"]


def test_imports_go_one_way():
    files = list((ROOT / "ssd_infer").rglob("*.py"))
    assert len(files) > 5
    pattern = re.compile(r"^\s*(from|import) ssd_train\b", re.MULTILINE)
    assert [str(file) for file in files if pattern.search(file.read_text(encoding="utf-8"))] == []


def test_losses_know_nothing_of_transformers():
    files = list((ROOT / "ssd_train" / "losses").rglob("*.py"))
    assert files
    pattern = re.compile(r"^\s*(from|import) transformers\b", re.MULTILINE)
    assert [str(file) for file in files if pattern.search(file.read_text(encoding="utf-8"))] == []


def test_every_import_is_a_declared_dependency():
    pattern = re.compile(r"^\s*(?:from|import) (\w+)", re.MULTILINE)
    files = [file for package in ("ssd_infer", "ssd_train") for file in (ROOT / package).rglob("*.py")]
    used = {name for file in files for name in pattern.findall(file.read_text(encoding="utf-8"))}
    extras = PROJECT["project"]["optional-dependencies"]
    optional = [requirement for name, extra in extras.items() if name != "dev" for requirement in extra]
    declared = {Requirement(text).name for text in [*PROJECT["project"]["dependencies"], *optional]}
    sources = packages_distributions()
    foreign = {name for name in used & set(sources) if not name.startswith("ssd_")}
    assert len(foreign) > 5
    assert [
        n for n in sorted(foreign) if not declared & {d.lower().replace("_", "-") for d in sources[n]}
    ] == []
