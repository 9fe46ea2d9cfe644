"""The columns that readers return, and the roles of a table's columns.

One column of a table names the client, one or several (`a+b`) are the target, and one may name the
split. All others are features, unless `text` names columns (`a+b`) whose words are the features.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from pmtl.data.client_names import Coded, Vocabulary
from pmtl.data.disk import ArrayBuilder
from pmtl.data.readers.text import TextRule
from pmtl.errors import PmtlError, PublicError, did_you_mean, listed

if TYPE_CHECKING:
    from pmtl.data.schema.schema import Schema

CLIENT = ("client", "client_id")
TARGET = ("target", "y", "label")
SPLIT = ("split",)
#: The endings of tables.
TABLES = ("csv", "tsv", "csv.gz", "tsv.gz", "parquet", "pq")


class Columns(TypedDict):
    """What a reader returns: arguments of `FederatedData.from_arrays`."""

    x: Any
    y: Any
    client: Any
    split: NotRequired[Any]
    feature_names: NotRequired[tuple[str, ...] | None]
    target_names: NotRequired[tuple[str, ...]]
    labels: NotRequired[tuple[str, ...] | None]
    text: NotRequired[TextRule]
    schema: NotRequired[Schema]
    disclosed: NotRequired[tuple[str, ...]]
    notes: NotRequired[tuple[str, ...]]
    usable: NotRequired[NDArray[np.bool_] | None]


@dataclass(frozen=True)
class Roles:
    """The names of a table's columns by their role."""

    client: str
    targets: tuple[str, ...]
    split: str | None
    features: tuple[str, ...]
    text: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    @property
    def used(self) -> tuple[str, ...]:
        special = (self.client, *self.targets, *((self.split,) if self.split else ()))
        return special + self.features + self.text

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The names of several targets are those of their columns."""
        return self.targets if len(self.targets) > 1 else None


def assign_roles(
    columns: Sequence[str],
    where: str,
    client: str | None = None,
    target: str | None = None,
    split: str | None = None,
    drop: str | Sequence[str] = (),
    text: str | None = None,
) -> Roles:
    """Find the client, target, split and text columns. Without text, all others that are not
    dropped are features.

    A `target` or `text` that is not the name of a column is several names, separated by +.
    """
    twice = sorted(name for name, count in Counter(columns).items() if count > 1)
    if twice:
        raise PublicError(f"{where} has more than one column named {twice[0]!r}: rename one.")
    dropped = dropped_names(drop)
    problems = {f"column {name!r} to drop": "" for name in dropped if name not in columns}
    has_split = split is not None or any(n in columns and n not in dropped for n in SPLIT)
    roles = [("client", client, CLIENT), ("target", target, TARGET)]
    roles += [("split", split, SPLIT)] if has_split else []
    roles += [("text", text, ())] if text is not None else []
    found = {
        role: _find_several(columns, role, given, usual, problems) for role, given, usual in roles
    }
    listing = f"The columns are {listed(columns, 20)}."
    if problems:
        remedies = "".join(f" {remedy.strip()}" for remedy in problems.values() if remedy)
        raise PublicError(f"{where} has no {' and no '.join(problems)}. {listing}{remedies}")
    client_column, targets = found["client"][0], found["target"]
    split_column, texts = found.get("split", (None,))[0], found.get("text", ())
    special = [client_column, *targets, split_column, *texts]
    taken = next((name for name in special if special.count(name) > 1), None)
    if taken is not None:
        raise PublicError(
            f"The column {taken!r} of {where} is named twice as client, target, split or text: "
            "each of these needs its own column."
        )
    others = {*special, *dropped}
    features = () if texts else tuple(name for name in columns if name not in others)
    if not features and not texts:
        raise PublicError(f"{where} has no feature columns. {listing}")
    return Roles(client_column, targets, split_column, features, texts, dropped)


def dropped_names(drop: str | Sequence[str]) -> tuple[str, ...]:
    """The columns to leave out, from `a+b` or a list."""
    return tuple(name for name in drop.split("+") if name) if isinstance(drop, str) else (*drop,)


def _find_several(
    columns: Sequence[str],
    role: str,
    given: str | None,
    usual: tuple[str, ...],
    problems: dict[str, str],
) -> tuple[str, ...]:
    """The columns of a role; what is not found is added to `problems`, with its remedy."""
    several = role in ("target", "text") and given is not None and given not in columns
    wanted = given.split("+") if several and given else [given]
    found = []
    for one in wanted:
        names = usual if one is None else (one,)
        name = next((name for name in names if name in columns), None)
        if name is None:
            quoted = " or ".join(repr(name) for name in names)
            flag = {"client": "--client-column COLUMN, or ", "target": "--target COLUMN, or "}
            remedy = f"Name the {role} with {flag.get(role, '')}{role}=COLUMN in the spec."
            hint = "" if one is None else did_you_mean(one, columns)
            problems[f"{role} column {quoted}"] = f"{hint} {remedy}"
        else:
            found.append(name)
    return tuple(found)


def wrong_kind(where: str, role: str, name: str, kind: object) -> PmtlError:
    """The error for a column whose type does not fit its role; it quotes no row."""
    remedy = {
        "feature": f"not numbers: say in a schema what it holds (pmtl data schema), or leave it "
        f"out with drop={name}.",
        "target": "not numbers: several targets in a row are columns of numbers (0 and 1 for "
        "labels) with target=a+b, or a two-dimensional y in an .npz.",
        "input": "not numbers, which the model needs.",
        "text": "not text: leave out text= to use numbers as features.",
    }.get(role, "which is not a name: give text or integers.")
    return PublicError(f"The {role} column {name!r} of {where} holds {kind}, {remedy}")


def missing_value(where: str, name: str, row: int) -> PmtlError:
    """The error for an empty cell."""
    return PmtlError(
        f"A value is missing in {where}, row {row} (counting from 0), column {name!r}: "
        "fill it in or remove the row."
    )


class Collector:
    """Collects rows of numbers client by client; they may be larger than memory."""

    def __init__(self) -> None:
        self._x: ArrayBuilder | None = None
        self._y: list[NDArray[Any]] = []
        self.owners = Owners()

    def append(self, client: str, split: str, x: NDArray[Any], y: NDArray[Any], where: str) -> None:
        """Add rows; `where` is their name in error messages."""
        if self._x is None:
            self._x = ArrayBuilder(x.shape[1:], x.dtype if x.dtype == np.uint8 else np.float32)
        shape = self._x.row_shape
        if x.shape[1:] != shape:
            raise PmtlError(
                f"A row of {where} has shape {x.shape[1:]}, but earlier rows have {shape}."
            )
        with np.errstate(over="ignore"):
            self._x.append(x)
        self._y.append(y)
        self.owners.append(client, split, len(x))

    def columns(self, with_split: bool) -> Columns:
        if self._x is None:
            raise PmtlError("There are no rows: a federation needs data.")
        client, split = self.owners.coded()
        return Columns(
            x=self._x.finish(),
            y=np.concatenate(self._y),
            client=client,
            split=split if with_split else None,
        )


class Owners:
    """Collects the clients and splits of rows, client by client."""

    def __init__(self) -> None:
        self._clients, self._splits = Vocabulary("client"), Vocabulary("split")
        self._codes: list[tuple[int, int, int]] = []

    def append(self, client: str, split: str, rows: int) -> None:
        """Add rows of one client and split."""
        self._codes.append((self._clients.code(client), self._splits.code(split), rows))

    def coded(self) -> tuple[Coded, Coded]:
        clients, splits, rows = np.array(self._codes, dtype=np.int64).reshape(-1, 3).T
        return (
            self._clients.coded([np.repeat(clients, rows)]),
            self._splits.coded([np.repeat(splits, rows)]),
        )
