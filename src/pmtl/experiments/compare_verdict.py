"""The verdict of a comparison: at each ε, the best method that shares against training alone.

The method is picked by validation rows, as `compare` picks settings, and judged on test rows,
paired over clients, averaged over seeds. Without validation rows the same rows pick and judge, and
the verdict says so. Acting on the table costs more than the ε of one run:
`privacy/accounting/selection.py` has the price.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmtl.data import FederatedData, Split
from pmtl.privacy.accounting import selection
from pmtl.privacy.plan import PrivacyRequest
from pmtl.report.verdict import ALONE, Floats, Verdict, judge

#: From an algorithm, its ε and rows to the losses of its personal models, `[seeds, m]`.
Losses = Callable[[str, float | None, Split], Floats]
Line = dict[str, Any]


def verdicts(
    results: dict[str, Any], data: FederatedData, privacy: PrivacyRequest, losses: Losses
) -> dict[str, Any]:
    """The verdict of a comparison, for `results.json`.

    Args:
        results: `summary` and `chosen`, as `compare` returns them.
        data: the federation.
        privacy: the settings that all runs share.
        losses: measures an algorithm's models.

    Returns:
        `sentence`, and under `at` one verdict for each ε.
    """
    entries: list[dict[str, Any]] = []
    sharing = [line for line in results["chosen"] if line["epsilon"] is not None]
    alone = [line for line in results["chosen"] if line["epsilon"] is None]
    for epsilon in sorted({line["epsilon"] for line in sharing}):
        rivals = [line for line in sharing if line["epsilon"] == epsilon]
        judged = _at(rivals + alone, len(rivals), results["summary"], data, privacy, losses)
        entries.append({"epsilon": epsilon, **judged.to_dict()})
    if not entries:
        why = "Nothing was shared, so there is nothing to compare training alone with."
        return {"sentence": f"Verdict: nothing can be said. {why}", "at": []}
    sentences = [_at_epsilon(entry) for entry in entries]
    return {"sentence": "\n".join(sentences), "at": entries}


def _at_epsilon(entry: dict[str, Any]) -> str:
    epsilon = entry["epsilon"]
    size = "∞" if math.isinf(epsilon) else f"{epsilon:g}"
    return str(entry["sentence"]).replace("Verdict:", f"Verdict at ε = {size}:", 1)


def _at(
    lines: list[Line],
    sharing: int,
    summary: list[Line],
    data: FederatedData,
    privacy: PrivacyRequest,
    losses: Losses,
) -> Verdict:
    """The verdict at one ε; the first `sharing` of the lines share."""
    rows: Split = "test" if data.rows("test").counts.sum() else "validation"
    validated = bool(data.rows("validation").counts.sum())
    ranked = sorted(lines[:sharing], key=lambda line: _mean_loss(line, validated))
    ours = ranked[0]
    own = {ours["algorithm"]: losses(ours["algorithm"], ours["epsilon"], rows)}
    if alone := lines[sharing:]:
        best = min(alone, key=lambda line: _mean_loss(line, validated))
        own[ALONE] = losses(best["algorithm"], best["epsilon"], rows)
    elif len(ranked) > 1:
        own[ranked[1]["algorithm"]] = losses(ranked[1]["algorithm"], ranked[1]["epsilon"], rows)
    epsilon = ours["epsilon"]
    settings = [line for line in summary if line["epsilon"] in (epsilon, None)]
    same_rows = rows == "validation" or not validated
    picked = len(settings) > len(own) and same_rows
    chosen = f"These {rows} rows also picked what is compared here." if picked else ""
    remark = "" if ALONE in own else "Training alone is not part of this comparison."
    return judge(
        own,
        _counts(data, rows),
        rows=rows,
        cost=_cost(len(settings), epsilon, privacy, data.m),
        chosen=chosen,
        remark=remark,
    )


def _counts(data: FederatedData, rows: Split) -> NDArray[np.int64]:
    return np.asarray(data.rows(rows).counts, dtype=np.int64)


def _mean_loss(line: Line, validated: bool) -> float:
    """The loss that picks; what diverged comes last."""
    split = "validation" if validated and "validation_personal" in line else "test"
    views = line.get(f"{split}_personal")
    value = math.nan if views is None else float(views["loss"]["mean"])
    return value if math.isfinite(value) else math.inf


def _cost(candidates: int, epsilon: float, privacy: PrivacyRequest, clients: int) -> str:
    """What it would cost to act on the table."""
    exact = "This table shows exact scores, which no ε covers."
    if candidates < 2 or math.isinf(epsilon):
        return exact
    price = selection.report(replace(privacy, epsilon=epsilon).resolve(clients), candidates)
    return (
        f"{exact} Picking one of the {candidates} candidates by private scores instead would cost "
        f"at most ε = {price['publish_best']:.3g} with only the best run published, and "
        f"ε = {price['publish_all']:.3g} with all of them (pmtl privacy selection)."
    )
