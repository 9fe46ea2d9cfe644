"""`pmtl plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pmtl.cli import options as opt
from pmtl.options import nested
from pmtl.planning.advice import Question
from pmtl.planning.advice import plan as make_plan
from pmtl.storage import write_text


@opt.with_settings("noise", "hardened", "metrics", "loss_bound", kind=Question)
def plan(
    clients: opt.Clients,
    plot: str | None = opt.optional("Draw what pays: a new .svg, .png or .pdf.", metavar="FILE"),
    out: str | None = opt.optional("Write the settings to this TOML file, too.", metavar="FILE"),
    as_json: opt.AsJson = False,
    **settings: Any,
) -> None:
    """Can sharing pay? From public numbers alone, before any budget is spent.

    It reads no data. It compares the noise that ε needs with the largest signal that clipped
    uploads can have, and says how many shared numbers pay, how many clients or which ε would be
    needed, and what to share instead.

        pmtl plan --clients 160 --columns 5 --epsilon 1
        pmtl plan --clients 205 --model femnist_cnn --columns 784 --classes 62 --epsilon 2
        pmtl plan --clients 205 --model femnist_cnn --columns 784 --classes 62 --public-head
    """
    made = make_plan(clients, **nested(Question, opt.given(settings)))
    settings_in = f" {out}" if out else f"\n\n{made.toml}"
    lines = [f"{made}\n\nSettings for pmtl train --config:{settings_in}"]
    if plot is not None:
        from pmtl.report.plots import plot_plan

        plot_plan(made, plot)
        lines.append(f"Plot: {plot}")
    if out is not None:
        write_text(Path(out), made.toml)
    opt.answer(as_json, made.to_dict(), *lines)
