"""Text as bags of words, and tags as labels: how they become columns, and what that gives away.

A row of features is the number of times each known word occurs, divided by the number of known
words in the text, as in TensorFlow Federated's tag prediction. Which words are known is decided in
one of three ways:

- `vocabulary=FILE`: a list that was public before (its first N words with `words=N`);
- `hash=N`: every word falls into one of N columns by a hash of its letters, which depends on no
  data and is the default;
- `words=N`: the N words that most clients use. Counting them over all clients is a release of
  their data that no noise covers, so it is said wherever the data is described and in the run's
  privacy statement.

Tags are known by `taglist=FILE` or by counting (`tags=N`) in the same ways.

>>> tokenise("Don't drop the NRF9160-dk, twice!")
["don't", 'drop', 'the', 'nrf9160-dk', 'twice']
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

BETWEEN_TAGS = "|"

_WORD = re.compile(r"\w+(?:['’-]\w+)*")


def tokenise(text: str) -> list[str]:
    """The words of a text: in lower case, runs of letters, digits and underscores, which an
    apostrophe or a hyphen may join."""
    return _WORD.findall(text.lower())


def split_tags(text: str) -> list[str]:
    """Tags with | between them."""
    return [tag for tag in (part.strip() for part in text.split(BETWEEN_TAGS)) if tag]


@dataclass(frozen=True)
class TextRule:
    """How text became features, so that new text becomes the same ones. The words themselves are
    the federation's `feature_names`; hashed words have none."""

    columns: tuple[str, ...]
    """The columns that hold the text, which is joined by a space."""
    tokenised: bool = False
    """Words are separated by white space already; otherwise see `tokenise`."""
    hashed: int | None = None
    """Into how many columns words were hashed."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TextRule:
        """What `to_dict` gave."""
        return cls(**{**values, "columns": tuple(values["columns"])})

    def words(self, text: str) -> list[str]:
        """The words of a text under this rule."""
        return text.split() if self.tokenised else tokenise(text)


class Bags:
    """Collects one bag of names (words or tags) after another as the rows of a sparse matrix.

    Names have the columns of a list (`names`) or of a hash (`hashed` of them), or those that most
    clients use have one (`count` of them).
    """

    def __init__(
        self,
        names: Sequence[str] | None = None,
        hashed: int | None = None,
        count: int | None = None,
    ) -> None:
        self.names = None if names is None else tuple(names)
        self.hashed, self._count = hashed, count
        self._places = {name: place for place, name in enumerate(self.names or ())}
        self._ends, self._columns, self._counts = array("q", [0]), array("q"), array("f")

    def append(self, names: Iterable[str]) -> None:
        """Add a row."""
        counts = Counter(map(self._place, names))
        counts.pop(-1, None)
        self._columns.extend(counts.keys())
        self._counts.extend(counts.values())
        self._ends.append(len(self._columns))

    def _place(self, name: str) -> int:
        if self.hashed is not None:
            return _hashed(name, self.hashed)
        if self._count is not None:
            return self._places.setdefault(name, len(self._places))
        return self._places.get(name, -1)

    def finish(self) -> Any:
        """How often each column's name occurs in each row, as CSR."""
        from scipy.sparse import csr_matrix

        parts = (np.array(self._counts), np.array(self._columns), np.array(self._ends))
        shape = (len(self._ends) - 1, self.hashed or len(self._places))
        matrix = csr_matrix(parts, shape=shape)
        matrix.sort_indices()
        return matrix

    def choose(self, clients: NDArray[np.int64]) -> tuple[Any, tuple[str, ...] | None]:
        """The counts [rows, columns] (CSR), and the columns' names; `clients` own the rows."""
        counts = self.finish()
        if self._count is None:
            return counts, self.names
        found, users = list(self._places), _users(counts, clients)
        chosen = sorted(range(len(found)), key=lambda i: (-users[i], found[i]))[: self._count]
        return counts[:, np.array(chosen, dtype=np.int64)], tuple(found[i] for i in chosen)

    def disclosed(self, chosen: int, what: str, otherwise: str) -> tuple[str, ...]:
        """What choosing the columns gave away, as a sentence for people."""
        if self._count is None:
            return ()
        return (
            f"The {chosen:,} {what}s that most clients use were counted over all clients' data "
            f"without noise, and the list is treated as public: a {what} that few clients use may "
            f"betray them. Where that matters, {otherwise}.",
        )


def frequencies(counts: Any) -> Any:
    """Counts of words as shares of a row's known words; a row without any stays empty."""
    rows = counts.copy()
    totals = np.asarray(rows.sum(axis=1), dtype=np.float32).ravel()
    rows.data = (rows.data / np.repeat(totals, np.diff(rows.indptr))).astype(np.float32)
    return rows


def _users(counts: Any, clients: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many clients each column occurs with."""
    rows = np.repeat(clients, np.diff(counts.indptr))
    columns = max(1, counts.shape[1])
    pairs = np.unique(rows * columns + counts.indices)
    return np.bincount(pairs % columns, minlength=columns)


@lru_cache(maxsize=1 << 18)
def _hashed(word: str, columns: int) -> int:
    """A column for a word, the same on every machine; not Python's own hash, which is salted."""
    digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") % columns
