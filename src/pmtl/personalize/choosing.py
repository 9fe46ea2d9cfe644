"""Every client chooses its own model, on its own validation rows.

What is best differs from client to client: one with many unusual rows should train alone, one with
few should take the shared model as it is. A client tries a list of candidates, in this order:

    local steps                            training alone, from the model that the run began with
    shared, personal                       what the run gave it, as it is
    METHOD-START steps [λ]                 every method, from every start, with a few settings

The first one whose answers are finite is the one to beat. On each validation row, a client measures
the squared distance between probabilities and the true class (Brier's score), for regression the
squared error. It keeps the candidate whose mean gain over the one to beat, less one standard error
of that mean, is highest, and the earliest of equals; so, if nothing gains, the one to beat.

The standard error is there because the best of thirty candidates on a handful of rows is partly
luck. Accuracy has too few values on so few rows, and the loss goes by the few rows on which a model
was sure and wrong; the square is bounded and has neither weakness.

A candidate with answers that are not finite is not chosen. A client without validation rows takes
its personal model, or the shared one where there are none.

Everything happens inside the client, with the billboard and its own rows, so it costs no budget,
however many candidates there are. Which one it chose is private.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pmtl.algorithms import Algorithm
from pmtl.data import FederatedData
from pmtl.errors import PmtlError
from pmtl.personalize.methods import METHODS, Vanilla, build_method, needs_published
from pmtl.personalize.tuning import Clients, Tuner, Workspace
from pmtl.progress import progress_bar
from pmtl.runs.process import threads_for
from pmtl.simulation import LocalTraining, Store, Weights
from pmtl.simulation.evaluation import row_squares_of
from pmtl.simulation.fault_isolation import isolated, together

Squares = NDArray[np.float64]  #: a number for each validation row, client after client

#: Stored beside results, so that those of an earlier rule are computed again.
RULE = "gain in squared distance, less a standard error"
#: How many times the given number of steps (or epochs) is tried, and from scratch.
STEPS, ALONE = (1, 5), (25, 5, 1)
#: The λ that are tried with each method that has one.
LAMS: Mapping[str, Sequence[float | None]] = dict.fromkeys(("mean", "kl", "ewc"), (0.1, 1.0))
#: The start of training alone, and what it is anchored to: nothing.
FRESH = "fresh"


@dataclass(frozen=True)
class Candidate:
    """A model that a client may choose: where it starts, and what is done to it."""

    name: str
    start: str  #: a view of the run, or FRESH
    method: Algorithm | None = None
    local: LocalTraining | None = None


def candidates(
    views: Sequence[str],
    local: LocalTraining,
    starts: Sequence[str] | None = None,
    lams: Mapping[str, Sequence[float | None]] = LAMS,
    alone: Sequence[int] = ALONE,
    alone_with: LocalTraining | None = None,
) -> list[Candidate]:
    """What a client may choose from, in order.

    Args:
        views: The models that the run has: shared, personal.
        local: The least that fine-tuning does.
        starts: The views from which fine-tuning begins; all unless given.
        lams: The λ that are tried, by method.
        alone: How many times the steps of `alone_with` training alone takes, the longest first.
        alone_with: As `local` unless given.
    """
    found = []
    for times in alone:
        more, words = _more(alone_with or local, times)
        found.append(Candidate(f"local {words}", FRESH, Vanilla(), more))
    found += [Candidate(view, view) for view in views]
    for start in views if starts is None else starts:
        for name in METHODS:
            for lam in _lams(name, views, lams):
                method = build_method(name, lam)
                for times in STEPS:
                    more, words = _more(local, times)
                    label = f"{name}-{start} {words}" + ("" if lam is None else f" λ={lam:g}")
                    found.append(Candidate(label, start, method, more))
    return found


def _lams(
    name: str, views: Sequence[str], lams: Mapping[str, Sequence[float | None]]
) -> Sequence[float | None]:
    """The λ to try: [None] for a method without λ; nothing without a shared model to stay near."""
    if not needs_published(METHODS[name]()):
        return [None]
    return lams[name] if "shared" in views else []


def _more(local: LocalTraining, times: int) -> tuple[LocalTraining, str]:
    if local.epochs is not None:
        return replace(local, epochs=times * local.epochs), f"epochs={times * local.epochs}"
    steps = times * (local.steps or 1)
    return replace(local, steps=steps), f"steps={steps}"


@dataclass(frozen=True)
class Chosen:
    """What clients chose, which says something about their rows."""

    store: Store  #: the weights
    picks: NDArray[np.int64]  #: [m], the number of the candidate


def choose(
    space: Workspace, offered: Sequence[Candidate], views: Mapping[str, Weights], default: str
) -> Chosen:
    """Let every client try all that is offered, and keep the best.

    A piece of the federation tries everything before the next one does, so memory holds one
    candidate and the best so far of as many clients as are trained at once.

    Args:
        space: The federation and the model.
        offered: The candidates, in the order of `candidates`.
        views: The run's models: each gives the weights `[K, P]` of any clients.
        default: The view for clients without validation rows.
    """
    data, device, start = space.data, space.feed.device, space.model.start()
    if not space.isolate:
        refuse_without_validation(data)
    tuners = {
        candidate.name: Tuner(space, candidate.method, candidate.local)
        for candidate in offered
        if candidate.method is not None and candidate.local is not None
    }
    first = next(iter(tuners.values()))
    # Longer training may take fewer clients at once than shorter training.
    pieces = min((tuner.pieces() for tuner in tuners.values()), key=lambda parts: len(parts[0]))
    store = Store.fresh(data.m, start)
    names = [candidate.name for candidate in offered]
    picks = np.full(data.m, names.index(default), dtype=np.int64)
    rows, trained_on = data.rows("validation").counts, data.rows("train").counts
    reading: dict[str, Weights] = {**views, FRESH: lambda clients: start.expand(len(clients), -1)}
    anchors = reading.get("shared", reading[FRESH])

    def attempt(candidate: Candidate, clients: Clients) -> tuple[Tensor, Squares]:
        weights = reading[candidate.start](clients).to(device)
        if candidate.name in tuners:
            weights = tuners[candidate.name](clients, weights, anchors(clients).to(device))
        parts = (data, space.feed, space.model, weights)
        return weights, row_squares_of(*parts, "validation", clients, space.isolate)

    each = isolated if space.isolate else together
    total = len(pieces) * len(offered)
    with threads_for(first.work), progress_bar("choosing", total, show=space.progress) as bar:
        for piece in pieces:
            best = Best(reading[default](piece).to(device), picks[piece], rows[piece])
            trying = piece[(rows[piece] > 0) & (trained_on[piece] > 0)]
            for number, candidate in enumerate(offered):
                tried = each(trying, partial(attempt, candidate)) if len(trying) else []
                for clients, (weights, squares) in tried:
                    best.offer(np.searchsorted(piece, clients), number, weights, squares)
                bar.advance()
            store.scatter(piece, best.weights)
            picks[piece] = best.picks
    return Chosen(store, picks)


class Best:
    """The best candidate so far of some clients with so many validation `rows` each."""

    def __init__(self, weights: Tensor, picks: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        self.weights = weights.clone()
        self.picks = picks.copy()
        self._rows = rows
        self._begin = np.cumsum(rows) - rows
        self._to_beat = np.zeros(int(rows.sum()))  #: squares of the one to beat
        self._judged = np.zeros(len(picks), dtype=bool)  #: whether there is one to beat
        self._gain = np.full(len(picks), -np.inf)  #: sure gain of the best so far
        self._square = np.full(len(picks), np.inf)  #: and its mean square

    def offer(
        self, places: NDArray[np.int64], number: int, weights: Tensor, squares: Squares
    ) -> None:
        """Let the clients at `places` look at candidate `number`."""
        gain, square = self._sure_gain(places, squares)
        best, least = self._gain[places], self._square[places]
        # Compared with a first candidate with enormous squares, all gains round to one number.
        better = (gain > best) | ((gain == best) & (square < least))
        won = places[better]
        chosen = torch.from_numpy(better).to(weights.device)
        self.weights[torch.from_numpy(won).to(weights.device)] = weights[chosen]
        self.picks[won] = number
        self._gain[won], self._square[won] = gain[better], square[better]

    def _sure_gain(
        self, places: NDArray[np.int64], squares: Squares
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The mean gain over the one to beat, less its standard error, and the mean square; −∞ and
        ∞ where answers are not finite. A single row has a standard error of 0."""
        rows = self._rows[places]
        owner = np.repeat(np.arange(len(places)), rows)
        mine = np.arange(len(owner)) + np.repeat(self._begin[places] - np.cumsum(rows) + rows, rows)

        def mean(values: Squares) -> NDArray[np.float64]:
            return np.bincount(owner, values, len(places)) / np.maximum(rows, 1)

        finite = mean(np.isfinite(squares)) == 1
        squares = np.where(finite[owner], squares, 0.0)
        begins = finite & ~self._judged[places]
        self._to_beat[mine[begins[owner]]] = squares[begins[owner]]
        self._judged[places[begins]] = True
        gains = self._to_beat[mine] - squares
        average = mean(gains)
        error = np.sqrt(mean((gains - average[owner]) ** 2) / np.maximum(rows, 1))
        return np.where(finite, average - error, -np.inf), np.where(finite, mean(squares), np.inf)


def refuse_without_validation(data: FederatedData) -> None:
    """Say how to get validation rows where there are none."""
    if data.rows("validation").counts.sum() == 0:
        raise PmtlError(
            "Clients choose on their validation rows, and this data has none: train again on data "
            "with some, by validation=0.1 behind its name (--data FILE:validation=0.1), or by rows "
            "marked validation in its split column."
        )
