"""A summary of a federation for people and for JSON, with warnings."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmtl.data.checks import is_sparse, row_chunks
from pmtl.data.federated import SPLITS, FederatedData, Split
from pmtl.data.readers.text import TextRule
from pmtl.data.schema import Column
from pmtl.errors import how_many

FEW_CLIENTS = 100
LARGE_ROWS = 30.0  #: norm of a row above which default step sizes tend to diverge
#: A warning about too many classes needs more rows than this.
MANY_ROWS = 20
#: A larger ratio of the largest client's rows to the median gives a warning.
MAX_SIZE_RATIO = 50


def describe(data: FederatedData, steps: bool = True) -> dict[str, Any]:
    """A summary: sizes, storage, task, splits and `warnings` (sentences).

    Args:
        data: the federation.
        steps: whether to warn of large numbers, which matter for gradient steps.
    """
    counts = np.sum([data.rows(split).counts for split in SPLITS], axis=0)
    dense = "on disk" if isinstance(data.x, np.memmap) else "dense"
    summary: dict[str, Any] = {
        "source": data.source,
        "clients": data.m,
        "samples": int(counts.sum()),
        "samples_per_client": {
            "min": int(counts.min()),
            "median": float(np.median(counts)),
            "max": int(counts.max()),
        },
        "features": list(data.input_shape),
        "dtype": str(data.x.dtype),
        "storage": "sparse" if is_sparse(data.x) else dense,
        "task": data.task,
        ("classes" if data.task == "classification" else "outputs"): data.outputs,
        "splits": {split: len(data.rows(split).order) for split in SPLITS},
        "warnings": _warnings(data, counts, steps),
    }
    if data.schema is not None:
        summary["columns"] = [_column(column) for column in data.schema.columns]
    if data.text is not None:
        summary["text"] = _text(data.text, data.feature_names)
    if is_sparse(data.x):
        summary["density"] = data.x.nnz / (data.x.shape[0] * data.x.shape[1])
    return summary


def _column(column: Column) -> dict[str, Any]:
    """What a column of a table is, and what it becomes."""
    names, becomes = column.features, ""
    if column.role == "feature":
        becomes = names[0] if len(names) == 1 else f"{len(names)} features, {names[0]} …"
    elif column.role == "target":
        becomes = ", ".join(column.categories[:5]) if column.categories else ""
    handled = column.missing if column.role in ("feature", "target") else ""
    return {
        "column": column.name,
        "role": column.role,
        "kind": column.kind,
        "becomes": becomes,
        "empty cells": handled,
    }


def _text(rule: TextRule, names: tuple[str, ...] | None) -> str:
    columns = " and ".join(rule.columns)
    if names is None:
        return f"words of {columns}, hashed into {rule.hashed:,} columns"
    return f"{len(names):,} words of {columns}, beginning with {', '.join(names[:5])}"


def public_warnings(data: FederatedData) -> list[str]:
    """Warnings that depend only on public facts: what reading disclosed, and few clients.

    Args:
        data: the federation.
    """
    return [*data.disclosed, *warn_of_few_clients(data.m)]


def warn_of_few_clients(m: int) -> list[str]:
    """A sentence if there are few clients; else nothing."""
    if m >= FEW_CLIENTS:
        return []
    return [
        f"With only {how_many(m, 'client')}, hiding one of them needs much noise: expect weak "
        "accuracy or weak privacy."
    ]


def _warnings(data: FederatedData, counts: NDArray[Any], steps: bool) -> list[str]:
    warnings = [*public_warnings(data), *data.for_owner]
    if data.task == "classification":
        if single := _single_class(data):
            warnings.append(
                f"{_clients(single, data.m)} only one class in the training rows: "
                "a model cannot learn from these rows alone to tell classes apart."
            )
        seen = len(np.unique(data.y))
        if 2 * seen > len(data.y) > MANY_ROWS:
            warnings.append(
                f"There are {seen:,} classes in {len(data.y):,} rows: a model cannot learn classes "
                "with fewer than two rows on average. If this column names the rows, name another "
                "one with --target."
            )
        if seen < data.outputs:
            warnings.append(
                f"Only {seen} of the {data.outputs} classes have rows: if the targets are not "
                "classes numbered 0, 1, 2, …, number them so, or use task=regression."
            )
    if data.task == "regression" and set(np.unique(data.y)) == {0, 1}:
        warnings.append(
            "The target has only the values 0 and 1, but is read as a number: if these are "
            "classes, say task=classification (--data FILE:task=classification)."
        )
    uses: dict[Split, str] = {
        "test": "cannot be evaluated",
        "validation": "cannot take part in choosing settings",
    }
    for split, use in uses.items():
        if empty := int((data.rows(split).counts == 0).sum()):
            warnings.append(f"{_clients(empty, data.m)} no {split} rows and {use}.")
    if counts.max() > MAX_SIZE_RATIO * np.median(counts):
        warnings.append(
            f"Sizes are very unequal: the largest client has {counts.max()} rows and the median "
            f"{np.median(counts):g}. Every client has the same weight."
        )
    size = _row_norm(data)
    if steps and size > LARGE_ROWS:
        warnings.append(
            f"The features are large (a row has a norm of about {size:.3g}), and gradient steps "
            "may diverge: scale them to a size near 1, or let every client do it for itself with "
            "scale=client."
        )
    numbers = data.task == "regression"
    if steps and numbers and np.sqrt(np.mean(np.square(data.y, dtype=float))) > LARGE_ROWS:
        warnings.append(
            "The targets are large, and gradient steps may diverge: express them in a unit that "
            "makes them about 1."
        )
    pixels = not is_sparse(data.x) and data.x.dtype == np.uint8
    if pixels and max(data.x[rows].max() for rows in row_chunks(*data.x.shape[:2])) <= 1:
        warnings.append(
            "The features are bytes of 0 and 1, but bytes are read as pixels and divided by 255: "
            "save them as bool or float32."
        )
    return warnings


def _row_norm(data: FederatedData) -> float:
    """The root mean square norm of about 4096 training rows, as a model reads them."""
    order = data.rows("train").order
    chosen = order[:: max(1, len(order) // 4096)]
    if is_sparse(data.x):
        return float(np.sqrt(data.x[chosen].power(2).sum(axis=1).mean()))
    rows = data.gather(chosen)[0]
    return float(np.sqrt(np.square(rows.reshape(len(rows), -1), dtype=np.float64).sum(1).mean()))


def _single_class(data: FederatedData) -> int:
    """The number of clients with one class only."""
    train = data.rows("train")
    classes, starts = data.y[train.order], train.offsets[:-1]
    return int((np.minimum.reduceat(classes, starts) == np.maximum.reduceat(classes, starts)).sum())


def _clients(count: int, m: int) -> str:
    return f"{count} of {m} clients {'has' if count == 1 else 'have'}"
