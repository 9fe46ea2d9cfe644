"""The results as a table for people."""

from __future__ import annotations

from typing import Any

from workload import WORKLOADS

TITLES = (
    *("workload", "both train", "contestant", "pmtl, ms a round", "theirs, ms a round"),
    *("theirs / pmtl", "in the mean", "start-up + first round, s", "pmtl's", "max difference"),
)


def table(report: dict[str, Any]) -> str:
    """Markdown: the quickest way of using a peer is marked, errors stand where numbers would."""
    best = _best(report["results"])
    lines = ["| " + " | ".join(TITLES) + " |", "|" + " --- |" * 3 + " ---: |" * 7]
    for row in report["results"]:
        asked = WORKLOADS[row["workload"]]
        cells = [
            f"{row['workload']} ({asked.cohort} of {asked.clients} × {asked.steps} steps)",
            *(row["algorithm"], row["title"]),
        ]
        if "error" in row:
            cells += [f"failed: {row['error'][:120]}".replace("|", "/"), *[""] * 6]
        else:
            ours, theirs = row["ours"], row["theirs"]
            mark = "**" if row is best[_kind(row)] else ""
            cells += [
                _milliseconds(ours),
                _milliseconds(theirs),
                f"{mark}{row['ratio']:.2f}{mark}",
                _ratio_of_means(ours, theirs),
                f"{theirs['startup'] + theirs['first_round']:.1f}",
                f"{ours['startup'] + ours['first_round']:.1f}",
                f"{row['check']['max_difference']:.0e}",
            ]
        lines.append("| " + " | ".join(cells) + " |")
    note = f"\n\n{report['note']}" if report.get("note") else ""
    return "\n".join(lines) + note


def _milliseconds(taken: dict[str, Any]) -> str:
    """The median, the quartiles and, where it was kept, the mean."""
    low, high = taken["quartiles"]
    mean = f", mean {1e3 * taken['mean']:.1f}" if "mean" in taken else ""
    return f"{1e3 * taken['median']:.1f} ({1e3 * low:.1f}–{1e3 * high:.1f}){mean}"


def _ratio_of_means(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    return f"{theirs['mean'] / ours['mean']:.2f}" if "mean" in ours and "mean" in theirs else ""


def _kind(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["workload"], row["algorithm"], row["peer"]


def _best(rows: list[dict[str, Any]]) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Of each peer's ways in each setting, the quickest."""
    best: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in rows:
        if "error" in row:
            continue
        kind = _kind(row)
        if kind not in best or row["theirs"]["median"] < best[kind]["theirs"]["median"]:
            best[kind] = row
    return best
