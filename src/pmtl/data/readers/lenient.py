"""Tables read in production: a cell that cannot be used marks its row, and nothing is refused.

A refusal that names a row, or that comes at all, tells everybody something about the client whose
row it is. So batches of a table pass through here first: an empty cell, or text where a number is
needed, is filled with a value that means nothing, and its row is marked as not usable. All other
rows come out as they would without it, to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmtl.errors import PublicError

_WORDS = {"true": 1.0, "false": 0.0}


class Lenient:
    """Batches with every cell filled; `usable` tells afterwards which rows are."""

    def __init__(self, batches: Iterable[Any], numbers: Mapping[str, Any], texts: set[str]) -> None:
        """`numbers` are the columns that hold numbers, with the Arrow type they are wanted in;
        `texts` are columns of text that may not be empty."""
        self._batches = batches
        self._numbers = numbers
        self._texts = texts
        self._marks: list[NDArray[np.bool_]] = []
        self._filled = dict.fromkeys(numbers, False)

    def __iter__(self) -> Iterator[Any]:
        import pyarrow as pa

        for batch in self._batches:
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            usable = np.ones(batch.num_rows, dtype=bool)
            for name in columns:
                if name in self._numbers:
                    columns[name], good = _numbers(columns[name], self._numbers[name])
                    self._filled[name] |= bool(good.any())
                    usable &= good
                elif name in self._texts and is_text(columns[name].type):
                    usable &= columns[name].is_valid().to_numpy(zero_copy_only=False)
                    if pa.types.is_dictionary(columns[name].type):
                        columns[name] = columns[name].dictionary_decode()
                    columns[name] = columns[name].fill_null("")
            self._marks.append(usable)
            yield pa.RecordBatch.from_pydict(columns)

    def usable(self) -> NDArray[np.bool_]:
        """Which rows can be used; a column without a single number is refused."""
        for name, filled in self._filled.items():
            if not filled:
                raise PublicError(
                    f"The column {name!r} holds no numbers: encode it as numbers, or leave it out "
                    f"with drop={name}."
                )
        return np.concatenate(self._marks)


def is_text(kind: Any) -> bool:
    """Whether an Arrow type is text."""
    from pyarrow import types

    inner = kind.value_type if types.is_dictionary(kind) else kind
    checks = (types.is_string, types.is_large_string, types.is_string_view)
    return any(check(inner) for check in checks)


def kind_of(batches: Iterable[Any], name: str) -> Any:
    """The Arrow type of a column of text, most of whose cells may be numbers: a few cells must not
    turn the numbers of all others into names."""
    import pyarrow as pa

    values = np.concatenate(
        [[_parsed(cell or "") for cell in batch.column(name).to_pylist()] for batch in batches]
    )
    numbers = values[np.isfinite(values)]
    if 2 * len(numbers) <= len(values):
        return pa.string()
    return pa.int64() if (numbers == np.floor(numbers)).all() else pa.float64()


def _numbers(column: Any, wanted: Any) -> tuple[Any, NDArray[np.bool_]]:
    """The column as numbers of a type, 0 where there is none, and where there is one."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        cells = column.dictionary_encode()
        parsed = [_parsed(cell) for cell in cells.dictionary.to_pylist()]
        codes = cells.indices.fill_null(len(parsed)).to_numpy(zero_copy_only=False)
        values = np.array([*parsed, np.nan])[codes]
    elif pa.types.is_integer(column.type):
        good = column.is_valid().to_numpy(zero_copy_only=False)
        return column.fill_null(0), good
    else:
        values = column.cast(pa.float64()).fill_null(np.nan).to_numpy(zero_copy_only=False)
    good = np.isfinite(values)
    if pa.types.is_boolean(wanted):
        good &= (values == 0) | (values == 1)
        return pa.array(np.where(good, values, 0).astype(bool)), good
    if pa.types.is_integer(wanted):
        good &= values == np.floor(values)
        good &= np.abs(np.where(good, values, 0)) < 2**53
        return pa.array(np.where(good, values, 0).astype(np.int64)), good
    return pa.array(np.where(good, values, 0.0)), good


def _parsed(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return _WORDS.get(cell.strip().lower(), np.nan)
