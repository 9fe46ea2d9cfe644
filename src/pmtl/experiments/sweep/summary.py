"""The summary of a comparison: means over seeds, the settings that validation chose, what that
choice would cost, and which runs failed."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from pmtl.privacy.accounting import selection
from pmtl.privacy.plan import PrivacyPlan

Row = dict[str, Any]
#: From a line of the summary to the privacy plan of its runs.
Plans = Callable[[Row], PrivacyPlan]


def summarise(rows: list[Row], task: str) -> dict[str, Any]:
    """Mean and standard deviation over seeds, the setting that validation chose, and failures, of
    the runs of a comparison; one that failed has the sentence `error`. The task decides the metric.
    """
    metric = "rmse" if task == "regression" else "accuracy"
    groups: defaultdict[tuple[str, float | None], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["name"], row["epsilon"]].append(row)
    order = [row["name"] for row in rows]
    keys = sorted(groups, key=lambda key: (order.index(key[0]), key[1] or 0.0))
    summary = [_line(groups[key]) for key in keys]
    return {
        "metric": metric,
        "summary": summary,
        "chosen": choose(summary, metric),
        "failures": _failures(rows),
    }


def _line(runs: list[Row]) -> Row:
    """The runs of one candidate at one ε."""
    finished = [run for run in runs if "error" not in run]
    about = ("name", "method", "algorithm", "settings", "epsilon")
    line: Row = {name: runs[0][name] for name in about} | {"seeds": len(finished)}
    line["failed"] = len(runs) - len(finished)
    line["diverged"] = sum(run["not_finite"] is not None for run in finished)
    for split in ("test", "validation"):
        for view in ("personal", "shared", "alone"):
            values = [run[split][view] for run in finished if run[split] and view in run[split]]
            if values:
                line[f"{split}_{view}"] = _spread(values)
    return line


def _spread(values: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """For each metric the mean and the sample standard deviation over seeds (0 for one seed)."""
    # In a file, numbers that are not finite are null: float() makes them NaN.
    table = {name: np.array([value[name] for value in values], float) for name in values[0]}
    return {
        name: {"mean": float(v.mean()), "std": float(v.std(ddof=1)) if len(v) > 1 else 0.0}
        for name, v in table.items()
    }


def choose(summary: list[Row], metric: str) -> list[Row]:
    """The best setting of each method at each ε. A setting that failed or diverged with some seed
    is chosen only if there is no other; one that failed with all seeds is never chosen."""
    sign = -1 if metric == "rmse" else 1
    chosen: dict[tuple[str, float | None], tuple[bool, float, Row]] = {}
    for line in summary:
        views = line.get("validation_personal") or line.get("test_personal")
        if views is None:
            continue
        value = float(sign * views[metric]["mean"])
        value = -math.inf if math.isnan(value) else value
        entry = (not (line.get("diverged") or line.get("failed")), value, line)
        key = (line["method"], line["epsilon"])
        if key not in chosen or entry[:2] > chosen[key][:2]:
            chosen[key] = entry
    return [line for _, _, line in chosen.values()]


def prices(summary: list[Row], plan_of: Plans) -> list[Row]:
    """What choosing a method's setting would cost at each ε, if several settings were given. If
    nothing is shared (ε is None), each client can choose for itself, which is free."""
    plans: defaultdict[tuple[str, float], Counter[PrivacyPlan]] = defaultdict(Counter)
    for line in summary:
        if line["epsilon"] is not None and line.get("seeds", 1):
            plans[line["method"], line["epsilon"]][plan_of(line)] += 1
    return [
        {"method": method, "epsilon": epsilon, **selection.report(tried)}
        for (method, epsilon), tried in plans.items()
        if sum(tried.values()) > 1
    ]


def _failures(rows: list[Row]) -> list[Row]:
    """Every sentence about failed or diverged runs once, with the candidates and their runs."""
    by_sentence: dict[str, list[Row]] = {}
    for row in rows:
        if sentence := row.get("error") or row.get("not_finite"):
            by_sentence.setdefault(str(sentence), []).append(row)
    return [
        {
            "sentence": sentence,
            "names": [*dict.fromkeys(row["name"] for row in failed)],
            "runs": [row["run"] for row in failed],
        }
        for sentence, failed in by_sentence.items()
    ]
