"""Who gains and who loses: every client's loss with its own model, and with another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pmtl.errors import how_many
from pmtl.report.verdict import ALONE, Floats, named

#: The most clients that a chart shows one by one.
MAX_POINTS = 2000
_TENTH = 10


@dataclass(frozen=True)
class Clients:
    """The clients' losses with two models each."""

    ours: str  #: the view whose models the run is for
    other: str  #: the view that it is compared with
    rows: str  #: the rows of the losses
    clients: int  #: clients with a finite loss of both
    left_out: int  #: clients without one
    gain: int  #: clients with a lower loss of `ours`
    lose: int  #: clients with a higher loss of `ours`
    worst: int  #: clients in the worst tenth
    worst_loss: float  #: their mean loss of `ours`
    worst_other: float  #: their mean loss of `other`
    #: The clients that are shown, from the largest loss to the largest gain.
    points: list[dict[str, Any]]

    @property
    def sampled(self) -> bool:
        """Whether only some of the clients are shown one by one."""
        return len(self.points) < self.clients

    def sentences(self) -> list[str]:
        """A description of the chart."""
        even = self.clients - self.gain - self.lose
        lines = [
            f"Of {how_many(self.clients, 'client')}, {self.gain:,} "
            f"{'has' if self.gain == 1 else 'have'} a lower loss with {named(self.ours)} than with "
            f"{named(self.other)} on {self.rows} rows, {self.lose:,} a higher one"
            + (f", and {even:,} the same." if even else "."),
            f"The worst tenth ({how_many(self.worst, 'client')} with the highest loss of "
            f"{named(self.ours)}) has a mean loss of {self.worst_loss:.4g}; with "
            f"{named(self.other)} the same clients have {self.worst_other:.4g}.",
        ]
        if self.left_out:
            lines.append(f"Clients without {self.rows} rows or a finite loss: {self.left_out:,}.")
        if self.sampled:
            lines.append(
                f"The chart and its table show {len(self.points):,} of the {self.clients:,} "
                "clients, evenly spaced from the one that loses most to the one that gains most. "
                "All clients count in the sentences above."
            )
        return lines


def client_gains(names: Sequence[str], losses: Mapping[str, Floats], rows: str) -> Clients | None:
    """Compare the first view with training alone or, if that was not measured, with the next view.
    A view's losses are `[m]`, NaN for clients without rows. None if there is only one view, or no
    client with a finite loss of both."""
    ours, *others = losses
    if not others:
        return None
    other = ALONE if ALONE in others else others[0]
    mine, theirs = losses[ours], losses[other]
    there = np.flatnonzero(np.isfinite(mine) & np.isfinite(theirs))
    if len(there) == 0:
        return None
    mine, theirs = mine[there], theirs[there]
    gains = theirs - mine
    worst = np.zeros(len(there), dtype=bool)
    worst[np.argsort(-mine, kind="stable")[: -(-len(there) // _TENTH)]] = True
    order = np.argsort(gains, kind="stable")
    if len(order) > MAX_POINTS:
        order = order[np.linspace(0, len(order) - 1, MAX_POINTS).round().astype(np.int64)]
    points = [
        {
            "client": names[there[place]],
            "ours": float(f"{mine[place]:.5g}"),
            "other": float(f"{theirs[place]:.5g}"),
            "gain": float(f"{gains[place]:.3g}"),
            "group": "worst tenth" if worst[place] else "other clients",
        }
        for place in order
    ]
    return Clients(
        ours=ours,
        other=other,
        rows=rows,
        clients=len(there),
        left_out=len(names) - len(there),
        gain=int((gains > 0).sum()),
        lose=int((gains < 0).sum()),
        worst=int(worst.sum()),
        worst_loss=float(mine[worst].mean()),
        worst_other=float(theirs[worst].mean()),
        points=points,
    )
