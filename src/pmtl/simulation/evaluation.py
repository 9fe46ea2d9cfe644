"""How well models answer: over all rows, over clients, and for the clients served worst.

`accuracy` counts every row once, so that large clients weigh more; `accuracy_mean` counts every
client once; `accuracy_worst_decile` is the mean over the tenth of the clients (rounded up) with the
lowest values, where a federation that serves only the typical client shows. For errors (`rmse`,
`mae`) the worst are the highest. Clients without rows in a split are left out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

from pmtl.client.batches import FEW_ROWS, power_of_two
from pmtl.data import FederatedData, Rows, Split
from pmtl.engines.choose import fixed_width
from pmtl.engines.feed import Feed
from pmtl.engines.places import axis_is_safe, seated
from pmtl.engines.sparse import is_linear, own_widths, sparse_outputs
from pmtl.models import FlatModel, Task, metric_names, row_counts, row_losses, row_squares
from pmtl.simulation.custom_metrics import Metric, client_value, summary
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


@dataclass(frozen=True)
class Group:
    """Positions of clients that are looked at together, `[K]`; an empty place repeats one of them.

    Without `tall` and `width`, their arrays are as large as the largest of them needs.
    """

    places: NDArray[np.int64]
    there: NDArray[np.bool_]  #: which places are not empty
    tall: int | None = None  #: rows of a client that are looked at in one go
    width: int | None = None  #: columns of sparse rows


def evaluate(
    data: FederatedData,
    feed: Feed,
    model: FlatModel,
    views: Mapping[str, Weights],
    split: Split,
    team: Team = ALONE,
    custom: Mapping[str, Metric] | None = None,
) -> dict[str, Metrics] | None:
    """Metrics of every view (personal, shared) on a split; None where the split has no rows.

    In a team everybody looks at its own clients. `custom` are metrics of the user's own.
    """
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
        for name, metric in (custom or {}).items():
            own = custom_values(name, metric, data, feed, model, weights, split, mine)
            results[view] |= summary(name, metric, team.sum(torch.from_numpy(own)).numpy())
    return results


def custom_values(
    name: str,
    metric: Metric,
    data: FederatedData,
    feed: Feed,
    model: FlatModel,
    weights: Weights,
    split: Split,
    only: NDArray[np.int64] | None = None,
) -> NDArray[np.float64]:
    """[m] a metric of the user's own for each client, NaN where it has no rows or no value; of
    clients that are not in `only`, 0."""
    rows = data.rows(split)
    clients = np.arange(data.m) if only is None else only
    values = np.zeros(data.m)
    values[clients] = np.nan
    model.module.eval()
    for client in clients[rows.counts[clients] > 0].tolist():
        at = weights(np.array([client]))[0]
        with torch.no_grad():
            inputs, targets = feed.rows(rows.of(client))
            outputs = model.apply(at, inputs)
        values[client] = client_value(name, metric, data.task, targets, outputs)
    return values


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
    in_place: bool = False,
) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.int64]]:
    """Per client the average of every metric over its rows (before roots), and its row count;
    `only` some clients are looked at, if it is given, and the others' numbers are 0. `in_place` is
    for production: nobody's numbers depend on the other clients (`places.py`)."""
    rows = data.rows(split)
    counts = rows.counts
    everybody = np.arange(len(counts)) if only is None else np.asarray(only)
    sums: dict[str, NDArray[np.float64]] = {}
    for group in _groups(everybody, data, feed, model, split, in_place):
        clients, mine = everybody[group.places], everybody[group.places[group.there]]
        at = weights(mine)
        if not group.there.all():
            at = at[torch.from_numpy(np.cumsum(group.there).clip(1) - 1).to(at.device)]
        for _, real, table in _tables(data.task, feed, model, at, rows, clients, group):
            for name, values in table.items():
                totals = sums.setdefault(name, np.zeros(len(counts)))
                totals[mine] += np.where(real, values, 0).sum(axis=1)[group.there]
    return {name: values / np.maximum(counts, 1) for name, values in sums.items()}, counts


def _groups(
    clients: NDArray[np.int64],
    data: FederatedData,
    feed: Feed,
    model: FlatModel,
    split: Split,
    in_place: bool,
) -> Iterator[Group]:
    """Who of the clients is looked at together, of those who have rows."""
    counts = data.rows(split).counts[clients]
    if in_place:
        yield from _in_place(clients, data, feed, model, split)
    else:
        for some in _alike(counts, data, model):
            yield Group(np.sort(some), np.ones(len(some), dtype=bool))


def _in_place(
    clients: NDArray[np.int64], data: FederatedData, feed: Feed, model: FlatModel, split: Split
) -> Iterator[Group]:
    """Clients at places of their own, in arrays whose sizes follow from their own rows."""
    rows = data.rows(split)
    with_rows = np.flatnonzero(rows.counts[clients])
    counts = rows.counts[clients[with_rows]]
    columns = np.zeros(len(counts), dtype=np.int64)
    if sparse := feed.is_sparse and is_linear(model):
        columns = own_widths(data.x, rows)[clients[with_rows]]
    tall = np.minimum(power_of_two(counts, FEW_ROWS), _ROWS)
    shapes = np.stack([tall, power_of_two(-(-counts // tall)), columns], axis=1)
    row_floats = int(np.prod(data.input_shape))

    def width(shape: tuple[int, ...]) -> int:
        floats = model.size + shape[0] * row_floats
        safe = axis_is_safe(model, feed.device)
        return fixed_width(data.m, data.m, feed.device, floats) if safe else 1

    for shape, seats in seated(clients[with_rows], shapes, width):
        there = seats >= 0
        places = with_rows[np.where(there, seats, seats[there][0])]
        yield Group(places, there, shape[0], shape[2] if sparse else None)


def _alike(
    counts: NDArray[np.int64], data: FederatedData, model: FlatModel
) -> Iterator[NDArray[np.int64]]:
    """Clients of like size, so that little is computed on padding, and no more than memory
    allows."""
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
    in_place: bool = False,
) -> NDArray[np.float64]:
    """How far the answer to each row of the clients is from the truth (`row_squares`), client after
    client."""
    rows = data.rows(split)
    counts = rows.counts[clients]
    begin = np.cumsum(counts) - counts
    found = np.empty(int(counts.sum()))
    for group in _groups(clients, data, feed, model, split, in_place):
        mine = weights[torch.from_numpy(group.places).to(weights.device)]
        who = clients[group.places]
        tables = _tables(data.task, feed, model, mine, rows, who, group, measure=_squares)
        for place, real, table in tables:
            at = begin[group.places, None] + np.arange(place.start, place.stop)
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
    group: Group,
    measure: Measure = row_metrics,
) -> Iterator[tuple[slice, NDArray[np.bool_], dict[str, NDArray[np.float64]]]]:
    """A few rows of every client at a time: which of its rows, which of these are real, and what is
    measured on them `[K, rows]`."""
    model.module.eval()
    counts, starts = np.where(group.there, rows.counts[clients], 0), rows.offsets[clients]
    most = int(counts.max(initial=0))
    for first in range(0, most, group.tall or _ROWS):
        place = first + np.arange(group.tall or min(_ROWS, most - first))
        real = place < counts[:, None]
        index = rows.order[starts[:, None] + np.where(real, place, 0)]
        with torch.no_grad():
            if feed.is_sparse and is_linear(model):
                outputs, targets = sparse_outputs(feed, model, weights, index, real, group.width)
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
