"""Checks targets, and infers the task from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pmtl.data.checks import Mask, all_in_row, as_array, as_float32, is_sparse
from pmtl.data.client_names import Coded, distinct, encode
from pmtl.errors import PmtlError

Task = Literal["classification", "multilabel", "regression"]
TASKS: tuple[Task, ...] = ("classification", "multilabel", "regression")

MOST_OUTPUTS = 10**6


def check_targets(
    y: Any,
    task: Task | None,
    outputs: int | None,
    labels: Sequence[str] | None,
    usable: Mask | None = None,
) -> tuple[NDArray[Any], Task, int, tuple[str, ...] | None]:
    """The checked targets, the task, its number of outputs and the names of classes or labels.

    A missing target or an invalid class is refused; with `usable`, its row is marked as unusable
    and gets the target 0.
    """
    if task is not None and task not in TASKS:
        raise PmtlError(f"There is no task {task!r}: use {', '.join(TASKS)}.")
    if outputs is not None and not 1 <= outputs <= MOST_OUTPUTS:
        raise PmtlError(
            f"outputs={outputs} was given: it is at least 1, and {MOST_OUTPUTS:,} at most."
        )
    y = y.toarray() if is_sparse(y) else y if isinstance(y, Coded) else as_array(y, "targets")
    if isinstance(y, Coded) or y.dtype.kind in "OSUT":
        if task not in (None, "classification"):
            raise PmtlError(f"The targets are text, which the task {task} cannot use.")
        if usable is not None:
            y = _named(distinct(y, "target"), usable)
        y, found = encode(y, "target")
        labels, task = found if labels is None else labels, "classification"
    if y.dtype.kind not in "fiub" or y.ndim not in (1, 2) or 0 in y.shape:
        raise PmtlError(
            f"The targets have type {y.dtype} and shape {y.shape}: numbers (or text) in "
            "[rows] or [rows, outputs] are needed."
        )
    if y.dtype.kind == "f":
        finite = all_in_row(np.isfinite(as_float32(y)))
        if usable is not None:
            y = _without(y, ~finite, usable)
        elif not finite.all():
            row = int(np.argmin(finite))
            raise PmtlError(f"The target of row {row} (counting from 0) is missing or not finite.")

    specified = task is not None or outputs is not None or labels is not None
    if task is None and y.ndim == 2 and _binary(y).all():
        task = "multilabel"
    task = task or ("regression" if y.dtype.kind == "f" else "classification")
    if usable is not None and task != "regression":
        y = _without(y, _invalid_classes(y, task, outputs, labels), usable)
    if task == "multilabel":
        return _multilabel(y, outputs), task, y.shape[1], _names(labels, y.shape[1])
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if task == "classification":
        kept, outputs, names = _classes(y, outputs, labels)
        inferred = not specified and usable is None
        # Integers that use few of the values up to their maximum are prices or years.
        if inferred and outputs > 100 and outputs > 10 * len(np.unique(kept)) + 100:
            raise PmtlError(
                f"The targets are integers up to {outputs - 1}, which would make {outputs} "
                f"classes: give task=regression if they are amounts, or outputs={outputs} if they "
                "really are classes."
            )
        return kept, task, outputs, names
    width = 1 if y.ndim == 1 else y.shape[1]
    if outputs not in (None, width):
        raise PmtlError(f"outputs={outputs} was given, but every row has {width} target(s).")
    return as_float32(y), task, width, None


def _named(y: Coded, usable: Mask) -> Coded:
    """Names of classes. Rows without a name are marked as unusable. Unusable rows get the name of
    a usable one, so that they add no class."""
    if "" in y.names:
        usable &= y.codes != y.names.index("")
    code = int(y.codes[usable][0]) if usable.any() else 0
    return Coded(np.where(usable, y.codes, code), y.names)


def _without(y: NDArray[Any], wrong: Mask, usable: Mask) -> NDArray[Any]:
    """The targets with 0 in the `wrong` rows, which are marked as unusable."""
    usable &= ~wrong
    y = y.copy()
    y[wrong] = 0
    return y


def _invalid_classes(
    y: NDArray[Any], task: Task, outputs: int | None, labels: Sequence[str] | None
) -> Mask:
    """The rows whose target is not a class, or whose labels are not 0 and 1."""
    if task == "multilabel":
        return ~all_in_row(_binary(y))
    most = outputs or len(labels or ()) or MOST_OUTPUTS
    flat = y if y.ndim == 1 else y[:, 0]
    return np.asarray((flat < 0) | (flat >= most) | (flat != np.floor(flat)))


def _binary(y: NDArray[Any]) -> Mask:
    return np.asarray((y == 0) | (y == 1))


def _multilabel(y: NDArray[Any], outputs: int | None) -> NDArray[Any]:
    if y.ndim != 2 or not _binary(y).all():
        raise PmtlError(
            "The task multilabel needs targets of 0 and 1 with one column per label; "
            f"these have shape {y.shape}{'' if y.ndim != 2 else ' and other values'}."
        )
    if outputs not in (None, y.shape[1]):
        raise PmtlError(f"outputs={outputs} was given, but the targets have {y.shape[1]} labels.")
    return y if y.dtype == np.uint8 else y.astype(np.uint8)


def _classes(
    y: NDArray[Any], outputs: int | None, labels: Sequence[str] | None
) -> tuple[NDArray[np.int64], int, tuple[str, ...] | None]:
    if y.ndim != 1:
        raise PmtlError(
            f"The targets have shape {y.shape}, but classification needs one class per row; "
            "targets of several columns must be 0 and 1 (multilabel) or task=regression."
        )
    with np.errstate(invalid="ignore"):
        kept = y.astype(np.int64)
    fraction = ", not an integer: number the classes 0, 1, 2, … or use task=regression."
    _refuse_class(y, kept != y, fraction)
    _refuse_class(kept, kept < 0, ", which is negative: number the classes 0, 1, 2, …")
    if outputs is None:
        outputs = len(labels) if labels else max(2, int(kept.max()) + 1)
    if outputs > MOST_OUTPUTS:
        most = f": no more than {MOST_OUTPUTS:,} classes are possible."
        _refuse_class(kept, kept == kept.max(), most)
    names = _names(labels, outputs)
    few = f", but there are only {outputs} classes (0 to {outputs - 1}): correct outputs or "
    _refuse_class(kept, kept >= outputs, f"{few}the targets.")
    return kept, outputs, names


def _refuse_class(y: NDArray[Any], wrong: Mask, why: str) -> None:
    if wrong.any():
        row = int(np.argmax(wrong))
        raise PmtlError(f"The class of row {row} (counting from 0) is {y[row]}{why}")


def _names(labels: Sequence[str] | None, outputs: int) -> tuple[str, ...] | None:
    """The labels as text; outputs that have no label (and no rows) get a number as their name."""
    if labels is None:
        return None
    if len(labels) > outputs:
        raise PmtlError(
            f"There are {len(labels)} label names for {outputs} outputs: every name needs one, so "
            "raise outputs or leave it out."
        )
    names = tuple(str(label) for label in labels)
    more = (f"class {number}" for number in range(len(names), outputs))
    return names + tuple(f"{name} (without rows)" if name in names else name for name in more)
