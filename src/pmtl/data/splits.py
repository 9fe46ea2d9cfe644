"""Which rows of a client train, which choose, which test.

A row's place is decided by a random number that depends on the client's name and on the row's
position among that client's own rows, and on nothing else: adding, removing or moving other
clients never changes anybody's split, and no seed is needed to name it.

>>> part_sizes(np.array([1, 2, 4, 5, 100]), 0.1, 0.2).tolist()
[[1, 0, 0], [2, 0, 0], [3, 0, 1], [3, 1, 1], [70, 10, 20]]
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmtl.data.client_names import Coded, distinct, encode
from pmtl.errors import PmtlError
from pmtl.streams import name_keys, uniforms

Parts = NDArray[np.int8]

TRAIN, VALIDATION, TEST, UNUSED = 0, 1, 2, -1
_WORDS = {"train": TRAIN, "validation": VALIDATION, "val": VALIDATION, "valid": VALIDATION}
_WORDS |= {"test": TEST}


def read_parts(split: Any, lenient: bool = False) -> Parts:
    """The part of every row from a column of the words train, validation and test; if `lenient`, a
    row with another word is not used."""
    given = split if isinstance(split, Coded) else distinct(split, "split")
    codes, words = given if lenient else encode(given, "split")
    parts = []
    for word in words:
        if word.strip().lower() not in _WORDS:
            if lenient:
                parts.append(UNUSED)
                continue
            raise PmtlError(
                f"The split column holds {word!r}: use train, validation (or val, valid) and test."
            )
        parts.append(_WORDS[word.strip().lower()])
    return np.array(parts, dtype=np.int8)[codes]


def draw_parts(
    codes: NDArray[np.int64],
    clients: tuple[str, ...],
    given: Parts | None,
    validation: float,
    test: float,
    each: bool = False,
) -> Parts:
    """The part of every row: drawn for every client, or as `given` with validation rows drawn
    from every client's training rows when the given split has none; with `each`, from the training
    rows of each client that has none."""
    check_fractions(validation, test)
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
    position = _ranks(counts)
    chance = uniforms(0, "split", name_keys(clients)[owner], position)
    shuffled = order[np.lexsort((chance, owner))]

    sizes = part_sizes(counts, validation, test)
    until_test = sizes[:, 2][owner]
    until_validation = until_test + sizes[:, 1][owner]
    drawn = np.where(
        position < until_test, TEST, np.where(position < until_validation, VALIDATION, TRAIN)
    )
    parts = np.full(len(codes), TRAIN, dtype=np.int8) if given is None else given.copy()
    parts[shuffled] = drawn
    return parts


def part_sizes(counts: NDArray[Any], validation: float, test: float) -> NDArray[np.int64]:
    """[m, 3]: training, validation and test rows of clients with `counts` rows.

    Fractions are rounded; a client with three rows or more is tested on at least one, one with
    five or more validates on at least one, and one row always stays to train on.
    """
    n = np.asarray(counts, dtype=np.int64)
    n_test = np.rint(n * test).astype(np.int64)
    if test > 0:
        n_test = np.maximum(n_test, n >= 3)
    n_test = np.clip(n_test, 0, np.maximum(n - 1, 0))
    n_validation = np.rint(n * validation).astype(np.int64)
    if validation > 0:
        n_validation = np.maximum(n_validation, n >= 5)
    n_validation = np.clip(n_validation, 0, np.maximum(n - n_test - 1, 0))
    return np.stack([n - n_test - n_validation, n_validation, n_test], axis=-1)


def check_fractions(validation: float, test: float) -> None:
    """Refuse fractions that leave nothing to train on."""
    for name, fraction in (("validation", validation), ("test", test)):
        if not 0 <= fraction < 1:
            raise PmtlError(f"The {name} fraction must lie in [0, 1), but {fraction} was given.")
    if validation + test >= 1:
        raise PmtlError(
            f"validation={validation} and test={test} leave no rows to train on: "
            "their sum must be below 1."
        )


def _ranks(counts: NDArray[Any]) -> NDArray[np.int64]:
    """0, 1, 2, … within every client, for rows that lie client after client."""
    starts = np.cumsum(counts) - counts
    return np.asarray(np.arange(int(counts.sum())) - np.repeat(starts, counts), dtype=np.int64)
