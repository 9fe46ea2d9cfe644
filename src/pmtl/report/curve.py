"""The learning curve of a run as a picture in its folder."""

from __future__ import annotations

from pathlib import Path

from pmtl import storage as files
from pmtl.errors import PmtlError, how_many
from pmtl.report.page.charts import loss_rows
from pmtl.report.plots import make_axes
from pmtl.runs.folder import RunFolder
from pmtl.runs.result import Run

NAME = "curve.png"


def draw_curve(run: Run) -> Path | None:
    """Draw the loss against rounds to `curve.png`, in production in the public part. Returns the
    file, if one was written.

    Nothing is drawn if matplotlib is not installed, if no loss was measured, or if the algorithm is
    exact: its clients have models after the last release only, so there is nothing to see on the
    way. In production the lines are the released averages, with their noise."""
    rows = loss_rows(run.metrics)
    if run.path is None or run.facts.releases is not None or not rows:
        return None
    try:
        axes = make_axes(6.4)
    except PmtlError:  # The extra is not installed.
        return None
    noise = next((line["noise"]["loss_mean"] for line in run.metrics if "noise" in line), None)
    for name in dict.fromkeys(row["line"] for row in rows):
        points = [(row["round"], row["loss"]) for row in rows if row["line"] == name]
        marker = "o" if len(points) < 40 else None
        axes.errorbar(*zip(*points, strict=True), yerr=noise, marker=marker, ms=3, label=name)
    axes.set_ylim(bottom=0)
    axes.set(xlabel="round", ylabel="mean loss")
    axes.set_title(
        f"{run.facts.algorithm}, {how_many(len(run.clients), 'client')}", fontsize="medium"
    )
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    path = RunFolder(run.path).public / NAME
    with files.disk_errors(path):
        files.replace(path, lambda place: axes.figure.savefig(place, dpi=120, format="png"))
    return path
