"""A verdict on finished models: share or train alone, by how much, and whether that is luck.

Models are compared client by client. Clients are the unit of luck: other clients of the same kind
would have given other losses. So with a gain g_k = (loss of the one) − (loss of the other) for
each of n clients, the mean gain has the standard error sd(g)/√n. It is more than luck if it is
further from 0 than Student's t allows with 95% confidence. Every client counts once, however many
rows it has.

If there are several seeds, g_k is the client's mean over them. The noise of one release is common
to all clients, so differences between clients do not show it: the error of the mean over seeds is
added (in squares).

This module has only arithmetic and texts; it uses neither runs nor rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmtl.errors import how_many
from pmtl.privacy.accounting.libraries import load

Floats = NDArray[np.float64]

SHARE, ALONE, EITHER, UNKNOWN = "share", "alone", "either", "unknown"
#: Said where nothing can be measured.
NO_ROWS = "There are no validation or test rows to measure on."
#: What views are called in sentences; others by their own names.
NAMES = {
    "personal": "the personal models",
    "shared": "the shared model",
    "alone": "training alone",
    "finetuned": "the models that clients chose",
}
#: What an advice is called; others are the names of views.
_HEADLINES = {SHARE: "share", ALONE: "train alone"}
_HEADLINES |= {EITHER: "no difference beyond luck", UNKNOWN: "nothing can be said"}
CONFIDENCE = 0.95
#: A gain that is a smaller share of the loss is called small.
SMALL = 0.01
_SMALL = "That is less than 1% of the loss: sharing matters little here."
_NO_MEASURE = (
    "Training that diverged is no measure of training alone: try a smaller step (--lr) or features "
    "of a size near 1 (--scale client)."
)


@dataclass(frozen=True)
class Paired:
    """Two views compared client by client."""

    view: str
    other: str
    clients: int  #: clients with a finite loss of both
    loss: float  #: the mean loss of `view` over these clients
    other_loss: float  #: the mean loss of `other`
    gain: float  #: `other_loss` − `loss`: positive if `view` is better
    error: float | None  #: the standard error of the gain; None if it cannot be known
    luck: float | None  #: a gain up to this size may be luck
    diverged: int = 0  #: clients for which only `view` has no finite loss
    other_diverged: int = 0  #: clients for which only `other` has none

    @property
    def share(self) -> float | None:
        """The size of the gain as a share of the loss of `other`."""
        return abs(self.gain) / self.other_loss if self.other_loss > 0 else None

    @property
    def winner(self) -> str | None:
        """The better view, if it is better by more than luck. A view that diverged for clients
        which the other serves does not win."""
        if self.error is None or self.luck is None or not abs(self.gain) > self.luck:
            return None
        if self.gain > 0:
            return None if self.diverged else self.view
        return None if self.other_diverged else self.other


@dataclass(frozen=True)
class Verdict:
    """What scores say about sharing, and what they cost."""

    advice: str  #: share, alone, either, unknown, or the name of the better view
    sentence: str  #: the whole verdict as text
    rows: str | None = None  #: the rows of the scores: validation or test
    chosen: bool = False  #: whether these scores also chose something, which makes them optimistic
    comparisons: tuple[Paired, ...] = ()  #: the first one decides
    cost: str = ""  #: what looking at the scores costs, as text

    def to_dict(self) -> dict[str, Any]:
        """The verdict for JSON."""
        values = asdict(self)
        for entry, paired in zip(values["comparisons"], self.comparisons, strict=True):
            entry["winner"] = paired.winner
        return values

    def __str__(self) -> str:
        return self.sentence


def pair(view: str, other: str, losses: Mapping[str, Floats], counts: NDArray[np.int64]) -> Paired:
    """Compare two views on the clients that have rows.

    `losses` has each view's mean losses over a client's rows, `[m]`, or `[seeds, m]`; `counts` says
    how many rows each client has, `[m]`."""
    here = np.asarray(counts) > 0
    one, two = (np.atleast_2d(losses[name])[:, here] for name in (view, other))
    fine, other_fine = (np.isfinite(values).all(axis=0) for values in (one, two))
    both = fine & other_fine
    gains = two[:, both] - one[:, both]
    error = _error(gains)
    n = int(both.sum())
    return Paired(
        view,
        other,
        clients=n,
        loss=float(one[:, both].mean()) if n else math.nan,
        other_loss=float(two[:, both].mean()) if n else math.nan,
        gain=float(gains.mean()) if n else math.nan,
        error=error,
        luck=None if error is None else error * _quantile(n - 1),
        diverged=int((~fine & other_fine).sum()),
        other_diverged=int((fine & ~other_fine).sum()),
    )


def _error(gains: Floats) -> float | None:
    """The standard error of the mean of `[seeds, n]` gains; None for fewer than two clients."""
    seeds, clients = gains.shape
    if clients < 2:
        return None
    over_clients = gains.mean(axis=0).std(ddof=1) / math.sqrt(clients)
    over_seeds = gains.mean(axis=1).std(ddof=1) / math.sqrt(seeds) if seeds > 1 else 0.0
    return math.hypot(over_clients, over_seeds)


def _quantile(degrees: int) -> float:
    """Student's t: how many standard errors may be luck."""
    return float(load("scipy.special").stdtrit(degrees, (1 + CONFIDENCE) / 2))


def judge(
    losses: Mapping[str, Floats],
    counts: NDArray[np.int64],
    *,
    rows: str,
    cost: str,
    chosen: str = "",
    remark: str = "",
) -> Verdict:
    """The verdict on some views.

    Args:
        losses: as for `pair`; the first view is the one that the run is for. It is compared with
            `alone`, if there is such a view, and with every other view.
        counts: as for `pair`.
        rows: the name of the rows.
        cost: what looking at these scores costs: sentences.
        chosen: what these scores chose, as a sentence; empty if nothing.
        remark: a further sentence.
    """
    view, *others = losses
    others.sort(key=lambda name: name != ALONE)
    comparisons = tuple(pair(view, other, losses, counts) for other in others)
    if not comparisons:
        advice, words = UNKNOWN, f"There is nothing to compare {named(view)} with."
    else:
        advice, words = _decide(comparisons, rows)
    marked = f"{chosen} So these scores are optimistic." if chosen else ""
    headline = _HEADLINES.get(advice) or f"use {named(advice)}"
    parts = (f"Verdict: {headline}.", words, marked, remark, cost)
    sentence = " ".join(part for part in parts if part)
    return Verdict(advice, sentence, rows, bool(chosen), comparisons, cost)


def named(view: str) -> str:
    """A view as part of a sentence."""
    return NAMES.get(view, view)


def _decide(comparisons: tuple[Paired, ...], rows: str) -> tuple[str, str]:
    first = comparisons[0]
    words = [difference(first, f"on {rows} rows")]
    if first.clients < 2:
        return UNKNOWN, " ".join(words)
    winner = first.winner
    if winner is None and (first.diverged or first.other_diverged):
        # A view that diverged for some clients must not be used, however good its other scores.
        winner = first.other if first.diverged > first.other_diverged else first.view
        if winner == first.view and first.other == ALONE:
            return UNKNOWN, " ".join([*words, _NO_MEASURE])
    if winner is None:
        advice = EITHER
        if first.other == ALONE:
            words.append("These clients cannot tell which is better, and training alone is free.")
    elif first.other == ALONE:
        advice = ALONE if winner == ALONE else SHARE
        if advice == SHARE and first.share is not None and first.share < SMALL:
            words.append(_SMALL)
    else:
        advice = winner
    for more in comparisons[1:]:
        if more.winner == more.other and more.other != ALONE and advice != ALONE:
            words.append(difference(more, "there"))
            advice = more.other
    return advice, " ".join(words)


def difference(paired: Paired, where: str) -> str:
    """A comparison as a sentence."""
    view, other = named(paired.view), named(paired.other)
    start = _first(paired.view)
    if paired.clients == 0:
        words = f"No client has a finite loss of both {view} and {other} {where}."
    elif paired.error is None or paired.luck is None:
        words = (
            f"{start} {_have(paired.view)} a loss of {paired.loss:.4g} {where}, {other} "
            f"{paired.other_loss:.4g}; with a single client luck cannot be ruled out."
        )
    else:
        lower = "lower" if paired.gain >= 0 else "higher"
        luck = "more than luck" if abs(paired.gain) > paired.luck else "which may be luck"
        share = "" if paired.share is None else f" ({_percent(paired.share)})"
        words = (
            f"{start} {_have(paired.view)} a loss {abs(paired.gain):.3g}{share} {lower} than "
            f"{other} {where} (mean over clients: {paired.loss:.4g} against "
            f"{paired.other_loss:.4g}; "
            f"standard error {paired.error:.2g}, paired over {paired.clients} clients): {luck}."
        )
    for name, count in ((paired.view, paired.diverged), (paired.other, paired.other_diverged)):
        if count:
            words += f" {_first(name)} diverged for {how_many(count, 'client')}, left out here."
    return words


def _percent(share: float) -> str:
    return f"{100 * share:.2g}%" if share < 0.995 else f"{100 * share:.0f}%"


def _first(view: str) -> str:
    """A view at the beginning of a sentence; the names of algorithms stay as they are."""
    words = NAMES.get(view)
    return view if words is None else f"{words[0].upper()}{words[1:]}"


def _have(view: str) -> str:
    return "have" if view in ("personal", "finetuned") else "has"
