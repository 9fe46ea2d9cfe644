"""The verdict of a comparison: at each ε, the best method that shares against training alone.

The method is picked by validation rows, as `compare` picks settings, and judged on test rows,
paired over clients, averaged over seeds. Training alone is a method that shares nothing, or what
runs of an exact algorithm train alone, whichever is better on validation rows. Without validation
rows the same rows pick and judge, and the verdict mentions it. To choose by the table costs more
than the ε of one run: `privacy/accounting/selection.py` computes it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from pmtl.data import FederatedData, Split
from pmtl.experiments.sweep.summary import Plans
from pmtl.privacy.accounting import selection
from pmtl.report.verdict import ALONE, Floats, Verdict, judge

Line = dict[str, Any]
#: From a line of the summary, rows and a view ("personal" or "alone") to the losses of its models,
#: `[seeds, m]`.
Losses = Callable[[Line, Split, str], Floats]


def verdicts(
    results: dict[str, Any], data: FederatedData, plan_of: Plans, losses: Losses
) -> dict[str, Any]:
    """The verdict of a comparison with these `results`, for `results.json`: `sentence`, and under
    `at` one verdict for each ε."""
    entries: list[dict[str, Any]] = []
    sharing = [line for line in results["chosen"] if line["epsilon"] is not None]
    alone = [line for line in results["chosen"] if line["epsilon"] is None]
    for epsilon in sorted({line["epsilon"] for line in sharing}):
        rivals = [line for line in sharing if line["epsilon"] == epsilon]
        judged = _at(rivals, alone, results["summary"], data, plan_of, losses)
        entries.append({"epsilon": epsilon, **judged.to_dict()})
    if not entries:
        why = "Nothing was shared, so there is nothing to compare training alone with."
        return {"sentence": f"Verdict: nothing can be said. {why}", "at": []}
    sentences = []
    for entry in entries:
        size = "∞" if math.isinf(entry["epsilon"]) else f"{entry['epsilon']:g}"
        sentences.append(entry["sentence"].replace("Verdict:", f"Verdict at ε = {size}:", 1))
    return {"sentence": "\n".join(sentences), "at": entries}


def _at(
    rivals: list[Line],
    alone: list[Line],
    summary: list[Line],
    data: FederatedData,
    plan_of: Plans,
    losses: Losses,
) -> Verdict:
    """The verdict at one ε, on lines that share and lines that do not."""
    rows: Split = "test" if data.rows("test").counts.sum() else "validation"
    validated = bool(data.rows("validation").counts.sum())
    ranked = sorted(rivals, key=lambda line: _mean_loss(line, validated))
    ours = ranked[0]
    own = {ours["name"]: losses(ours, rows, "personal")}
    inside = [line for line in ranked if f"{rows}_{ALONE}" in line][:1]
    views = [(line, "personal") for line in alone] + [(line, ALONE) for line in inside]
    if views:
        best = min(views, key=lambda view: _mean_loss(view[0], validated, view[1]))
        own[ALONE] = losses(best[0], rows, best[1])
    elif len(ranked) > 1:
        own[ranked[1]["name"]] = losses(ranked[1], rows, "personal")
    epsilon = ours["epsilon"]
    settings = [
        line for line in summary if line["epsilon"] in (epsilon, None) and line.get("seeds", 1)
    ]
    same_rows = rows == "validation" or not validated
    picked = len(settings) + len(inside) > len(own) and same_rows
    chosen = f"These {rows} rows also picked what is compared here." if picked else ""
    remark = "" if views else "Training alone is not part of this comparison."
    if views and best[1] == ALONE:
        remark = f"Training alone is what the runs of {best[0]['name']} brought along."
    return judge(
        own,
        np.asarray(data.rows(rows).counts, dtype=np.int64),
        rows=rows,
        cost=_cost(settings, epsilon, plan_of),
        chosen=chosen,
        remark=remark,
    )


def _mean_loss(line: Line, validated: bool, view: str = "personal") -> float:
    """The loss that ranks a view of a line; infinite if it diverged."""
    split = "validation" if validated and f"validation_{view}" in line else "test"
    metrics = line.get(f"{split}_{view}")
    value = math.nan if metrics is None else float(metrics["loss"]["mean"])
    return value if math.isfinite(value) and not line.get("diverged") else math.inf


def _cost(candidates: list[Line], epsilon: float, plan_of: Plans) -> str:
    """The cost of a choice by the table. A candidate that shares nothing is priced like the first
    of the others, because its score is released, too."""
    exact = "This table shows exact scores, which no ε covers."
    if len(candidates) < 2 or math.isinf(epsilon):
        return exact
    plans = Counter(plan_of(line) for line in candidates if line["epsilon"] is not None)
    plans[next(iter(plans))] += len(candidates) - sum(plans.values())
    price = selection.report(plans)
    return (
        f"{exact} Picking one of the {len(candidates)} candidates by private scores instead would "
        f"cost at most ε = {price['publish_best']:.3g} with only the best run published, and "
        f"ε = {price['publish_all']:.3g} with all of them (pmtl privacy selection)."
    )
