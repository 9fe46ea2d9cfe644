"""How well models answer: over all rows, over clients, and for the clients served worst.

`accuracy` counts every row once, so that large clients weigh more; `accuracy_mean` counts every
client once; `accuracy_worst_decile` is the mean over the tenth of the clients (rounded up) with the
lowest values, where a federation that serves only the typical client shows. For errors (`rmse`,
`mae`) the worst are the highest. Clients without rows in a split are left out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

from pmtl.data import FederatedData, Rows, Split
from pmtl.models import FlatModel, Task, metric_names, row_counts, row_losses, row_squares
from pmtl.simulation.feed import Feed
from pmtl.simulation.sparse import is_linear, sparse_outputs
from pmtl.simulation.team import ALONE, Team

#: From clients to the weights [K, P] to be judged.
Weights = Callable[[NDArray[np.int64]], Tensor]
Metrics = dict[str, float]
#: From outputs and targets to a number for each row, by name.
Measure = Callable[[Task, Tensor, Tensor], dict[str, Tensor]]

#: Rows of one client that are evaluated at once, and floats of all clients together.
_ROWS, _FLOATS = 256, 2**25

#: Metrics of which less is better, and those that are square roots of an average over rows.
ERRORS = ("loss", "rmse", "mae")
ROOTS = ("rmse",)


def evaluate(
    data: FederatedData,
    feed: Feed,
    model: FlatModel,
    views: Mapping[str, Weights],
    split: Split,
    team: Team = ALONE,
) -> dict[str, Metrics] | None:
    """Metrics of every view (personal, shared) on a split; None where the split has no rows. In a
    team everybody looks at its own clients."""
    counts = data.rows(split).counts
    if counts.sum() == 0:
        return None
    mine = None if team.size == 1 else team.part(np.arange(data.m, dtype=np.int64))
    results = {}
    for view, weights in views.items():
        values, _ = client_metrics(data, feed, model, weights, split, mine)
        for name in metric_names(data.task) if team.size > 1 else ():
            team.sum(torch.from_numpy(values.setdefault(name, np.zeros(data.m))))
        results[view] = summarise(values, counts)
    return results


def row_metrics(task: Task, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """The task's metrics, and its loss."""
    return {"loss": row_losses(task, outputs, targets), **row_counts(task, outputs, targets)}


def client_metrics(
    data: FederatedData,
    feed: Feed,
    model: FlatModel,
    weights: Weights,
    split: Split,
    only: NDArray[np.int64] | None = None,
) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.int64]]:
    """Per client the average of every metric over its rows (before roots), and its row count;
    `only` some clients are looked at, if it is given, and the others' numbers are 0."""
    rows = data.rows(split)
    counts = rows.counts
    everybody = np.arange(len(counts)) if only is None else np.asarray(only)
    sums: dict[str, NDArray[np.float64]] = {}
    for some in _alike(counts[everybody], data, model):
        clients = np.sort(everybody[some])
        for _, real, table in _tables(data.task, feed, model, weights(clients), rows, clients):
            for name, values in table.items():
                totals = sums.setdefault(name, np.zeros(len(counts)))
                totals[clients] += np.where(real, values, 0).sum(axis=1)
    return {name: values / np.maximum(counts, 1) for name, values in sums.items()}, counts


def _alike(
    counts: NDArray[np.int64], data: FederatedData, model: FlatModel
) -> Iterator[NDArray[np.int64]]:
    """Who is looked at together, of those who have rows: clients of like size, so that little is
    computed on padding, and no more than memory allows."""
    order = np.argsort(counts, kind="stable")
    order = order[counts[order] > 0]
    row_floats = int(np.prod(data.input_shape))
    first = 0
    while first < len(order):
        longest = 2 * int(counts[order[first]])
        width = max(1, _FLOATS // (model.size + min(_ROWS, longest) * row_floats))
        alike = int(np.searchsorted(counts[order], longest, side="right")) - first
        yield order[first : first + min(width, alike)]
        first += min(width, alike)


def row_squares_of(
    data: FederatedData,
    feed: Feed,
    model: FlatModel,
    weights: Tensor,
    split: Split,
    clients: NDArray[np.int64],
) -> NDArray[np.float64]:
    """How far the answer to each row of the clients is from the truth (`row_squares`), client after
    client."""
    rows = data.rows(split)
    counts = rows.counts[clients]
    begin = np.cumsum(counts) - counts
    found = np.empty(int(counts.sum()))
    for some in _alike(counts, data, model):
        some = np.sort(some)
        mine = weights[torch.from_numpy(some).to(weights.device)]
        tables = _tables(data.task, feed, model, mine, rows, clients[some], measure=_squares)
        for place, real, table in tables:
            at = begin[some, None] + np.arange(place.start, place.stop)
            found[at[real]] = table["squares"][real]
    return found


def _squares(task: Task, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    return {"squares": row_squares(task, outputs, targets)}


def _tables(
    task: Task,
    feed: Feed,
    model: FlatModel,
    weights: Tensor,
    rows: Rows,
    clients: NDArray[np.int64],
    measure: Measure = row_metrics,
) -> Iterator[tuple[slice, NDArray[np.bool_], dict[str, NDArray[np.float64]]]]:
    """A few rows of every client at a time: which of its rows, which of these are real, and what is
    measured on them `[K, rows]`."""
    model.module.eval()
    counts, starts = rows.counts[clients], rows.offsets[clients]
    for first in range(0, int(counts.max(initial=0)), _ROWS):
        place = first + np.arange(min(_ROWS, int(counts.max()) - first))
        real = place < counts[:, None]
        index = rows.order[starts[:, None] + np.where(real, place, 0)]
        with torch.no_grad():
            if feed.is_sparse and is_linear(model):
                outputs, targets = sparse_outputs(feed, model, weights, index, real)
            else:
                inputs, targets = feed.rows(index)
                outputs = vmap(model.apply)(weights, inputs)
            numbers = measure(task, outputs.flatten(0, 1), targets.flatten(0, 1))
        table = {name: n.double().view(real.shape).cpu().numpy() for name, n in numbers.items()}
        yield slice(first, first + len(place)), real, table


def summarise(per_client: dict[str, NDArray[np.float64]], counts: NDArray[np.int64]) -> Metrics:
    """The three views of every metric; the loss has only the first."""
    there = counts > 0
    worst = -(-int(there.sum()) // 10)
    summary: Metrics = {}
    for name, values in per_client.items():
        over_rows = float((values * counts).sum() / counts.sum())
        summary[name] = over_rows**0.5 if name in ROOTS else over_rows
        if name == "loss":
            continue
        clients = np.sort(values[there] ** 0.5 if name in ROOTS else values[there])
        summary[f"{name}_mean"] = float(clients.mean())
        tail = clients[-worst:] if name in ERRORS else clients[:worst]
        summary[f"{name}_worst_decile"] = float(tail.mean())
    return summary
