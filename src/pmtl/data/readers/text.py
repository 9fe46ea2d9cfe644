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
import json
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmtl.errors import PmtlError

COLUMNS = 10_000
"""Into how many columns words are hashed unless something else is asked for."""
MOST = 2**24
"""Columns that words or tags may have."""
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


@dataclass(frozen=True)
class Known:
    """Which names (words or tags) have a column: those of a list, those of a hash, or, with
    `count`, as many as that of those that most clients use."""

    names: tuple[str, ...] | None = None
    hashed: int | None = None
    count: int | None = None

    def first(self, most: int | None) -> Known:
        """The first of a list; a hash or a count stays as it is."""
        return self if self.names is None else replace(self, names=self.names[:most])

    def bags(self) -> Bags:
        """Something to collect bags in."""
        return Bags(self)


def known_words(words: int | None, vocabulary: str | None, hash: int | None) -> Known:
    """The words of a table's options."""
    _check(words=words, hash=hash)
    if hash is not None and (words is not None or vocabulary is not None):
        raise PmtlError(
            "hash= was given beside words= or vocabulary=: words are hashed, or they are listed."
        )
    if vocabulary is not None:
        return Known(names=read_list(Path(vocabulary), words, "word"))
    return Known(count=words) if words is not None else Known(hashed=hash or COLUMNS)


def known_tags(tags: int | None, taglist: str | None) -> Known | None:
    """The tags of a table's options, if the target is tags."""
    _check(tags=tags)
    if taglist is not None:
        return Known(names=read_list(Path(taglist), tags, "tag"))
    return None if tags is None else Known(count=tags)


def read_list(path: Path, most: int | None, what: str) -> tuple[str, ...]:
    """The first `most` names of a file: a line for each (a count may follow, as in TensorFlow
    Federated's `word_count`), a JSON list, or a JSON object of names and their counts, of which the
    largest come first (as in `tag_count`)."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise PmtlError(f"There is no file {path} with a list of {what}s.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise PmtlError(f"The list of {what}s {path} cannot be read: {error}.") from error
    names = list(dict.fromkeys(_names(text, path, what)))
    if not names:
        raise PmtlError(f"The list of {what}s {path} is empty.")
    if most is not None and most > len(names):
        raise PmtlError(f"{path} has {len(names):,} {what}s, but {most:,} were asked for.")
    return tuple(names[:most])


def _names(text: str, path: Path, what: str) -> Iterable[str]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    if isinstance(content, dict):
        if not all(isinstance(count, (int, float)) for count in content.values()):
            raise PmtlError(f"{path} is not a list of {what}s: every one needs its count.")
        return sorted(content, key=lambda name: -content[name])
    if isinstance(content, list):
        if not all(isinstance(name, str) for name in content):
            raise PmtlError(f"{path} is not a list of {what}s: it holds something else than text.")
        return content
    # Only the end of a line may be a count: a tag may hold spaces.
    lines = (re.sub(r"\s+[0-9]+$", "", line.strip()) for line in text.splitlines())
    return [line for line in lines if line]


class Bags:
    """Collects one bag after another as the rows of a sparse matrix of counts."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._places = {name: place for place, name in enumerate(known.names or ())}
        self._ends, self._columns, self._counts = array("q", [0]), array("q"), array("f")

    def append(self, names: Iterable[str]) -> None:
        """Add a row."""
        counts = Counter(map(self._place, names))
        counts.pop(-1, None)
        self._columns.extend(counts.keys())
        self._counts.extend(counts.values())
        self._ends.append(len(self._columns))

    def _place(self, name: str) -> int:
        if self._known.hashed is not None:
            return _hashed(name, self._known.hashed)
        if self._known.count is not None:
            return self._places.setdefault(name, len(self._places))
        return self._places.get(name, -1)

    def finish(self) -> Any:
        """The rows, as CSR."""
        from scipy.sparse import csr_matrix

        parts = (np.array(self._counts), np.array(self._columns), np.array(self._ends))
        shape = (len(self._ends) - 1, self._known.hashed or len(self._places))
        matrix = csr_matrix(parts, shape=shape)
        matrix.sort_indices()
        return matrix

    def choose(self, clients: NDArray[np.int64]) -> tuple[Any, tuple[str, ...] | None]:
        """The counts [rows, columns] (CSR), and the columns' names; `clients` own the rows."""
        counts = self.finish()
        if self._known.count is None:
            return counts, self._known.names
        found, users = list(self._places), _users(counts, clients)
        chosen = sorted(range(len(found)), key=lambda i: (-users[i], found[i]))[: self._known.count]
        return counts[:, np.array(chosen, dtype=np.int64)], tuple(found[i] for i in chosen)

    def disclosed(self, chosen: int, what: str, otherwise: str) -> tuple[str, ...]:
        """What choosing the columns gave away, as a sentence for people."""
        if self._known.count is None:
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


def _check(**options: int | None) -> None:
    for name, value in options.items():
        if value is not None and not 1 <= value <= MOST:
            raise PmtlError(f"{name}={value} was given: it is at least 1, and {MOST:,} at most.")
