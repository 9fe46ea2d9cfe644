"""The columns of `X`: numbers, and one that may name the client of each row."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import validate_data

from pmtl.errors import PmtlError, listed
from pmtl.spec import unknown


def without_column(X: Any, column: str | int | None, groups: Any) -> tuple[Any, Any]:
    """`X` without the column of groups, and the groups. The column is named by its name (frames) or
    its position; both are as given if there is none."""
    if column is None:
        return X, groups
    if groups is not None:
        raise PmtlError(
            f"The groups were given twice, as groups=… and as group_column={column!r}: keep one."
        )
    if len(getattr(X, "shape", ())) != 2:
        raise PmtlError(
            f"group_column={column!r} needs a frame or an array of two dimensions, but X is a "
            f"{type(X).__name__}."
        )
    position = _position(X, column)
    others = [place for place in range(X.shape[1]) if place != position]
    if not others:
        raise PmtlError(f"X has only the column of groups, {column!r}: features are needed, too.")
    taken = _safe_indexing(X, [position], axis=1)
    if hasattr(taken, "toarray"):
        taken = taken.toarray()
    named = taken.to_numpy() if hasattr(taken, "to_numpy") else taken
    return _safe_indexing(X, others, axis=1), named[:, 0]


def check_rows(estimator: Any, X: Any, *y: Any, **how: Any) -> Any:
    """scikit-learn's `validate_data`. One error names all columns of a frame without numbers."""
    try:
        return validate_data(estimator, X, *y, accept_sparse="csr", **how)
    except (ValueError, TypeError) as error:
        if names := _no_numbers(X):
            one = len(names) == 1
            raise PmtlError(
                f"The column{'' if one else 's'} {listed(names)} of X hold{'s' if one else ''} "
                "text, dates or empty cells, and an estimator reads numbers: turn them into "
                "numbers in a step before it (such as OneHotEncoder with given categories), or "
                "use pmtl.train, which reads tables as they come."
            ) from error
        raise


def _no_numbers(X: Any) -> list[str]:
    """The columns of a frame with a cell that is not a number."""
    names = []
    for name in getattr(X, "columns", ()):
        column = X[name]
        dates = getattr(getattr(column, "dtype", None), "kind", "") in ("m", "M")
        try:
            good = not dates and np.isfinite(np.asarray(column, dtype=np.float64)).all()
        except (ValueError, TypeError):
            good = False
        names += [] if good else [str(name)]
    return names


def _position(X: Any, column: str | int) -> int:
    names = list(getattr(X, "columns", ()))
    if isinstance(column, str):
        if not names:
            raise PmtlError(
                f"group_column={column!r} is a name, but X has no column names: give a frame, or "
                "the position of the column."
            )
        if column not in names:
            raise unknown("column of X named", column, [str(name) for name in names])
        return names.index(column)
    if isinstance(column, bool) or not isinstance(column, int):
        raise PmtlError(f"group_column must be a name or a position, but {column!r} was given.")
    if not -X.shape[1] <= column < X.shape[1]:
        raise PmtlError(f"group_column={column} was given, but X has {X.shape[1]} columns.")
    return column % int(X.shape[1])
