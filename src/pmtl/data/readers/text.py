"""Text as bags of words, and tags as labels.

A row of features is the count of each known word, divided by the number of known words in the text,
as in TensorFlow Federated's tag prediction. Words are known from a public list (`vocabulary=FILE`),
hashed into N columns (`hash=N`, the default, which depends on no data), or the N words that most
clients use (`words=N`): counting these over all clients is a release without noise, so the
description of the data and the privacy statement say so. Tags are known from a list
(`taglist=FILE`) or by counting (`tags=N`).

>>> tokenise("Don't drop the NRF9160-dk, twice!")
["don't", 'drop', 'the', 'nrf9160-dk', 'twice']
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

TAG_SEPARATOR = "|"

_WORD = re.compile(r"\w+(?:['’-]\w+)*")


def tokenise(text: str) -> list[str]:
    """The words of a text in lower case: letters, digits and underscores, which apostrophes and
    hyphens may join."""
    return _WORD.findall(text.lower())


def split_tags(text: str) -> list[str]:
    return [tag for tag in (part.strip() for part in text.split(TAG_SEPARATOR)) if tag]


@dataclass(frozen=True)
class TextRule:
    """How text becomes features, so that new text becomes the same features. The words are the
    federation's `feature_names`; hashed words have no names."""

    columns: tuple[str, ...]  #: the columns of text; their texts are joined by a space
    tokenised: bool = False  #: whether white space separates the words; otherwise see `tokenise`
    hashed: int | None = None  #: the number of columns of hashed words

    def words(self, text: str) -> list[str]:
        return text.split() if self.tokenised else tokenise(text)


class Bags:
    """Collects bags of names (words or tags) as the rows of a sparse matrix.

    There is a column for each of the `names`, or `hashed` columns for hashes of names, or a column
    for each of the `count` names that most clients use.
    """

    def __init__(
        self,
        names: Sequence[str] | None = None,
        hashed: int | None = None,
        count: int | None = None,
    ) -> None:
        self.names = None if names is None else tuple(names)
        self.hashed, self._count = hashed, count
        self._column_of = {name: column for column, name in enumerate(self.names or ())}
        self._ends, self._columns, self._counts = array("q", [0]), array("q"), array("f")

    def append(self, names: Iterable[str]) -> None:
        counts = Counter(map(self._column, names))
        counts.pop(-1, None)
        self._columns.extend(counts.keys())
        self._counts.extend(counts.values())
        self._ends.append(len(self._columns))

    def _column(self, name: str) -> int:
        if self.hashed is not None:
            return hashed_column(name, self.hashed)
        if self._count is not None:
            return self._column_of.setdefault(name, len(self._column_of))
        return self._column_of.get(name, -1)

    def finish(self) -> Any:
        """The counts [rows, columns], as CSR."""
        from scipy.sparse import csr_matrix

        parts = (np.array(self._counts), np.array(self._columns), np.array(self._ends))
        shape = (len(self._ends) - 1, self.hashed or len(self._column_of))
        matrix = csr_matrix(parts, shape=shape)
        matrix.sort_indices()
        return matrix

    def choose(self, clients: NDArray[np.int64]) -> tuple[Any, tuple[str, ...] | None]:
        """The counts [rows, columns] (CSR), and the columns' names; `clients` own the rows."""
        counts = self.finish()
        if self._count is None:
            return counts, self.names
        found, columns = list(self._column_of), max(1, counts.shape[1])
        owners = np.repeat(clients, np.diff(counts.indptr))
        pairs = np.unique(owners * columns + counts.indices)  # Each client and word once.
        users = np.bincount(pairs % columns, minlength=columns)
        chosen = sorted(range(len(found)), key=lambda i: (-users[i], found[i]))[: self._count]
        return counts[:, np.array(chosen, dtype=np.int64)], tuple(found[i] for i in chosen)

    def disclosed(self, chosen: int, what: str, otherwise: str) -> tuple[str, ...]:
        if self._count is None:
            return ()
        return (
            f"The {chosen:,} {what}s that most clients use were counted over all clients' data "
            f"without noise, and the list is treated as public: a {what} that few clients use may "
            f"identify them. If that matters, {otherwise}.",
        )


def frequencies(counts: Any) -> Any:
    """Counts divided by their row's sum; an empty row stays empty."""
    rows = counts.copy()
    totals = np.asarray(rows.sum(axis=1), dtype=np.float32).ravel()
    rows.data = (rows.data / np.repeat(totals, np.diff(rows.indptr))).astype(np.float32)
    return rows


@lru_cache(maxsize=1 << 18)
def hashed_column(word: str, columns: int) -> int:
    """The column of a word, the same on every machine (Python's `hash` is salted)."""
    digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") % columns
