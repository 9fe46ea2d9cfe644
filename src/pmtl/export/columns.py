"""The columns of a table in front of an ONNX graph, by the schema of training.

A graph that reads columns has one input for each feature column: `[rows]` texts of a category;
`[rows]` numbers of a number, a boolean (1 and 0) or a date (days since 2000-01-01), NaN for an
empty cell. Hashing has no operator in ONNX: a hashed column is given as its features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmtl.data.schema.cells import EMPTY, as_text
from pmtl.data.schema.column import EPOCH, Column
from pmtl.data.schema.schema import Schema

#: Codes of cells that are empty or not among the categories.
_MISSING, _UNKNOWN = -1, -2
#: Names that the graph itself uses.
_TAKEN = ("rows", "prediction", "probabilities", "class_name")
#: How many first and last days of months a graph with parts of dates is tried with.
_MONTH_ENDS = 30
_PARTS = {"month": 12, "weekday": 7}
#: Days from 0000-03-01, where a civil year is counted from, to 2000-01-01.
_FROM_MARCH = 730_425.0


def input_names(schema: Schema) -> dict[str, Column]:
    """The inputs of a graph that reads columns, in their order, and the column of each."""
    return {
        f"column {column.name}" if column.name in _TAKEN else column.name: column
        for column in schema.features
    }


def input_description(column: Column) -> tuple[str, str]:
    """The type of an input's array in NumPy, and a description of its values."""
    if column.hash is not None:
        rule = "its features (schema.json has the rule)"
        return "float32", f"{len(column.features)} numbers, {rule}"
    if column.kind == "category":
        return "object", "text; empty is an empty cell"
    days = {"date": "days since 2000-01-01", "boolean": "1 or 0"}.get(column.kind or "", "a number")
    return "float64", f"{days}; NaN is an empty cell"


@dataclass(frozen=True)
class Trial:
    """Rows to try a graph with: as features, and as its inputs."""

    rows: NDArray[np.float32]
    inputs: Mapping[str, NDArray[Any]]

    def part(self, some: slice) -> Mapping[str, NDArray[Any]]:
        """The inputs of some of the rows."""
        return {name: values[some] for name, values in self.inputs.items()}


def trial_of(schema: Schema, rows: NDArray[np.float32]) -> Trial:
    """A made-up table with ordinary, far, unknown and empty cells, whose numbers are taken from
    `rows`. Its features come from the schema's own encoder, which training and prediction use."""
    most = max(len(column.categories or ()) for column in schema.features)
    edges = _MONTH_ENDS if any(column.parts for column in schema.features) else 0
    count = min(max(2 * len(rows), most + 2, 16, 2 * edges), 400)
    columns = schema.features
    starts = np.cumsum([0, *(len(column.features) for column in columns)])
    given: dict[str, NDArray[Any]] = {}
    table: dict[str, Any] = {}
    for place, column in enumerate(columns):
        cells = _cells(column, rows[:, starts[place]], count, place)
        given[column.name] = cells
        table[column.name] = [_date(day) for day in cells] if column.kind == "date" else cells
    encoded = schema.encode(table)
    for place, column in enumerate(columns):
        if column.hash is not None:
            given[column.name] = encoded[:, starts[place] : starts[place + 1]]
    inputs = {name: given[column.name] for name, column in input_names(schema).items()}
    return Trial(encoded, inputs)


def _cells(column: Column, numbers: NDArray[np.float32], count: int, place: int) -> NDArray[Any]:
    """Cells of one column, shifted by its place, so that rows combine different values."""
    fills = column.missing in ("fill", "indicator")
    if column.kind in ("category", "text"):
        texts = [*(column.categories or ("a b", "c", "d e f"))]
        texts += ["a value that is not listed"] if column.unknown != "refuse" else []
        texts += [""] if fills else []
        return np.array([texts[(k + place) % len(texts)] for k in range(count)], dtype=object)
    random = np.random.default_rng(place)
    if column.kind == "boolean":
        values: NDArray[np.float64] = random.integers(0, 2, count).astype(np.float64)
    elif column.kind == "date":
        values = random.integers(-400_000, 200_000, count).astype(np.float64)
        firsts = np.datetime64("1999-01") + np.arange(_MONTH_ENDS // 2)
        edges = (firsts.astype("datetime64[D]") - np.datetime64(EPOCH.date())).astype(np.float64)
        # The last and the first day of months, a leap day among them, at some hour.
        values[::2] = np.resize(np.concatenate([edges - 0.25, edges + 0.25]), len(values[::2]))
    else:
        held = numbers[np.isfinite(numbers)].astype(np.float64)
        values = np.resize(held if len(held) else np.zeros(1), count)
    if fills:
        values[place % 5 :: 5] = np.nan
    return values


def _date(day: float) -> str | None:
    """A date as text; None for an empty cell."""
    if np.isnan(day):
        return None
    return str(np.datetime64(EPOCH, "s") + np.timedelta64(round(day * 86_400), "s"))


def add_columns(onnx: Any, proto: Any, schema: Schema) -> None:
    """Put the columns of a table in front of the graph of the model `proto`, which reads `rows`."""
    graph, head = proto.graph, _ColumnGraph(onnx)
    pieces = [head.column(name, column) for name, column in input_names(schema).items()]
    flat = [piece for group in pieces for piece in group]
    head.add("Concat", flat, output="rows", axis=1)
    rest = list(graph.node)
    del graph.node[:]
    graph.node.extend([*head.nodes, *rest])
    graph.initializer.extend(head.constants)
    (rows,) = (value for value in graph.input if value.name == "rows")
    graph.input.remove(rows)
    graph.input.extend(head.inputs)
    proto.opset_import.append(onnx.helper.make_opsetid("ai.onnx.ml", 2))


class _ColumnGraph:
    """The nodes that make features of columns."""

    def __init__(self, onnx: Any) -> None:
        self._onnx, self._count = onnx, 0
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []

    def add(self, kind: str, inputs: list[str], output: str | None = None, **more: Any) -> str:
        """Add a node; returns the name of its result."""
        name = output or self._name()
        self.nodes.append(self._onnx.helper.make_node(kind, inputs, [name], **more))
        return name

    def constant(self, values: Any, kind: Any) -> str:
        """Add an array; returns its name."""
        name = self._name()
        array = np.asarray(values, dtype=kind)
        self.constants.append(self._onnx.numpy_helper.from_array(array, name))
        return name

    def _name(self) -> str:
        self._count += 1
        return f"pmtl_column_{self._count}"

    def column(self, name: str, column: Column) -> list[str]:
        """The features of one column, each `[rows, …]`."""
        types = self._onnx.TensorProto
        if column.hash is not None:
            self._input(name, types.FLOAT, len(column.features))
            return [name]
        if column.kind == "category":
            self._input(name, types.STRING)
            return self._category(name, column)
        self._input(name, types.DOUBLE)
        empty = self.add("IsNaN", [name])
        found = [self._feature(name)]
        for part in column.parts:
            found += self._circle(name, empty, part)
        return found + ([self._feature(empty)] if column.missing == "indicator" else [])

    def _input(self, name: str, kind: int, width: int | None = None) -> None:
        shape = ["rows"] if width is None else ["rows", width]
        self.inputs.append(self._onnx.helper.make_tensor_value_info(name, kind, shape))

    def _feature(self, values: str) -> str:
        """Values of any type, `[rows]`, as a feature."""
        numbers = self.add("Cast", [values], to=self._onnx.TensorProto.FLOAT)
        return self.add("Unsqueeze", [numbers, self.constant([1], np.int64)])

    def _category(self, name: str, column: Column) -> list[str]:
        values = [value.strip() for value in column.categories or ()]
        codes = _spellings(column, values)
        code = self.add(
            "LabelEncoder",
            [name],
            domain="ai.onnx.ml",
            keys_strings=list(codes),
            values_int64s=list(codes.values()),
            default_int64=_UNKNOWN,
        )
        each = self.add("Unsqueeze", [code, self.constant([1], np.int64)])
        places = self.constant(np.arange(len(values))[None], np.int64)
        same = self.add("Equal", [each, places])
        found = [self.add("Cast", [same], to=self._onnx.TensorProto.FLOAT)]
        marks = {_UNKNOWN: column.unknown == "other", _MISSING: column.missing == "indicator"}
        for mark in (mark for mark, is_marked in marks.items() if is_marked):
            found.append(self._feature(self.add("Equal", [code, self.constant(mark, np.int64)])))
        return found

    def _circle(self, name: str, empty: str, part: str) -> list[str]:
        """Sine and cosine of a date's month or weekday; 0 for an empty cell."""
        zero = self.constant(0.0, np.float64)
        day = self.add("Floor", [self.add("Where", [empty, zero, name])])
        if part == "month":
            place = self._month(day)
        else:
            place = self._mod(self._plus(day, EPOCH.weekday()), 7)
        index = self.add("Cast", [place], to=self._onnx.TensorProto.INT64)
        angles = 2 * np.pi * np.arange(_PARTS[part]) / _PARTS[part]
        found = []
        for values in (np.sin(angles), np.cos(angles)):
            picked = self.add("Gather", [self.constant(values, np.float32), index])
            nothing = self.constant(0.0, np.float32)
            found.append(self._feature(self.add("Where", [empty, nothing, picked])))
        return found

    def _month(self, day: str) -> str:
        """The month of a day, from 0: the civil calendar, from March in eras of 400 years."""
        in_era = self._mod(self._plus(day, _FROM_MARCH), 146_097)
        leap = self.add("Sub", [self._div(in_era, 36_524), self._div(in_era, 1_460)])
        whole = self.add("Sub", [self.add("Add", [in_era, leap]), self._div(in_era, 146_096)])
        year = self._div(whole, 365)
        length = self.add("Add", [self._times(year, 365), self._div(year, 4)])
        in_year = self.add("Sub", [in_era, self.add("Sub", [length, self._div(year, 100)])])
        month = self._div(self._plus(self._times(in_year, 5), 2), 153)  # 0 is March.
        return self._mod(self._plus(month, 2), 12)

    def _plus(self, value: str, number: float) -> str:
        return self.add("Add", [value, self.constant(number, np.float64)])

    def _times(self, value: str, number: float) -> str:
        return self.add("Mul", [value, self.constant(number, np.float64)])

    def _div(self, value: str, number: float) -> str:
        return self.add("Floor", [self.add("Div", [value, self.constant(number, np.float64)])])

    def _mod(self, value: str, number: float) -> str:
        return self.add("Sub", [value, self._times(self._div(value, number), number)])


def _spellings(column: Column, values: list[str]) -> dict[str, int]:
    """The code of every text that is a category or an empty cell, as the schema reads them."""
    codes: dict[str, int] = {}
    for spelling in sorted(EMPTY):
        for text in (spelling, spelling.upper(), spelling.title()):
            codes[text] = _MISSING
    codes |= dict.fromkeys(column.missing_values, _MISSING)
    for place, value in enumerate(values):
        if value.isdigit():
            codes.setdefault(as_text(f"{value}.0"), place)
        if value in ("true", "false"):
            codes |= {value.upper(): place, value.title(): place}
    return codes | {value: place for place, value in enumerate(values)}
