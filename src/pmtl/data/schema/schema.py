"""A schema: what is publicly known about the columns of a table.

A TOML file has a version, and a table for each column:

    version = 1
    public = true    # known without looking at the clients' rows

    [columns.age]
    kind = "number"
    low = 0
    high = 110
    missing = "indicator"

Which features a table has follows from its schema alone, and never from the rows: two federations
with the same schema have the same features. docs/tables.md has all settings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmtl.data.readers.bounds import Bounds, GivenBounds, checked_range, read_bounds
from pmtl.data.schema.column import Column
from pmtl.data.schema.problems import refuse
from pmtl.errors import PmtlError, PublicError, did_you_mean, errors_naming, listed
from pmtl.storage import read_toml

#: The version of the file's form.
VERSION = 1
_ENTRIES = ("version", "public", "columns")


@dataclass(frozen=True)
class Schema:
    """The columns of a table.

    Args:
        columns: the columns, in the order of their features.
        public: whether the user says that all of it is known without the clients' rows, which
            production needs.
    """

    columns: tuple[Column, ...]
    public: bool = False

    def __post_init__(self) -> None:
        problems = []
        for name, count in Counter(column.name for column in self.columns).items():
            problems += [f"the column {name!r} is there twice."] if count > 1 else []
        for role in ("client", "split"):
            names = [column.name for column in self.columns if column.role == role]
            if len(names) > 1:
                problems.append(f"{listed(names)} have the role {role!r}: only one column may.")
        targets = self.targets
        if len(targets) > 1 and any(c.kind == "category" or c.range for c in targets):
            problems.append("several targets are booleans or numbers, without bounds.")
        counts = Counter(self.feature_names)
        if twice := [name for name, count in counts.items() if count > 1]:
            problems.append(f"two columns become the feature {twice[0]!r}: rename one of them.")
        if not self.feature_names:
            problems.append(
                "no column is a feature: free text, for example, is read with FILE:text=COLUMN."
            )
        refuse("The schema", problems)

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the features that a row becomes."""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def features(self) -> tuple[Column, ...]:
        """The columns that become features."""
        return tuple(column for column in self.columns if column.role == "feature")

    @property
    def targets(self) -> tuple[Column, ...]:
        """The columns to predict."""
        return tuple(column for column in self.columns if column.role == "target")

    def named(self, role: str) -> str | None:
        """The name of the column with a role, if there is one.

        Args:
            role: "client" or "split".
        """
        return next((column.name for column in self.columns if column.role == role), None)

    @property
    def bounds(self) -> Bounds | None:
        """The public bounds of features and target. If any feature has bounds, encoded columns have
        the bounds 0 and 1, too."""
        targets = self.targets
        target = targets[0].range if len(targets) == 1 else None
        features: tuple[Any, ...] = ()
        if any(column.range for column in self.features):
            features = tuple(pair for column in self.features for pair in column.ranges)
        return Bounds(features, target) if features or target else None

    @property
    def fills(self) -> bool:
        """Whether there can be empty cells that a client has to fill."""
        return any(
            column.kind in ("number", "boolean", "date") and column.missing in ("fill", "indicator")
            for column in self.features
        )

    def with_bounds(self, bounds: GivenBounds) -> Schema:
        """The schema with bounds of further columns.

        Args:
            bounds: (low, high) by the names of columns, or a file; "target" is the target.
        """
        ranges = read_bounds(bounds) if isinstance(bounds, (str, Path)) else bounds
        if not isinstance(ranges, Mapping):
            raise PublicError("With a schema, bounds are a file or a mapping of columns' names.")
        given = {str(name): pair for name, pair in ranges.items()}
        targets = [column.name for column in self.targets]
        if "target" in given and targets and not any(c.name == "target" for c in self.columns):
            given[targets[0]] = given.pop("target")
        columns = {column.name: column for column in self.columns}
        known = {name: column.kind or column.role for name, column in columns.items()}
        problems = [
            f"there are bounds for {name!r}, which is not one of its columns."
            + did_you_mean(name, known)
            for name in given
            if name not in known
        ]
        problems += [
            f"there are bounds for {name!r}, which is {known[name]}: they are for numbers and "
            "dates only, so leave them out."
            for name in given
            if known.get(name, "number") not in ("number", "date")
        ]
        refuse("The schema", problems)
        for name, pair in given.items():
            low, high = checked_range(name, pair)
            columns[name] = replace(columns[name], low=low, high=high)
        return replace(self, columns=tuple(columns.values()))

    def with_roles(
        self,
        client: str | None = None,
        target: str | None = None,
        split: str | None = None,
        drop: Iterable[str] = (),
    ) -> Schema:
        """The schema, if it agrees with what the spec says; columns may be dropped in addition.

        Args:
            client: the column that names the client.
            target: the column to predict; several are written `a+b`.
            split: the column that names the split.
            drop: columns to leave out.
        """
        chosen = {"client": client, "target": target, "split": split}
        problems, columns = [], {column.name: column for column in self.columns}
        for role, given in chosen.items():
            has = [column.name for column in self.columns if column.role == role]
            names = [] if given is None else [given] if given in columns else given.split("+")
            if has and names and names != has:
                problems.append(
                    f"its {role} is {'+'.join(has)!r}, but {role}={given} was given: leave that "
                    "out, or change the schema."
                )
            for name in [] if has else names:
                if role == "client" or role == "split":
                    columns[name] = Column(name, None, role)
                elif name in columns and columns[name].role == "feature":
                    columns[name] = replace(columns[name], role=role, missing="refuse")
                else:
                    problems.append(f"it says nothing about the target {name!r}: add it.")
        for name in drop:
            if name not in columns:
                problems.append(f"it has no column {name!r} to drop.{did_you_mean(name, columns)}")
            columns[name] = Column(name, None, "dropped")
        refuse("The schema", problems)
        return replace(self, columns=tuple(columns.values()))

    def encode(self, rows: Any) -> NDArray[np.float32]:
        """Rows of features, [rows, features]. NaN is a missing value that the client has to fill;
        `Run.personal(client)` reads such rows.

        Columns are found by name, in any order; the columns of the client, the target and the split
        may be there or not. One error lists all problems.

        Args:
            rows: an Arrow table or batch, a pandas or polars frame, or a mapping of columns.
        """
        from pmtl.data.readers.table import frame_table
        from pmtl.data.schema.rows import encode_new_rows

        if not hasattr(rows, "columns") and not isinstance(rows, Mapping):
            raise PmtlError(
                "Rows with a schema are a frame (pandas, polars, Arrow) or a mapping of columns, "
                f"whose columns have names, not {type(rows).__name__}."
            )
        table = frame_table(rows)
        self.check_names(table.names, "The frame")
        (batch,) = table.read([column.name for column in self.features])
        return encode_new_rows(self, batch, "The frame")[0]

    def check_names(
        self, names: Sequence[str], where: str, training: bool = False, ignore: Sequence[str] = ()
    ) -> None:
        """Refuse a table that lacks columns, or has columns that the schema does not know.

        Args:
            names: the names of the table's columns.
            where: the table, for the sentence.
            training: whether the client and the target are needed, too.
            ignore: further columns that are allowed.
        """
        known = [column.name for column in self.columns]
        needed = {
            column.name
            for column in self.columns
            if column.role == "feature" or (training and column.role != "dropped")
        }
        counts = Counter(names)
        free = [name for name in names if name not in known and name not in ignore]
        problems = [
            f"the column {name!r} of the schema is missing.{did_you_mean(name, free)}"
            for name in known
            if name in needed and not counts[name]
        ]
        problems += [
            f"more than one column is named {name!r}: rename one."
            for name, count in counts.items()
            if count > 1 and name in needed
        ]
        if free:
            unknown = f"the schema does not know {listed(free)}.{did_you_mean(free[0], known)}"
            remedy = ", or carry them over with --keep."
            if training:
                remedy = ', or add them to the schema with role = "dropped".'
            problems.append(f"{unknown} Remove such columns from the file{remedy}")
        refuse(where, problems)

    def to_dict(self) -> dict[str, Any]:
        """The content of the file."""
        return {
            "version": VERSION,
            "public": self.public,
            "columns": {column.name: column.to_dict() for column in self.columns},
        }

    def to_toml(self) -> str:
        """The text of the file."""
        from pmtl.data.schema.review import to_toml

        return to_toml(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Schema:
        """The inverse of `to_dict`; one error lists all problems.

        Args:
            values: the content of a file. A file of bounds (columns with low and high) is a schema
                of numbers.
        """
        problems = [
            f"it has no entry {key!r}.{did_you_mean(str(key), _ENTRIES)} Known: "
            f"{', '.join(_ENTRIES)}."
            for key in values
            if key not in _ENTRIES
        ]
        version, public = values.get("version", VERSION), values.get("public", False)
        if not isinstance(public, bool):
            problems.append(f"public = {public!r} is neither true nor false.")
        if version != VERSION or isinstance(version, bool):
            problems.append(
                f"its version is {version!r}, and this version of pmtl reads version {VERSION}."
            )
        tables, columns = values.get("columns", {}), []
        if not isinstance(tables, Mapping) or not tables:
            problems.append("it has no columns: write [columns.NAME] for each.")
            tables = {}
        for name, table in tables.items():
            try:
                columns.append(Column.from_dict(str(name), table))
            except PublicError as error:
                problems.append(str(error))
        refuse("The schema", problems)
        return cls(tuple(columns), public)

    @classmethod
    def read(cls, path: str | Path, what: str = "The schema") -> Schema:
        """Read a TOML file.

        Args:
            path: the file.
            what: what error messages call it.
        """
        values = read_toml(path, what)
        with errors_naming(str(path)):
            return cls.from_dict(values)

    @classmethod
    def of(cls, given: Schema | Mapping[str, Any] | str | Path) -> Schema:
        """The schema that a user gave: itself, its content or its file.

        Args:
            given: any of the three.
        """
        if isinstance(given, Schema):
            return given
        if isinstance(given, (str, Path)):
            return cls.read(given)
        if isinstance(given, Mapping):
            return cls.from_dict(given)
        raise PublicError(
            f"A schema is a pmtl.data.Schema, a mapping or a TOML file, not {given!r}."
        )
