"""Every client chooses its own model, on its own validation rows.

What is best differs from client to client: one with many unusual rows should train alone, one with
few should take the shared model as it is. A client tries a list of candidates, in this order:

    local steps                            training alone, from the model that the run began with
    shared, personal                       what the run gave it, as it is
    METHOD-START steps [λ]                 every method, from every start, with a few settings

The first, training alone for the longest time, is the one to beat (if it answers in numbers; else
the first that does). On its validation rows a client
compares how far answers are from the truth: the squared distance between probabilities and the
class that is (Brier's score), for regression the squared error. It keeps the candidate that is
surest to gain upon the first: whose mean gain, less one standard error of that mean, is highest; if
none has any such gain, the first; among equals the earliest of the list.

A handful of rows is a poor judge of thirty candidates, and the best of many is partly luck: hence
the standard error. Accuracy would be worse, having few values there, and so would the loss, which
goes by the few rows on which a model was sure and wrong, and prefers models that are seldom sure to
models that are often right. The square is bounded and has neither weakness.

A candidate whose answers are not numbers is not chosen. A client without validation rows takes what
it would answer with after the run: its personal model, or the shared one where there are none.

Everything happens inside the client, with the billboard and its own rows, so it costs no budget,
however many candidates there are; for the same reason *which* one it chose is its own affair.
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
from pmtl.models import FlatModel
from pmtl.personalize.methods import METHODS, Vanilla, build_method, needs_published
from pmtl.personalize.tuning import Tuner
from pmtl.progress import progress_bar
from pmtl.runs.process import threads_for
from pmtl.simulation import Feed, LocalTraining, Store, Weights
from pmtl.simulation.evaluation import row_squares_of
from pmtl.simulation.fault_isolation import isolated, together

Clients = NDArray[np.int64]
Squares = NDArray[np.float64]  #: a number for each validation row, client after client

#: Results of another rule than this are not those of today's.
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
    """What a client may choose from, in order, where the run has these `views` (shared, personal).

    `local` is the least that is done; fine-tuning begins at `starts`, all of the views unless
    given, and training alone takes `alone` times as many steps, the longest first, or so many times
    the steps of `alone_with`.
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
    """The λ of a method: none where it has none, and nothing to try where it has no anchor."""
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
    """What came of it. Which candidate a client chose says something about its rows."""

    store: Store  #: the weights
    picks: NDArray[np.int64]  #: [m], the number of the candidate


def choose(
    data: FederatedData,
    feed: Feed,
    model: FlatModel,
    offered: Sequence[Candidate],
    views: Mapping[str, Weights],
    seed: int = 0,
    *,
    default: str,
    engine: str = "auto",
    compile: bool | None = None,
    isolate: bool = False,
    progress: bool = False,
) -> Chosen:
    """Let every client try all that is `offered`, of which the first is the one to beat, and keep
    the best.

    A piece of the federation tries everything before the next one does, so memory holds one
    candidate and the best so far of as many clients as are trained at once. `default` names the
    view for clients without validation rows.
    """
    if not isolate:
        refuse_without_validation(data)
    tuners = {
        candidate.name: Tuner(
            *(data, feed, model, candidate.method, candidate.local, seed),
            engine=engine,
            compile=compile,
            in_place=isolate,
        )
        for candidate in offered
        if candidate.method is not None and candidate.local is not None
    }
    first = next(iter(tuners.values()))
    # A longer work may take fewer clients at once than a shorter one.
    pieces = min((tuner.pieces() for tuner in tuners.values()), key=lambda parts: len(parts[0]))
    store = Store.fresh(data.m, model.start())
    names = [candidate.name for candidate in offered]
    picks = np.full(data.m, names.index(default), dtype=np.int64)
    rows, trained_on = data.rows("validation").counts, data.rows("train").counts
    reading: dict[str, Weights] = {**views, FRESH: _everywhere(model.start())}
    anchors = reading.get("shared", reading[FRESH])

    def attempt(candidate: Candidate, clients: Clients) -> tuple[Tensor, Squares]:
        weights = reading[candidate.start](clients).to(feed.device)
        if candidate.name in tuners:
            around = anchors(clients).to(feed.device)
            weights = tuners[candidate.name](clients, weights, around)
        squares = row_squares_of(data, feed, model, weights, "validation", clients, isolate)
        return weights, squares

    each = isolated if isolate else together
    total = len(pieces) * len(offered)
    with threads_for(first.work), progress_bar("choosing", total, show=progress) as bar:
        for piece in pieces:
            best = Best(reading[default](piece).to(feed.device), picks[piece], rows[piece])
            trying = piece[(rows[piece] > 0) & (trained_on[piece] > 0)]
            for number, candidate in enumerate(offered):
                tried = each(trying, partial(attempt, candidate)) if len(trying) else []
                for clients, (weights, squares) in tried:
                    best.offer(np.searchsorted(piece, clients), number, weights, squares)
                bar.advance()
            store.scatter(piece, best.weights)
            picks[piece] = best.picks
    return Chosen(store, picks)


def _everywhere(start: Tensor) -> Weights:
    return lambda clients: start.expand(len(clients), -1)


class Best:
    """The best candidate so far of each of some clients, who have so many `rows` to judge by."""

    def __init__(self, weights: Tensor, picks: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        self.weights = weights.clone()
        self.picks = picks.copy()
        self._rows = rows
        self._begin = np.cumsum(rows) - rows
        self._to_beat = np.zeros(int(rows.sum()))  #: squares of the first that answered in numbers
        self._judged = np.zeros(len(picks), dtype=bool)  #: whether there is such a one
        self._gain = np.full(len(picks), -np.inf)  #: sure gain of the best so far
        self._square = np.full(len(picks), np.inf)  #: and its mean square

    def offer(
        self, places: NDArray[np.int64], number: int, weights: Tensor, squares: Squares
    ) -> None:
        """Let the clients at `places` look at candidate `number`."""
        gain, square = self._sure_gain(places, squares)
        best, least = self._gain[places], self._square[places]
        # Beside a first candidate that went astray all gains look alike.
        better = (gain > best) | ((gain == best) & (square < least))
        won = places[better]
        chosen = torch.from_numpy(better).to(weights.device)
        self.weights[torch.from_numpy(won).to(weights.device)] = weights[chosen]
        self.picks[won] = number
        self._gain[won], self._square[won] = gain[better], square[better]

    def _sure_gain(
        self, places: NDArray[np.int64], squares: Squares
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The mean gain upon the one to beat, less its standard error, and the mean square; −∞ and
        ∞ where answers are not numbers. A single row has no spread, and decides by itself."""
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
