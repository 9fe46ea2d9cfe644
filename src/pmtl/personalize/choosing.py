"""Every client chooses its own model, on its own validation rows.

A client with many unusual rows should train alone, one with few rows should take the shared model.
So a client tries candidates, in this order:

    local steps                            training alone, from the start of the run
    shared, personal                       the models of the run, unchanged
    METHOD-START steps [λ]                 every method, from every start, with a few settings

With an exact algorithm (pooling, anchored), whose clients have chosen between sharing and training
alone before, the personal model is first, training alone is last, and clients with fewer than eight
validation rows keep their model.

The baseline is the first candidate with finite answers. On each validation row, a client measures
the squared distance between probabilities and the true class (Brier's score), or the squared error
in regression. It keeps the candidate with the highest mean gain over the baseline less one standard
error of that mean, and the earliest of equals. The standard error corrects for chance: there are
some thirty candidates and few rows. On few rows, accuracy has too few values, and the loss depends
on the rows on which a model is confident and wrong; the square has neither weakness.

Candidates with answers that are not finite are never chosen. Clients without validation rows take
their personal model, or else the shared one. All of this happens inside the client, so it costs no
budget. Which candidate it chose is private.
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
from pmtl.engines.base import Ints
from pmtl.errors import PmtlError
from pmtl.personalize.methods import METHODS, Vanilla, build_method, needs_published
from pmtl.personalize.settings import DEFAULT_LAMS, TRIED_LAMS
from pmtl.personalize.tuning import Tuner, Workspace
from pmtl.simulation import LocalTraining, Store, Weights
from pmtl.simulation.evaluation import Evaluator
from pmtl.simulation.fault_isolation import isolated
from pmtl.views.progress import progress_bar

Squares = NDArray[np.float64]  #: squared distances, for each validation row or client

#: Multiples of the given number of steps (or epochs) for fine-tuning and for training alone.
STEPS, ALONE = (1, 5), (25, 5, 1)
#: The λ that are tried with each method that has one.
LAMS: Mapping[str, Sequence[float | None]] = dict.fromkeys(DEFAULT_LAMS, TRIED_LAMS)
#: Clients with fewer validation rows keep the personal model of an exact algorithm.
FEWEST_ROWS = 8
#: The start of training alone.
FRESH = "fresh"


@dataclass(frozen=True)
class Candidate:
    """A model that a client may choose: its start, and how it is trained."""

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
    """The candidates of a run with these `views`, in order: fine-tuning from each of `starts` (all
    views unless given) for `local` or longer, with the λ in `lams` by method; and training alone
    for `alone` times the steps of `alone_with` (`local` unless given), the longest first."""
    found = []
    for times in alone:
        more, words = _longer(alone_with or local, times)
        found.append(Candidate(f"local {words}", FRESH, Vanilla(), more))
    found += [Candidate(view, view) for view in views]
    for start in views if starts is None else starts:
        for name in METHODS:
            tried: Sequence[float | None] = [None]
            if needs_published(METHODS[name]()):
                tried = lams[name] if "shared" in views else []
            for lam in tried:
                method = build_method(name, lam)
                for times in STEPS:
                    more, words = _longer(local, times)
                    label = f"{name}-{start} {words}" + ("" if lam is None else f" λ={lam:g}")
                    found.append(Candidate(label, start, method, more))
    return found


def _longer(local: LocalTraining, times: int) -> tuple[LocalTraining, str]:
    """Training for `times` as many steps or epochs, and their number as text."""
    kind = "steps" if local.epochs is None else "epochs"
    number = times * (getattr(local, kind) or 1)
    return replace(local, **{kind: number}), f"{kind}={number}"


@dataclass(frozen=True)
class Chosen:
    """What clients chose. It depends on their rows, so it is private."""

    store: Store  #: the weights
    picks: Ints  #: [m], the number of the candidate


def choose(
    space: Workspace,
    offered: Sequence[Candidate],
    views: Mapping[str, Weights],
    default: str,
    fewest: int = 1,
) -> Chosen:
    """Let every client try all candidates and keep the best.

    One piece of the federation after the other tries all candidates, so memory holds one candidate
    and the best so far of the clients that are trained at once. `views` are the run's models, and
    `default` is the view for clients with fewer than `fewest` validation rows.
    """
    data, device, start = space.data, space.tensors.device, space.model.start()
    # In production it is private which clients have such rows.
    if not space.isolate and data.rows("validation").counts.sum() == 0:
        raise PmtlError(
            "Clients choose on their validation rows, but this data has none: train again on data "
            "that has some, with --data FILE:validation=0.1, or with rows marked validation in its "
            "split column."
        )
    tuners = {
        candidate.name: Tuner(space, candidate.method, candidate.local)
        for candidate in offered
        if candidate.method is not None and candidate.local is not None
    }
    first = next(iter(tuners.values()))
    # Longer training may allow fewer clients at once.
    pieces = min((tuner.pieces() for tuner in tuners.values()), key=lambda parts: len(parts[0]))
    store = Store(data.m, start)
    names = [candidate.name for candidate in offered]
    picks = np.full(data.m, names.index(default), dtype=np.int64)
    rows, trained_on = data.rows("validation").counts, data.rows("train").counts
    reading: dict[str, Weights] = {**views, FRESH: lambda clients: start.expand(len(clients), -1)}
    anchors = reading.get("shared", reading[FRESH])
    measuring = Evaluator(space.tensors, space.model, "validation")

    def attempt(candidate: Candidate, clients: Ints) -> tuple[Tensor, Squares]:
        weights = reading[candidate.start](clients).to(device)
        if candidate.name in tuners:
            weights = tuners[candidate.name](clients, weights, anchors(clients).to(device))
        return weights, measuring.row_squares(weights, clients, space.isolate)

    total = len(pieces) * len(offered)
    with first.work.threads(), progress_bar("choosing", total, show=space.progress) as bar:
        for piece in pieces:
            best = Best(reading[default](piece).to(device), picks[piece], rows[piece])
            trying = piece[(rows[piece] >= fewest) & (trained_on[piece] > 0)]
            for number, candidate in enumerate(offered):
                work = partial(attempt, candidate)
                tried = isolated(trying, work, isolate=space.isolate) if len(trying) else []
                for clients, (weights, squares) in tried:
                    best.offer(np.searchsorted(piece, clients), number, weights, squares)
                bar.advance()
            store.scatter(piece, best.weights)
            picks[piece] = best.picks
    return Chosen(store, picks)


class Best:
    """The best candidate so far of some clients, with `rows` [K] validation rows."""

    def __init__(self, weights: Tensor, picks: Ints, rows: Ints) -> None:
        self.weights = weights.clone()
        self.picks = picks.copy()
        self._rows = rows
        self._begin = np.cumsum(rows) - rows
        self._baseline = np.zeros(int(rows.sum()))  #: squares of the baseline
        self._has_baseline = np.zeros(len(picks), dtype=bool)
        self._gain = np.full(len(picks), -np.inf)  #: of the best so far, less the standard error
        self._square = np.full(len(picks), np.inf)  #: of the best so far, the mean square

    def offer(self, places: Ints, number: int, weights: Tensor, squares: Squares) -> None:
        """Compare candidate `number` with the best so far of the clients at `places`."""
        gain, square = self._gain_less_error(places, squares)
        best, least = self._gain[places], self._square[places]
        # If the baseline has enormous squares, all gains round to the same number.
        better = (gain > best) | ((gain == best) & (square < least))
        won = places[better]
        chosen = torch.from_numpy(better).to(weights.device)
        self.weights[torch.from_numpy(won).to(weights.device)] = weights[chosen]
        self.picks[won] = number
        self._gain[won], self._square[won] = gain[better], square[better]

    def _gain_less_error(self, places: Ints, squares: Squares) -> tuple[Squares, Squares]:
        """For each client the mean gain over the baseline less its standard error (0 for a single
        row), and the mean square; −∞ and ∞ where answers are not finite."""
        rows = self._rows[places]
        owner = np.repeat(np.arange(len(places)), rows)
        mine = np.arange(len(owner)) + np.repeat(self._begin[places] - np.cumsum(rows) + rows, rows)

        def mean(values: Squares) -> Squares:
            return np.bincount(owner, values, len(places)) / np.maximum(rows, 1)

        finite = mean(np.isfinite(squares)) == 1
        squares = np.where(finite[owner], squares, 0.0)
        begins = finite & ~self._has_baseline[places]
        self._baseline[mine[begins[owner]]] = squares[begins[owner]]
        self._has_baseline[places[begins]] = True
        gains = self._baseline[mine] - squares
        average = mean(gains)
        error = np.sqrt(mean((gains - average[owner]) ** 2) / np.maximum(rows, 1))
        return np.where(finite, average - error, -np.inf), np.where(finite, mean(squares), np.inf)
