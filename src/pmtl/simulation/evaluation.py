"""Metrics of models: over all rows, over clients, and for the clients with the worst models.

`accuracy` counts every row once, so that large clients weigh more. `accuracy_mean` counts every
client once. `accuracy_worst_decile` is the mean over the tenth of the clients (rounded up) with the
lowest values, or the highest for errors (`rmse`, `mae`); it shows whether models fit only typical
clients. Clients without rows in a split are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

from pmtl.client.batches import MIN_BATCH_ROWS, power_of_two
from pmtl.data import Rows, Split
from pmtl.engines.base import Ints, Mask, by_size
from pmtl.engines.choose import slot_count
from pmtl.engines.row_tensors import RowTensors
from pmtl.engines.slots import assign_slots, axis_is_safe
from pmtl.engines.sparse import client_widths, is_linear, sparse_outputs
from pmtl.models import FlatModel, metric_names, row_losses, row_metrics, row_squares
from pmtl.simulation.custom_metrics import (
    Metric,
    client_value,
    less_is_better,
    mean_and_worst,
    summary,
)
from pmtl.simulation.measures import LESS_IS_BETTER, UNDEFINED, PredictedRows, measures_of
from pmtl.simulation.team import ALONE, Team

#: From clients to their weights [K, P].
Weights = Callable[[Ints], Tensor]
Metrics = dict[str, float]
Floats = NDArray[np.float64]

#: Rows of one client that are evaluated at once, and floats of all clients together.
MOST_ROWS, MOST_FLOATS = 256, 2**25

#: Metrics that are square roots of an average over rows.
ROOTS = ("rmse",)


@dataclass(frozen=True)
class Group:
    """Clients that are evaluated together. Without `rows_at_once` and `width`, their arrays are as
    large as the largest of them needs."""

    slots: Ints  #: [K] positions of clients; an empty slot repeats one of them
    filled: Mask  #: which slots are not empty
    rows_at_once: int | None = None  #: rows of a client that are evaluated at once
    width: int | None = None  #: columns of sparse rows


def evaluate(
    tensors: RowTensors,
    model: FlatModel,
    views: Mapping[str, Weights],
    split: Split,
    team: Team = ALONE,
    custom: Mapping[str, Metric | None] | None = None,
) -> dict[str, Metrics] | None:
    """Metrics of every view (personal, shared) on a split; None if the split has no rows.

    In a team every process evaluates its own clients. `custom` are further measures and the user's
    own metrics (`find_metrics`). A measure over all rows needs all rows in one process.
    """
    evaluator, data = Evaluator(tensors, model, split), tensors.data
    counts = evaluator.rows.counts
    if counts.sum() == 0:
        return None
    mine = team.part(np.arange(data.m, dtype=np.int64))
    results = {}
    for view, weights in views.items():
        values = evaluator.client_metrics(weights, mine)
        for name in metric_names(data.task) if team.size > 1 else ():
            team.sum(torch.from_numpy(values.setdefault(name, np.zeros(data.m))))
        results[view] = summarise(values, counts)
        more = evaluator.extra_metrics(custom or {}, weights, mine, results[view])
        for name, (own, all_rows, worse) in more.items():
            found = team.sum(torch.from_numpy(own)).numpy()[counts > 0]
            if all_rows is not None and team.size == 1:
                results[view][name] = all_rows
            results[view] |= summary(name, found, worse)
            if name in UNDEFINED:
                results[view][f"{name}_clients"] = int((~np.isnan(found)).sum())
    return results


@dataclass(frozen=True)
class Evaluator:
    """Evaluates the clients' models on their rows of one split. In all methods `clients` are
    numbers of clients, and `weights` is a function from clients to their weights."""

    tensors: RowTensors
    model: FlatModel
    split: Split

    @property
    def rows(self) -> Rows:
        return self.tensors.data.rows(self.split)

    def extra_metrics(
        self,
        custom: Mapping[str, Metric | None],
        weights: Weights,
        clients: Ints,
        known: Container[str] = (),
    ) -> dict[str, tuple[Floats, float | None, bool]]:
        """Measures and the user's own metrics that are not `known`: [m] for these clients (NaN
        where there is no value, 0 for all other clients), over all of their rows, and whether less
        is better."""
        task, m = self.tensors.data.task, self.tensors.data.m
        measures = measures_of(task, (name for name, metric in custom.items() if metric is None))
        measures = {name: measure for name, measure in measures.items() if name not in known}
        found: dict[str, tuple[Floats, float | None, bool]] = {}
        with_rows = np.sort(clients[self.rows.counts[clients] > 0])
        if measures and len(with_rows):
            each = self._predicted_rows(weights, with_rows)
            whole = replace(each, owner=np.zeros_like(each.owner), clients=1)
        for name, measure in measures.items():
            values, all_rows = np.zeros(m), np.nan
            values[clients] = np.nan
            if len(with_rows):
                values[with_rows], all_rows = measure(each), float(measure(whole)[0])
            found[name] = (values, all_rows, name in LESS_IS_BETTER)
        for name, metric in custom.items():
            if metric is not None:
                values = self._custom_values(name, metric, weights, clients)
                found[name] = (values, None, less_is_better(name, metric))
        return found

    def _predicted_rows(self, weights: Weights, clients: Ints) -> PredictedRows:
        """The targets and outputs for all rows of these clients, which all have rows."""
        rows, data = self.rows, self.tensors.data
        index = rows.order[np.isin(np.repeat(np.arange(data.m), rows.counts), clients)]
        outputs = self.row_outputs(weights, clients)
        owner = np.repeat(np.arange(len(clients)), rows.counts[clients])
        return PredictedRows(data.task, data.y[index], outputs, owner, len(clients))

    def client_table(
        self, views: Mapping[str, Weights], custom: Mapping[str, Metric | None]
    ) -> dict[str, NDArray[Any]]:
        """Measures of every client: the columns client, rows, model (a view) and the measures."""
        data, counts = self.tensors.data, self.rows.counts
        all_clients = np.arange(data.m, dtype=np.int64)
        parts = []
        for view, weights in views.items():
            found = self.extra_metrics(custom, weights, all_clients)
            columns = {"client": np.array(data.clients), "rows": counts, "model": [view] * data.m}
            parts.append({**columns, **{name: values for name, (values, _, _) in found.items()}})
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _custom_values(self, name: str, metric: Metric, weights: Weights, clients: Ints) -> Floats:
        """[m] the user's own metric for these clients, NaN where a client has no rows or no value;
        0 for all other clients."""
        rows, data = self.rows, self.tensors.data
        values = np.zeros(data.m)
        values[clients] = np.nan
        self.model.module.eval()
        for client in clients[rows.counts[clients] > 0].tolist():
            with torch.no_grad():
                inputs, targets = self.tensors.rows(rows.of(client))
                outputs = self.model.apply(weights(np.array([client]))[0], inputs)
            values[client] = client_value(name, metric, data.task, targets, outputs)
        return values

    def client_metrics(
        self, weights: Weights, clients: Ints, isolate: bool = False
    ) -> dict[str, Floats]:
        """[m] for every metric, the average over each client's rows (before roots); 0 for clients
        that are not among `clients`. `isolate` is for production: no result depends on other
        clients (`engines/slots.py`)."""
        sums: dict[str, Floats] = {}
        task = self.tensors.data.task
        for group in self._groups(clients, isolate):
            mine = clients[group.slots[group.filled]]
            at = weights(mine)
            if not group.filled.all():
                at = at[torch.from_numpy(np.cumsum(group.filled).clip(1) - 1).to(at.device)]
            for _, real, outputs, targets in self._outputs(at, clients[group.slots], group):
                found = row_metrics(task, outputs, targets)
                for name, each in {"loss": row_losses(task, outputs, targets), **found}.items():
                    values = each.double().view(real.shape).cpu().numpy()
                    totals = sums.setdefault(name, np.zeros(self.tensors.data.m))
                    totals[mine] += np.where(real, values, 0).sum(axis=1)[group.filled]
        return {name: values / np.maximum(self.rows.counts, 1) for name, values in sums.items()}

    def row_squares(self, weights: Tensor, clients: Ints, isolate: bool = False) -> Floats:
        """The squared distance of each prediction from its target (`models/losses.py`), for all
        rows of the clients, which have the `weights` [K, P], client after client."""
        found = np.empty(int(self.rows.counts[clients].sum()))

        def of(slots: Ints) -> Tensor:
            return weights[torch.from_numpy(slots).to(weights.device)]

        for at, real, outputs, targets in self._each_row(of, clients, isolate):
            squares = row_squares(self.tensors.data.task, outputs, targets)
            found[at] = squares.double().view(real.shape).cpu().numpy()[real]
        return found

    def row_outputs(self, weights: Weights, clients: Ints) -> NDArray[np.float32]:
        """[rows, outputs] the models' outputs for all of the clients' rows, client after client."""
        shape = (int(self.rows.counts[clients].sum()), self.tensors.data.outputs)
        found = np.empty(shape, dtype=np.float32)
        for at, real, outputs, _ in self._each_row(lambda slots: weights(clients[slots]), clients):
            found[at] = outputs.flatten(1).double().cpu().numpy()[real.ravel()]
        return found

    def _each_row(
        self, weights: Callable[[Ints], Tensor], clients: Ints, isolate: bool = False
    ) -> Iterator[tuple[Ints, Mask, Tensor, Tensor]]:
        """A few rows of the clients at a time: the positions of the real ones among all rows,
        client after client, and what `_outputs` gives. `weights` is a function from positions to
        weights."""
        counts = self.rows.counts[clients]
        begin = np.cumsum(counts) - counts
        for group in self._groups(clients, isolate):
            slots = group.slots
            found = self._outputs(weights(slots), clients[slots], group)
            for place, real, outputs, targets in found:
                yield (begin[slots, None] + place)[real], real, outputs, targets

    def _groups(self, clients: Ints, isolate: bool) -> Iterator[Group]:
        """The clients that have rows, in groups that are evaluated together."""
        if isolate:
            yield from self._in_slots(clients)
        else:
            yield from self._by_size(self.rows.counts[clients])

    def _in_slots(self, clients: Ints) -> Iterator[Group]:
        """Clients in their own slots, in arrays whose sizes depend on their own rows only."""
        data, model, device, rows = self.tensors.data, self.model, self.tensors.device, self.rows
        with_rows = np.flatnonzero(rows.counts[clients])
        counts = rows.counts[clients[with_rows]]
        columns = np.zeros(len(counts), dtype=np.int64)
        if sparse := self.tensors.is_sparse and is_linear(model):
            columns = client_widths(data.x, rows)[clients[with_rows]]
        rows_at_once = np.minimum(power_of_two(counts, MIN_BATCH_ROWS), MOST_ROWS)
        shapes = np.stack([rows_at_once, power_of_two(-(-counts // rows_at_once)), columns], axis=1)
        safe = axis_is_safe(model, device)

        def width(shape: tuple[int, ...]) -> int:
            floats = model.size + shape[0] * int(np.prod(data.input_shape))
            return slot_count(data.m, data.m, device, floats) if safe else 1

        for shape, who, filled in assign_slots(clients[with_rows], shapes, width):
            yield Group(with_rows[who], filled, shape[0], shape[2] if sparse else None)

    def _by_size(self, counts: Ints) -> Iterator[Group]:
        """As many clients as memory allows, with similar numbers of rows: little padding."""
        with_rows, row_floats = np.flatnonzero(counts), int(np.prod(self.tensors.data.input_shape))

        def width(rows: int) -> int:
            return MOST_FLOATS // (self.model.size + min(MOST_ROWS, rows) * row_floats)

        for some in by_size(counts[with_rows], width):
            yield Group(np.sort(with_rows[some]), np.ones(len(some), dtype=bool))

    def _outputs(
        self, weights: Tensor, clients: Ints, group: Group
    ) -> Iterator[tuple[Ints, Mask, Tensor, Tensor]]:
        """A few rows of every client at a time: which of its rows [n], which of these are real
        [K, n], and the outputs and targets [K · n, …]. Measures are computed before padding is
        left out: the last bits of a sum depend on the sizes of arrays."""
        tensors, model, rows = self.tensors, self.model, self.rows
        model.module.eval()
        counts, starts = np.where(group.filled, rows.counts[clients], 0), rows.offsets[clients]
        most = int(counts.max(initial=0))
        for first in range(0, most, group.rows_at_once or MOST_ROWS):
            place = first + np.arange(group.rows_at_once or min(MOST_ROWS, most - first))
            real = place < counts[:, None]
            index = rows.order[starts[:, None] + np.where(real, place, 0)]
            with torch.no_grad():
                if tensors.is_sparse and is_linear(model):
                    outputs, targets = sparse_outputs(
                        tensors=tensors,
                        model=model,
                        weights=weights,
                        index=index,
                        real=real,
                        width=group.width,
                    )
                else:
                    inputs, targets = tensors.rows(index)
                    outputs = vmap(model.apply)(weights, inputs)
            yield place, real, outputs.flatten(0, 1), targets.flatten(0, 1)


def summarise(per_client: dict[str, Floats], counts: Ints) -> Metrics:
    """Every metric over all rows, over clients and over the worst ones; the loss over rows only."""
    summary: Metrics = {}
    for name, values in per_client.items():
        root = 0.5 if name in ROOTS else 1
        summary[name] = float((values * counts).sum() / counts.sum()) ** root
        if name != "loss":
            summary |= mean_and_worst(name, values[counts > 0] ** root, name in LESS_IS_BETTER)
    return summary
