"""Public bounds of columns, which the user knows without looking at the clients' rows.

A file of bounds is a schema of numbers (`data/schema/`), with a table for each column:

    [columns.age]
    low = 0
    high = 110

In Python, bounds are a mapping of names (or positions) to (low, high), or a list in the order of
the columns. The target is a column like any other; it is also called "target".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmtl.data.checks import as_array
from pmtl.data.client_names import Coded
from pmtl.data.targets import Task
from pmtl.errors import PublicError, did_you_mean, listed

Range = tuple[float, float]
#: Bounds as users give them: a file, a mapping of columns, or a list in the order of the columns.
GivenBounds = str | Path | Mapping[Any, Sequence[float]] | Sequence[Sequence[float] | None]

TARGET = "target"


@dataclass(frozen=True)
class Bounds:
    """The bounds of a federation's columns."""

    features: tuple[Range | None, ...] = ()  #: of each feature, in their order; empty without any
    target: Range | None = None  #: of a numeric target

    @property
    def sentence(self) -> str:
        """What the privacy statement says about them."""
        known = sum(pair is not None for pair in self.features)
        parts = [f"{known} of {len(self.features)} features"] if known else []
        parts += [TARGET] if self.target is not None else []
        return (
            f"Bounds of {' and of the '.join(parts) if known else 'the target'} were given by the "
            "user, who says that they are public. They must not come from the clients' rows. "
            "Values beyond them are clipped."
        )

    def limits(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The lowest and the highest values of all features; infinite without bounds."""
        pairs = [(-math.inf, math.inf) if pair is None else pair for pair in self.features]
        low, high = np.array(pairs, dtype=np.float32).T
        return low, high

    def to_dict(self) -> dict[str, Any]:
        features = [None if pair is None else list(pair) for pair in self.features]
        return {"features": features, "target": None if self.target is None else list(self.target)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Bounds:
        """The inverse of `to_dict`.

        Args:
            values: what `to_dict` returned.
        """
        features = (None if pair is None else (pair[0], pair[1]) for pair in values["features"])
        target = values["target"]
        return cls(tuple(features), None if target is None else (target[0], target[1]))


def read_bounds(path: str | Path) -> dict[str, Range]:
    """The bounds of a TOML file, by the names of columns."""
    if not isinstance(path, (str, Path)):
        raise PublicError(
            "For a data file, bounds are the path of a TOML file; a mapping is for "
            "FederatedData.from_arrays and from_frame."
        )
    from pmtl.data.schema import Schema

    columns = Schema.read(path, "The file of bounds").columns
    ranges = {column.name: column.range for column in columns if column.range is not None}
    if not ranges:
        raise PublicError(f"{path} has no bounds: write [columns.NAME] with low and high.")
    return ranges


def checked_range(name: object, given: Any) -> Range:
    """The bounds (low, high) of the column `name`, which must differ and be finite also as float32,
    in which rows are kept."""
    pair = given.tolist() if isinstance(given, np.ndarray) else given
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise PublicError(f"The bounds of {name!r} must be two numbers (low, high), not {pair!r}.")
    if not all(isinstance(value, Real) and not isinstance(value, bool) for value in pair):
        raise PublicError(f"The bounds of {name!r} must be numbers, but {pair!r} was given.")
    try:
        low, high = float(pair[0]), float(pair[1])
    except OverflowError:
        low = high = math.inf
    if not (math.isfinite(low) and math.isfinite(high)):
        raise PublicError(f"The bounds of {name!r} must be finite, not {low:g} and {high:g}.")
    if not low < high:
        raise PublicError(
            f"The bounds of {name!r} are low = {low:g} and high = {high:g}: low must be less than "
            "high."
        )
    with np.errstate(over="ignore", under="ignore"):
        half = (np.float32(high) - np.float32(low)) / np.float32(2)
    if not (half > 0 and np.isfinite(half)):
        raise PublicError(
            f"The bounds of {name!r}, {low!r} and {high!r}, are too close or too far apart for "
            "32-bit numbers: express the column in another unit."
        )
    return low, high


def find_bounds(
    given: GivenBounds | Bounds,
    shape: tuple[int, ...],
    names: Sequence[str] | None,
    targets: Sequence[str],
    words: Sequence[str] | None = None,
) -> Bounds:
    """The bounds of a federation's columns, from what the user gave. `shape` is a row's shape.
    Without the `names` of features, columns are named by their positions. `words` are the columns
    of text, if their words are the features."""
    if isinstance(given, Bounds):
        return given
    if isinstance(given, (str, Path)):
        given = read_bounds(given)
    known: list[str] = []
    if words is None and len(shape) == 1:
        known = [str(name) for name in (range(shape[0]) if names is None else names)]
    if not isinstance(given, Mapping):
        given = _of_list(given, known)
    features: dict[str, Range] = {}
    target: Range | None = None
    for column, pair in given.items():
        name = str(column)
        if name in known:
            features[name] = checked_range(name, pair)
        elif name in (words or ()):
            raise PublicError(
                f"The column {name!r} is text, and bounds are for numbers: leave it out."
            )
        elif name not in targets and name != TARGET:
            others = [*known, *(targets or (TARGET,))]
            raise PublicError(
                f"There are bounds for {name!r}, which is neither a feature nor the target."
                f"{did_you_mean(name, others, 3)} Columns that may have bounds are "
                f"{listed(others, 20)}."
            )
        elif target is not None:
            raise PublicError(f"The target has bounds twice, also as {name!r}: keep one of them.")
        else:
            target = checked_range(name, pair)
    if not features and target is None:
        raise PublicError("There are no bounds: give (low, high) for at least one column.")
    in_order = tuple(features.get(name) for name in known) if features else ()
    return Bounds(in_order, target)


def check_bounds(bounds: Bounds, x: Any, y: Any, task: Task | None) -> Task | None:
    """Refuse bounds of columns that are not numbers. A target with bounds is a number: the task is
    regression, even if all targets are whole numbers."""
    if bounds.features and not (isinstance(x, np.ndarray) and x.dtype != np.uint8):
        raise PublicError(
            "Bounds of features need a table of numbers: sparse rows and pixels (bytes) cannot be "
            "scaled by them. Leave these bounds out."
        )
    if bounds.target is None:
        return task
    values = None if isinstance(y, Coded) else as_array(y, "targets")
    if values is None or values.dtype.kind in "OSUT":
        raise PublicError("The target is text, and bounds are for numbers: leave its bounds out.")
    if task not in (None, "regression"):
        raise PublicError(
            f"Bounds are for a target of numbers, and not for {task}: leave them out."
        )
    if values.ndim > 1 and values.shape[1] > 1:
        raise PublicError(
            f"There are {values.shape[1]} targets, and only a single one may have bounds: leave "
            "these bounds out."
        )
    return "regression"


def _of_list(given: Any, known: Sequence[str]) -> dict[str, Any]:
    """The pairs of a list by the names of the columns."""
    pairs = given.tolist() if isinstance(given, np.ndarray) else given
    if not isinstance(pairs, (tuple, list)):
        raise PublicError(
            f"Bounds are a file, a mapping of columns to (low, high) or a list, not {given!r}."
        )
    if len(pairs) != len(known):
        raise PublicError(
            f"The list of bounds has {len(pairs)} entries for {len(known)} columns: give (low, "
            "high) or None for each. The target's bounds need a mapping."
        )
    return {name: pair for name, pair in zip(known, pairs, strict=True) if pair is not None}
