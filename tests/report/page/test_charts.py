"""The charts of a page read honestly."""

from __future__ import annotations

import json

import pytest

from pmtl.report.page.charts import score_chart


def scales(spec, found):
    """All axes of scores in a chart, wherever they are."""
    if isinstance(spec, dict):
        if str(spec.get("field")) in ("score", "low") and "scale" in spec:
            found.append((spec["scale"]["domain"], spec["title"]))
        for value in spec.values():
            scales(value, found)
    elif isinstance(spec, list):
        for value in spec:
            scales(value, found)
    return found


@pytest.mark.parametrize("epsilons", [(1.0, 2.0), (1.0,)])
def test_small_differences_do_not_fill_the_chart(epsilons):
    rows = [
        {"method": method, "epsilon": epsilon, "score": score, "low": score - 0.01, "high": 0.81}
        for method, score in (("a", 0.8), ("b", 0.79))
        for epsilon in epsilons
    ]
    found = scales(json.loads(json.dumps(score_chart(rows, "test accuracy", "t").spec)), [])
    assert found
    for (low, high), title in found:
        assert high - low == pytest.approx(0.2)
        assert low < 0.78 < 0.81 < high
        assert title == f"test accuracy (axis starts at {low:.2g}, not at 0)"
    errors = [
        {"method": m, "epsilon": e, "score": s} for m, s in (("a", 3), ("b", 9)) for e in epsilons
    ]
    for (low, high), title in scales(score_chart(errors, "test rmse", "t").spec, []):
        assert (low, title) == (0, "test rmse")
        assert high > 9
