"""The report's contract: names, versions and the JSON Schema every report is validated against."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

from jsonschema import Draft202012Validator

from ssd_infer.errors import SSDError
from ssd_infer.report.table import Plot, Table

SCHEMA_VERSION = "2.0"
"""What is written; every version there ever was is read."""


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
        found = [*_doubled_names(report), *_bad_counts(report), *_bad_tables(report)]
    return sorted(found)


def validate(report: object) -> None:
    """Raise `ReportError` with every violation when `report` breaks its contract."""
    found = violations(report)
    if found:
        raise ReportError("report.json breaks its schema:\n" + "\n".join(found))


def _doubled_names(report: dict[str, Any]) -> list[str]:
    names = [row["name"] for row in report["strategies"]]
    doubled = sorted({name for name in names if names.count(name) > 1})
    return [f"strategies: row '{name}' appears twice" for name in doubled]


def _bad_tables(report: dict[str, Any]) -> list[str]:
    """List the tables and plots whose parts do not fit together."""
    found = []
    rows = [(kind, row) for kind in ("baselines", "peers", "strategies") for row in report[kind]]
    for read, key in ((Table.from_json, "tables"), (Plot.from_json, "plots")):
        for kind, row in rows:
            for data in row.get("extra", {}).get(key, []):
                try:
                    read(data)
                except ValueError as error:
                    found.append(f"{kind}.{row['name']}.extra.{key}: {error}")
    return found


def _bad_counts(report: dict[str, Any]) -> list[str]:
    found = []
    for row in report["strategies"]:
        counts = row["acceptance"]
        if counts["accepted"] > counts["drafted"]:
            found.append(f"strategies.{row['name']}.acceptance: more tokens accepted than drafted")
        if counts["histogram"] and sum(counts["histogram"]) != counts["rounds"]:
            found.append(f"strategies.{row['name']}.acceptance: histogram does not add up to rounds")
    return found
