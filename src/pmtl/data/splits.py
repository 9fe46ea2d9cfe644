"""Which clients take part, and which of their rows train, validate and test.

A row's split is drawn from a random number that depends only on the client's name and the row's
position among the client's rows. Adding, removing or moving other clients never changes it.

>>> part_sizes(np.array([1, 2, 4, 5, 100]), 0.1, 0.2).tolist()
[[1, 0, 0], [2, 0, 0], [3, 0, 1], [3, 1, 1], [70, 10, 20]]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pmtl.data.client_names import distinct, encode
from pmtl.errors import PmtlError, how_many
from pmtl.streams import name_keys, uniforms

Parts = NDArray[np.int8]

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
TRAIN, VALIDATION, TEST, UNUSED = 0, 1, 2, -1
_WORDS = {"train": TRAIN, "validation": VALIDATION, "val": VALIDATION, "valid": VALIDATION}
_WORDS |= {"test": TEST}


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one split, grouped by client."""

    order: NDArray[np.int64]  #: row numbers, client by client, in the order of the file
    offsets: NDArray[np.int64]  #: [m+1]; client k owns `order[offsets[k]:offsets[k+1]]`

    @property
    def counts(self) -> NDArray[np.int64]:
        """[m]: the number of rows of each client."""
        return np.diff(self.offsets)

    def of(self, client: int) -> NDArray[np.int64]:
        """The row numbers of one client.

        Args:
            client: the client's position, from 0.
        """
        return self.order[self.offsets[client] : self.offsets[client + 1]]


def divide(
    client: Any,
    split: Any,
    validation: float,
    test: float,
    kept: tuple[int, int | None, int | None],
    usable: NDArray[np.bool_] | None,
) -> tuple[tuple[str, ...], dict[Split, Rows], tuple[str, ...]]:
    """The clients, the rows of each split, and notes on rows that were left out.

    `kept` is min_rows, largest and clients. With `usable` [rows] (production), other rows are left
    out, and clients may have no rows to train on.
    """
    codes, known = encode(client, "client")
    production = usable is not None
    given = None if split is None else read_parts(split, lenient=production)
    parts = draw_parts(codes, known, given, validation, test, each=production)
    notes: list[str] = []
    if usable is not None:
        parts = np.where(usable, parts, np.int8(UNUSED))
        rows, bad = (np.bincount(part, minlength=len(known)) for part in (codes, codes[~usable]))
        notes = [
            f"Client {known[k]!r}: {bad[k]} of {rows[k]} rows were left out, because a value is "
            "missing, infinite or not a class."
            for k in np.flatnonzero(bad)
        ]
    codes, known = _keep_clients(codes, known, *kept)
    splits = {
        name: group_rows(codes, (parts == part) & (codes != UNUSED), len(known))
        for part, name in enumerate(SPLITS)
    }
    empty = np.flatnonzero(splits["train"].counts == 0)
    if len(empty) and not production:
        raise PmtlError(
            f"Client {known[empty[0]]!r} has no training rows ({len(empty)} of {len(known)} "
            "clients have none): give every client rows marked train, or remove these clients."
        )
    return known, splits, tuple(notes)


def read_parts(split: Any, lenient: bool = False) -> Parts:
    """The part of each row from a column of the words train, validation and test; if `lenient`, a
    row with another word is unused."""
    codes, words = distinct(split, "split") if lenient else encode(split, "split")
    parts = [_WORDS.get(word.strip().lower(), UNUSED) for word in words]
    if UNUSED in parts and not lenient:
        raise PmtlError(
            f"The split column holds {words[parts.index(UNUSED)]!r}: use train, validation (or "
            "val, valid) and test."
        )
    return np.array(parts, dtype=np.int8)[codes]


def draw_parts(
    codes: NDArray[np.int64],
    clients: tuple[str, ...],
    given: Parts | None,
    validation: Any,
    test: Any,
    each: bool = False,
) -> Parts:
    """The part of each row: drawn, or as `given`. If the given split has no validation rows, they
    are drawn from the training rows; with `each`, for every client that has none."""
    for name, fraction in (("validation", validation), ("test", test)):
        number = isinstance(fraction, (int, float, np.number))
        if not number or not 0 <= fraction < 1:
            raise PmtlError(f"The {name} fraction must be in [0, 1), but {fraction!r} was given.")
    if validation + test >= 1:
        raise PmtlError(
            f"validation={validation} and test={test} leave no rows to train on: "
            "their sum must be below 1."
        )
    has = np.zeros(len(clients), dtype=bool)
    if given is not None:
        has[codes[given == VALIDATION]] = True
        if validation == 0 or (has.any() and not each):
            return given
    order = np.argsort(codes, kind="stable")
    if given is not None:
        order, test = order[(given[order] == TRAIN) & ~has[codes[order]]], 0.0
    owner = codes[order]
    counts = np.bincount(owner, minlength=len(clients))
    position = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    chance = uniforms(0, "split", name_keys(clients)[owner], position)
    shuffled = order[np.lexsort((chance, owner))]

    sizes = part_sizes(counts, validation, test)[owner]
    until_test, until_validation = sizes[:, 2], sizes[:, 2] + sizes[:, 1]
    parts = np.full(len(codes), TRAIN, dtype=np.int8) if given is None else given.copy()
    parts[shuffled] = np.select(
        [position < until_test, position < until_validation], [TEST, VALIDATION], TRAIN
    )
    return parts


def part_sizes(counts: NDArray[Any], validation: float, test: float) -> NDArray[np.int64]:
    """[m, 3]: training, validation and test rows of clients with `counts` rows.

    Fractions are rounded. A client with three rows or more has at least one test row, with five or
    more at least one validation row, and every client has at least one training row.
    """

    def share(fraction: float, needed: int, available: NDArray[Any]) -> NDArray[np.int64]:
        rounded = np.rint(n * fraction).astype(np.int64)
        least = (n >= needed) if fraction > 0 else 0
        return np.asarray(np.minimum(np.maximum(rounded, least), np.maximum(available, 0)))

    n = np.asarray(counts, dtype=np.int64)
    n_test = share(test, 3, n - 1)
    n_validation = share(validation, 5, n - n_test - 1)
    return np.stack([n - n_test - n_validation, n_validation, n_test], axis=-1)


def _keep_clients(
    codes: NDArray[np.int64],
    known: tuple[str, ...],
    min_rows: int,
    largest: int | None,
    clients: int | None,
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Drop small clients, then all but the `largest`, then all but the first `clients`; the rows of
    dropped clients have the code `UNUSED`."""
    counts = np.bincount(codes, minlength=len(known))
    kept = np.flatnonzero(counts >= min_rows)
    for name, number in (("largest", largest), ("clients", clients)):
        if number is None:
            continue
        if not 1 <= number <= len(kept):
            are = "is" if len(kept) == 1 else "are"
            raise PmtlError(
                f"{name}={number} was asked for, but there {are} "
                + how_many(len(kept), "client")
                + (f" with at least {min_rows} rows." if min_rows > 1 else ".")
            )
        if name == "largest":
            kept = kept[np.argsort(-counts[kept], kind="stable")]
        kept = np.sort(kept[:number])
    if not len(kept):
        raise PmtlError(f"No client has {min_rows} rows: lower min_rows.")
    renumber = np.full(len(known), UNUSED, dtype=np.int64)
    renumber[kept] = np.arange(len(kept))
    return renumber[codes], tuple(known[k] for k in kept)


def group_rows(codes: NDArray[np.int64], member: NDArray[np.bool_], m: int) -> Rows:
    """The rows of one split (`member`), grouped by client."""
    index = np.flatnonzero(member)
    owner = codes[index]
    return Rows(index[np.argsort(owner, kind="stable")], offsets(np.bincount(owner, minlength=m)))


def offsets(counts: NDArray[Any]) -> NDArray[np.int64]:
    """Where the rows of each client begin, and where the rows of the last client end."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
