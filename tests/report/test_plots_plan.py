"""The plot of a plan."""

from __future__ import annotations

import math

import pytest

import pmtl
from pmtl.errors import PmtlError
from pmtl.report.plots import plot_plan


@pytest.mark.parametrize("epsilon", [1.0, math.inf])
@pytest.mark.parametrize(
    ("ending", "start"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")]
)
def test_a_plan_becomes_a_plot(epsilon, ending, start, tmp_path):
    file = tmp_path / f"plan.{ending}"
    plot_plan(pmtl.plan(150, columns=9, classes=2, privacy=epsilon), file)
    assert file.read_bytes().startswith(start)


def test_the_plot_names_what_could_be_shared(tmp_path):
    import matplotlib as mpl

    with mpl.rc_context({"svg.fonttype": "none"}):  # Text as text, not as outlines.
        plot_plan(pmtl.plan(150, columns=9, classes=2, privacy=1.0), tmp_path / "plan.svg")
    text = (tmp_path / "plan.svg").read_text()
    for words in ("150 clients, ε = 1", "biases, 2", "second moments, 65", "ρ = 0.3"):
        assert words in text


def test_another_ending_is_refused(tmp_path):
    with pytest.raises(PmtlError, match="no known ending"):
        plot_plan(pmtl.plan(150, 9), tmp_path / "plan.gif")
