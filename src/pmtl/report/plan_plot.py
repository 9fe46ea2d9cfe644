"""The plot of a plan: how many shared numbers pay, against the number of clients."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pmtl import storage as files
from pmtl.errors import PmtlError
from pmtl.report.plots import make_axes

if TYPE_CHECKING:
    from pmtl.planning.advice import Plan

ENDINGS = (".svg", ".png", ".pdf")


def plot_plan(plan: Plan, path: str | Path) -> None:
    """Draw the shared numbers that pay against clients, one line for each ρ, and the plan's offers.
    Other numbers of clients are drawn at the plan's δ and rate, where d* grows with the square of
    their number. The ending of `path` decides the format."""
    path = Path(path)
    if path.suffix not in ENDINGS:
        raise PmtlError(f"{path} has no known ending: use one of {', '.join(ENDINGS)}.")
    m = plan.privacy.clients
    axes = make_axes(7.2)
    scales = (0.1, 1.0, 10.0, 100.0)
    if plan.noise > 0:
        for agreement, most in plan.pays.items():
            heights = [most * scale**2 for scale in scales]
            axes.plot([m * scale for scale in scales], heights, label=f"ρ = {agreement:g}")
    for offer in plan.offers:
        axes.plot([m], [offer.numbers], "k.", zorder=3)
        axes.annotate(
            f"{offer.name}, {offer.numbers:,}",
            (m, offer.numbers),
            (6, 0),
            textcoords="offset points",
            fontsize="small",
            va="center",
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.axvline(m, color="0.7", lw=0.8)
    axes.set_xlabel("clients")
    axes.set_ylabel("shared numbers that pay")
    axes.set_title(f"{m:,} clients, ε = {plan.epsilon:.4g}: below a line, sharing pays")
    axes.grid(alpha=0.25)
    if plan.noise > 0:
        title = "common to all clients"
        axes.legend(frameon=False, fontsize="small", title=title, title_fontsize="small")
    with files.disk_errors(path):
        axes.figure.savefig(path, dpi=150)
