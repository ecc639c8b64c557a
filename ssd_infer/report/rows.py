"""Read a report: the questions that the renderers, the comparison and the exit code all ask."""

from __future__ import annotations

from typing import Any

from ssd_infer.report.format import readable, said

Row = dict[str, Any]
Report = dict[str, Any]

VERDICT_TEXT = {"pass": "lossless", "fail": "NOT lossless", "not_run": "not tested"}
UNRESOLVED = "not measured: the choice of its parameters did not end in its share of the time limit"
"""How the reason of a row begins that was left out for want of time, and might have been faster."""
STATUS_TEXT = {"ok": "ok", "not_applicable": "not applicable", "failed": "failed"}


def is_sampled(row: Row) -> bool:
    """Tell whether a row was decoded by sampling (its name carries the `t…` variant)."""
    return any(part[:1] == "t" and part[1:2].isdigit() for part in row["name"].split(":")[1:])


def names_of(report: Report) -> list[str]:
    """Return the names of all rows of a report."""
    return [row["name"] for row in (*report["baselines"], *report["peers"], *report["strategies"])]


def warnings_of(report: Report) -> list[str]:
    """Return the warnings of a report as people read them."""
    names = names_of(report)
    return [said(line, names) for line in report["verdict"]["warnings"]]


def lookup_peer(report: Report, row: Row) -> Row | None:
    """Return transformers' prompt lookup at the setting of `row`, or None when it was not measured."""
    setting = f":{row['name'].rpartition(':')[2]}" if is_sampled(row) else ""
    return next(
        (p for p in report["peers"] if p["name"] == f"prompt_lookup{setting}" and p["speedup"] is not None),
        None,
    )


def ok_rows(report: Report) -> list[Row]:
    """Return the strategy rows that were measured, fastest first (ties by name)."""
    rows = [row for row in report["strategies"] if row["status"] == "ok"]
    return sorted(rows, key=lambda row: (-row["speed"]["speedup"], row["name"]))


def other_rows(report: Report) -> list[Row]:
    """Return the rows with a reason instead of figures, in report order."""
    return [row for row in report["strategies"] if row["status"] != "ok"]


def all_rows(report: Report) -> list[Row]:
    """Return every row there is: baselines, measured strategies fastest first, peers, strategies without figures."""
    return [*report["baselines"], *ok_rows(report), *report["peers"], *other_rows(report)]


def find_row(report: Report, name: str | None) -> Row | None:
    """Return the strategy row called `name`, or None."""
    return next((row for row in report["strategies"] if row["name"] == name), None)


def broken_rows(report: Report) -> list[Row]:
    """Return the rows that promise losslessness and did not prove it, failed ones included."""
    return [
        row
        for row in report["strategies"]
        if row["status"] != "not_applicable"
        and row["lossless"]["claimed"]
        and row["lossless"]["verdict"] != "pass"
    ]


def exit_code(report: Report) -> int:
    """Return 0 only if every row that claims to be lossless passed its test in this run, else 1."""
    return 1 if broken_rows(report) else 0


def headline(report: Report) -> str:
    """Say the verdict in one sentence, from the report's own fields, and what the run found beside it."""
    also = report["verdict"].get("extra", {}).get("also")
    return f"{_headline(report)} {said(also, names_of(report))}" if also else _headline(report)


def drafts(row: Row) -> bool:
    """Tell whether a row drafted and had drafts accepted: more than one token came out of a verification."""
    return (
        not row["extra"].get("fell_back_to_plain")
        and row["acceptance"]["drafted"] > 0
        and (row["acceptance"]["tau"] or 0.0) > 1.0
    )


def gains(row: Row) -> bool:
    """Tell whether a row drafted and its interval, no narrower than the noise of the report, lies above 1."""
    if not drafts(row) or row["speed"]["ci95"] is None:
        return False
    edge = 1.0 + (row["extra"].get("noise") or 0.0)
    return bool(row["speed"]["ci95"][0] > 1.0 and row["speed"]["speedup"] > edge)


def noise_rows(report: Report) -> list[Row]:
    """Return the rows of a baseline measured against itself, one a sampling setting."""
    return [row for row in report["baselines"] if row.get("extra", {}).get("again")]


def plain_rows(report: Report) -> list[Row]:
    """Return the rows of plain decodings, none of them twice."""
    return [row for row in report["baselines"] if not row.get("extra", {}).get("again")]


def noise_line(row: Row) -> str:
    """Say what a baseline measured against itself shows."""
    again = row["extra"]["again"]
    name = readable(again["of"])
    if again["noise"] is None or again["noise"] > 1:
        return f"{name} against itself: too short to tell, so that no row can be called faster"
    low, high = again["ci95"]
    return (
        f"{name} against itself: {again['speedup']:.2f}× ({low:.2f}–{high:.2f}); differences below "
        f"{100 * again['noise']:.1f} % are this report's own noise"
    )


def too_short(row: Row) -> bool:
    """Tell whether a row was measured too briefly for an interval of ±10 %."""
    return bool(row.get("extra", {}).get("too_short_to_tell"))


def _headline(report: Report) -> str:
    verdict = report["verdict"]
    row = find_row(report, verdict["best_strategy"])
    if row is None or not gains(row):
        return " ".join(filter(None, (_plain_headline(report), _without_the_model(report))))
    state = VERDICT_TEXT[row["lossless"]["verdict"]]
    how = f"sampling, {state}" if is_sampled(row) else state
    speed = row["speed"]
    if too_short(row):
        low, high = speed["ci95"]
        return (
            f"{_opening(row)} decodes {low:.2f} to {high:.2f} times as fast as plain decoding ({how}); "
            "it was measured too briefly to say it more exactly."
        )
    return f"{_opening(row)} decodes {speed['speedup']:.2f} times as fast as plain decoding ({how})."


def _opening(row: Row) -> str:
    """Return the name of a row as a sentence begins with it."""
    name = readable(row["name"])
    return name[:1].upper() + name[1:]


def _plain_headline(report: Report) -> str:
    rows = [row for row in ok_rows(report) if row["lossless"]["verdict"] == "pass"]
    if not ok_rows(report):
        return "No draft strategy could be measured on this checkpoint."
    if not rows:
        return "No draft strategy proved to be lossless on this checkpoint."
    drafting = [row for row in rows if drafts(row)]
    if not drafting:
        return "Plain decoding is the fastest here: no strategy drafts on this checkpoint."
    best, bounds = drafting[0], drafting[0]["speed"]["ci95"]
    where = f", 95 % {bounds[0]:.2f} to {bounds[1]:.2f}" if bounds else ""
    return (
        "Plain decoding is the fastest here: no draft is faster beyond the noise of this report "
        f"(the best, “{readable(best['name'])}”, reads {best['speed']['speedup']:.2f} times{where})."
    )


def _without_the_model(report: Report) -> str:
    """Say which peer, drafting nothing by the model itself, is faster than plain decoding for sure; "" for none."""
    noise = max((row["extra"]["again"]["noise"] or 0.0 for row in noise_rows(report)), default=0.0)
    found = [
        peer
        for peer in report["peers"]
        if peer["speedup"] is not None
        and peer["verdict"] != "fail"
        and (peer["extra"].get("ci95") or [0.0])[0] > 1.0
        and peer["speedup"] > 1.0 + noise
    ]
    if not found:
        return ""
    best = max(found, key=lambda peer: float(peer["speedup"]))
    low, high = best["extra"]["ci95"]
    return (
        f"“{readable(best['name'])}”, which needs no draft of the model, reads {best['speedup']:.2f} times, "
        f"95 % {low:.2f} to {high:.2f}."
    )
