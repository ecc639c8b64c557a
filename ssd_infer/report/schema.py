"""The report's contract: names, versions and the JSON Schema every report is validated against."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

from jsonschema import Draft202012Validator

from ssd_infer.errors import SSDError

SCHEMA_VERSION = "1.0"

FAMILIES: dict[str, str] = {
    "early_exit": "skip_layer",
    "skip_set": "skip_layer",
    "swift": "skip_layer",
    "reduced_experts": "reduced_experts",
    "sparse_attention": "sparse_attention",
    "fewer_steps": "fewer_steps",
    "ctc_draft": "ctc_draft",
}
"""Strategy name to family, in the order in which a report lists them."""


class ReportError(SSDError):
    """A report does not follow its schema; the message lists every violation by path."""


@cache
def load_schema() -> dict[str, Any]:
    """Return the JSON Schema shipped in the package."""
    text = resources.files("ssd_infer.report").joinpath("report.schema.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def violations(report: object) -> list[str]:
    """List what breaks the schema or the rules beyond it, one `path: message` each; empty when valid."""
    found = [
        f"{error.json_path.removeprefix('$.')}: {error.message}"
        for error in Draft202012Validator(load_schema()).iter_errors(report)
    ]
    if not found and isinstance(report, dict):
        found = [*_missing_names(report), *_bad_counts(report)]
    return sorted(found)


def validate(report: object) -> None:
    """Raise `ReportError` with every violation when `report` breaks its contract."""
    found = violations(report)
    if found:
        raise ReportError("report.json breaks its schema:\n" + "\n".join(found))


def base_name(name: str) -> str:
    """Return the strategy of a row name: `early_exit:t1` belongs to `early_exit`."""
    return name.split(":", 1)[0]


def _missing_names(report: dict[str, Any]) -> list[str]:
    names = [row["name"] for row in report["strategies"]]
    missing = [f"strategies: row '{name}' is missing" for name in FAMILIES if name not in names]
    doubled = sorted({name for name in names if names.count(name) > 1})
    return missing + [f"strategies: row '{name}' appears twice" for name in doubled]


def _bad_counts(report: dict[str, Any]) -> list[str]:
    found = []
    for row in report["strategies"]:
        counts = row["acceptance"]
        if counts["accepted"] > counts["drafted"]:
            found.append(f"strategies.{row['name']}.acceptance: more tokens accepted than drafted")
        if counts["histogram"] and sum(counts["histogram"]) != counts["rounds"]:
            found.append(f"strategies.{row['name']}.acceptance: histogram does not add up to rounds")
        if row["family"] != FAMILIES[base_name(row["name"])]:
            found.append(f"strategies.{row['name']}.family: must be {FAMILIES[base_name(row['name'])]}")
    return found
