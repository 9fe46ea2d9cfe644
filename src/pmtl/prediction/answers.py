"""Which model answers for which row, and the answers of many clients at once."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pmtl.data import FederatedData, Scaling
from pmtl.data.checks import is_sparse
from pmtl.data.client_names import Coded, drop_zero_decimals
from pmtl.data.splits import group_rows
from pmtl.errors import PmtlError, PmtlWarning, listed
from pmtl.prediction.models import FEW_ROWS, Models, refuse_diverged, rows_for_scaling
from pmtl.prediction.source import Piece, Source
from pmtl.simulation import RowTensors
from pmtl.simulation.evaluation import Evaluator
from pmtl.views.progress import Bar

Ints = NDArray[np.int64]

#: The code of a row that gets no answer.
NO_MODEL = -1
#: Unknown clients that a message names.
_NAMED = 5


@dataclass(frozen=True)
class ModelRequest:
    """Which models the user asked for: by default, for each row, the model of its client."""

    client: str | None = None  #: the client whose model answers for all rows
    new: bool = False  #: whether the shared model answers for clients that are not in the run
    shared: bool = False  #: whether the shared model answers for all clients
    any_client: bool = False  #: whether `client` answers for rows of other clients, too
    skip: bool = False  #: whether rows that cannot be predicted are left without an answer

    def __post_init__(self) -> None:
        if self.client is not None and (self.new or self.shared):
            other = "--new" if self.new else "--shared"
            raise PmtlError(
                f"--client names whose model answers, and {other} asks for the shared model: give "
                "one of them."
            )
        if self.any_client and self.client is None:
            raise PmtlError("--any-client belongs to --client NAME: give both, or neither.")

    def check(self, models: Models) -> None:
        """Refuse a client that is not in the run, and a shared model that is not there."""
        if self.client is not None:
            models.position(self.client)
        if self.shared:
            models.refuse_shared()


@dataclass(frozen=True)
class ModelAssignment:
    """The model for each row of a source, as a code: the position of the row's client in the run;
    clients that are not in the run have the codes after these."""

    models: Models
    asked: ModelRequest
    rows: int  #: how many there are
    codes: Mapping[str, int] = field(default_factory=dict)  #: from names in the file to codes
    unknown: tuple[str, ...] = ()  #: names that are not in the run
    code_of_all: int | None = None  #: the code of all rows, without a client column
    scaling: Scaling | None = None  #: of new clients

    def of(self, piece: Piece) -> Ints:
        """The code of every row; `NO_MODEL` for rows that get no answer."""
        if self.code_of_all is not None or piece.clients is None:
            found = np.full(len(piece.usable), self.code_of_all, dtype=np.int64)
        else:
            codes = [self.codes.get(name, NO_MODEL) for name in piece.clients.names]
            found = np.array([*codes, NO_MODEL], dtype=np.int64)[piece.clients.codes]
        return np.where(piece.usable, found, NO_MODEL)

    def outputs(self, piece: Piece, codes: Ints) -> NDArray[np.float32]:
        """[rows, outputs] the outputs of the models; NaN for rows that get no answer."""
        there = codes != NO_MODEL
        found = np.full((len(codes), self.models.outputs), np.nan, dtype=np.float32)
        if there.any():
            x = piece.x if there.all() else piece.x[there]
            found[there] = self._compute(x, codes[there])
        return found

    def _compute(self, x: Any, codes: Ints) -> NDArray[np.float32]:
        models = self.models
        x = x if is_sparse(x) else self._scaled(x, codes)
        one, m = self.asked.shared and models.one_for_all, len(models.clients)
        # All new clients have the same model: they are one group.
        groups = np.zeros_like(codes) + m if one else np.minimum(codes, m)
        present, owner = np.unique(groups, return_inverse=True)
        rows = group_rows(owner.astype(np.int64), np.ones(x.shape[0], dtype=bool), len(present))
        who = np.arange(len(present), dtype=np.int64)
        names, y = tuple(map(str, who)), np.zeros(x.shape[0], dtype=np.int64)
        data = FederatedData(x, y, names, {"test": rows}, models.task, models.outputs)
        tensors = RowTensors(data, models.shared.device, models.shared.dtype)
        found = np.empty((x.shape[0], models.outputs), dtype=np.float32)
        found[rows.order] = Evaluator(tensors, models.model, "test").row_outputs(
            lambda clients: self._weights(present[clients]), who
        )
        return found

    def _weights(self, codes: Ints) -> Tensor:
        """[K, P] the weights; new clients have the shared ones. Refused if they diverged."""
        models, m = self.models, len(self.models.clients)
        known, weights = codes < m, models.shared[:1].repeat(len(codes), 1)
        if known.any():
            weigh = models.published if self.asked.shared else models.personal
            weights[torch.from_numpy(known).to(weights.device)] = weigh(codes[known])
        finite = weights.isfinite().all(dim=1).cpu().numpy()
        if not finite.all():
            code = int(codes[np.argmin(finite)])
            own = code < m and not self.asked.shared
            whose = f"The model of client {models.clients[code]!r}" if own else "The shared model"
            refuse_diverged(whose, False)
        return weights

    def _scaled(self, x: NDArray[Any], codes: Ints) -> NDArray[Any]:
        models, m = self.models, len(self.models.clients)
        if models.scaling is None:
            return x
        known = codes < m
        scaled = np.empty(x.shape, dtype=np.float32)
        scaled[known] = models.scaling.apply(codes[known], x[known])
        if self.scaling is not None:
            scaled[~known] = self.scaling.apply(codes[~known] - m, x[~known])
        return scaled


def assign_models(models: Models, source: Source, asked: ModelRequest, bar: Bar) -> ModelAssignment:
    """Find the model for each row of a source. Rows of clients that were not asked for are refused.
    The number of pieces to read becomes the total of `bar`."""
    counts, rows = _count(source, asked)
    if not rows:
        raise PmtlError(f"{source.where} has no rows to predict on.")
    bar.expect(-(-rows // source.size))
    names, m = _cleaned(counts), len(models.clients)
    made = ModelAssignment(models, asked, rows)
    if asked.client is not None:
        others = [name for name in names.values() if name != str(asked.client)]
        if others and not asked.any_client:
            raise PmtlError(
                f"{source.where} has rows of {_clients(others)}, not of {asked.client!r} (column "
                f"{source.client_column!r}): leave --client out, so that each client's own model "
                f"answers, or let the model of {asked.client!r} answer for all with --any-client."
            )
        return replace(made, code_of_all=models.position(asked.client))
    if source.client_column is None:
        if not (asked.new or asked.shared):
            raise PmtlError(
                f"{source.where} has no column that names the client of a row: name it "
                "(--client-column COLUMN), or say whose model answers: --client NAME, --shared, "
                "or --new for a client that is not in the run."
            )
        models.refuse_new()
        return _with_scaling(replace(made, code_of_all=m), source, {m: rows}, bar)
    places = {raw: models.find(name) for raw, name in names.items()}
    new = [raw for raw, place in places.items() if place is None]
    unknown = tuple(names[raw] for raw in new)
    codes = {raw: place for raw, place in places.items() if place is not None}
    if new and (asked.new or asked.shared):
        models.refuse_new()
        codes |= {raw: m + place for place, raw in enumerate(new)}
        made = replace(made, codes=codes, unknown=unknown)
        return _with_scaling(made, source, {codes[raw]: counts[raw] for raw in new}, bar)
    if unknown and not asked.skip:
        raise PmtlError(
            f"{source.where} has rows of {_clients(unknown)}, not in this run: correct the names, "
            "answer for them with the shared model (--new), or leave them without an answer "
            "(--skip)."
        )
    return replace(made, codes=codes, unknown=unknown)


def _count(source: Source, asked: ModelRequest) -> tuple[dict[str, int], int]:
    """How many rows every name in the client column has, and how many there are in all."""
    counts: Counter[str] = Counter()
    rows = 0
    for found in source.clients():
        if isinstance(found, int):
            rows += found
            continue
        each = np.bincount(found.codes, minlength=len(found.names)).tolist()
        counts.update(dict(zip(found.names, each, strict=True)))
        if "" in found.names and not asked.skip:
            row = rows + int(np.argmax(found.codes == found.names.index("")))
            raise PmtlError(
                f"Row {row} (counting from 0) of {source.where} has no client: fill it in, or "
                "leave such rows without an answer (--skip)."
            )
        rows += len(found.codes)
    counts.pop("", None)
    return counts, rows


def _cleaned(counts: Iterable[str]) -> dict[str, str]:
    """From names in the file to names of clients, as in training: 1.0 is 1 if all are like that."""
    raw = tuple(counts)
    clean = drop_zero_decimals(Coded(np.arange(len(raw)), raw)).names
    return dict(zip(raw, clean, strict=True))


def _clients(names: Sequence[str]) -> str:
    return f"the client{'s' if len(names) > 1 else ''} {listed(names, _NAMED)}"


def _with_scaling(
    made: ModelAssignment, source: Source, counts: Mapping[int, int], bar: Bar
) -> ModelAssignment:
    """The assignment with the scaling of new clients, computed from some of their rows."""
    models = made.models
    if models.scaling is None:
        return made
    bar.expect(-(-made.rows // source.size) * 2)
    chosen = {code: rows_for_scaling(count) for code, count in counts.items()}
    held = {code: [np.empty((0, *models.inputs.shape), np.float32)] for code in counts}
    seen = dict.fromkeys(counts, 0)
    for piece in source.pieces():
        codes = made.of(piece)
        order = np.argsort(codes, kind="stable")
        order = order[codes[order] >= len(models.clients)]
        present, starts = np.unique(codes[order], return_index=True)
        for code, mine in zip(present.tolist(), np.split(order, starts[1:]), strict=True):
            begin, seen[code] = seen[code], seen[code] + len(mine)
            ends = np.searchsorted(chosen[code], [begin, seen[code]])
            held[code].append(piece.x[mine[chosen[code][slice(*ends)] - begin]])
        bar.advance()
    parts = [models.scaling_of(np.concatenate(held[code])) for code in sorted(held)]
    few = sum(count < FEW_ROWS for count in counts.values())
    if few and not models.scaling.same_for_all:
        warnings.warn(
            PmtlWarning(
                f"{few} of {len(counts)} new clients have fewer than {FEW_ROWS} rows. They scale "
                "their features by these rows, which are too few for that: train with "
                "public bounds (--bounds) if that matters."
            ),
            stacklevel=2,
        )
    return replace(made, scaling=_stack(parts))


def _stack(parts: list[Scaling]) -> Scaling:
    """The scalings of one client each as one; limits are the same for all."""
    names = [item.name for item in fields(Scaling) if item.name != "limits"]
    names = [name for name in names if getattr(parts[0], name) is not None]
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return replace(parts[0], **joined)
