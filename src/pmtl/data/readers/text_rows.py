"""Text and tags as columns of a federation: the known words and tags, and their rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmtl.data.client_names import Coded
from pmtl.data.readers.columns import Columns
from pmtl.data.readers.text import Bags, TextRule, frequencies, split_tags
from pmtl.errors import PmtlError
from pmtl.storage import disk_errors

COLUMNS = 10_000  #: the default number of columns for hashed words
MAX_COLUMNS = 2**24  #: the largest number of columns of words or tags
LIST_WORDS = "name the words beforehand (vocabulary=FILE) or hash them (hash=N)"
LIST_TAGS = "name the tags beforehand (taglist=FILE)"


@dataclass(frozen=True)
class TextOptions:
    """The options of a reader that say which words and tags are known."""

    words: int | None
    vocabulary: str | None
    hash: int | None
    tags: int | None
    taglist: str | None

    @property
    def given(self) -> list[str]:
        """The options that are not None."""
        return [item.name for item in fields(self) if getattr(self, item.name) is not None]

    def word_bags(self, first: int | None = None) -> Bags:
        """Bags of the known words. `first` is the default of `words` with a list."""
        self._check("words", "hash")
        if self.hash is not None and (self.words is not None or self.vocabulary is not None):
            raise PmtlError(
                "hash= was given beside words= or vocabulary=: words are hashed, or they are "
                "listed."
            )
        if self.vocabulary is not None:
            return Bags(read_list(Path(self.vocabulary), self.words, "word", first))
        return Bags(hashed=self.hash or COLUMNS) if self.words is None else Bags(count=self.words)

    def tag_bags(self, first: int | None = None) -> Bags | None:
        """Bags of the known tags, if the target is tags."""
        self._check("tags")
        if self.taglist is not None:
            return Bags(read_list(Path(self.taglist), self.tags, "tag", first))
        return None if self.tags is None else Bags(count=self.tags)

    def _check(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and not 1 <= value <= MAX_COLUMNS:
                raise PmtlError(
                    f"{name}={value} was given: it is at least 1, and {MAX_COLUMNS:,} at most."
                )


def read_list(path: Path, most: int | None, what: str, usual: int | None = None) -> tuple[str, ...]:
    """The first `most` (by default `usual`) names of a file. It has one name per line (a count may
    follow, as in TensorFlow Federated's `word_count`), or is a JSON list, or a JSON object of names
    and counts (as in `tag_count`), which is sorted by count, largest first."""
    try:
        with disk_errors(f"The list of {what}s {path}", "read"):
            text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise PmtlError(f"The list of {what}s {path} cannot be read: {error}.") from error
    names = list(dict.fromkeys(_names(text, path, what)))
    if not names:
        raise PmtlError(f"The list of {what}s {path} is empty.")
    if most is not None and most > len(names):
        raise PmtlError(f"{path} has {len(names):,} {what}s, but {most:,} were asked for.")
    return tuple(names[: most or usual])


def _names(text: str, path: Path, what: str) -> Iterable[str]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    if isinstance(content, dict):
        if not all(isinstance(count, (int, float)) for count in content.values()):
            raise PmtlError(f"{path} is not a list of {what}s: every {what} needs a count.")
        return sorted(content, key=lambda name: -content[name])
    if isinstance(content, list):
        if not all(isinstance(name, str) for name in content):
            raise PmtlError(f"{path} is not a list of {what}s: it holds values that are not text.")
        return content
    # Only the end of a line is a count: a tag may contain spaces.
    lines = (re.sub(r"\s+[0-9]+$", "", line.strip()) for line in text.splitlines())
    return [line for line in lines if line]


class TextRows:
    """Collects texts and, if the target is tags, tags.

    A row without any known tag has no target. `finish` leaves it out.
    """

    def __init__(self, rule: TextRule, words: Bags, tags: Bags | None = None) -> None:
        self._rule = replace(rule, hashed=words.hashed)
        self._words, self._tags = words, tags

    @property
    def tagged(self) -> bool:
        """Whether tags are the target."""
        return self._tags is not None

    def append(self, text: str) -> None:
        self._words.append(self._rule.words(text))

    def append_tags(self, text: str) -> None:
        if self._tags is not None:
            self._tags.append(split_tags(text))

    def finish(
        self,
        client: Coded,
        split: Coded | None = None,
        y: Any = None,
        labels: tuple[str, ...] | None = None,
        usable: NDArray[np.bool_] | None = None,
    ) -> Columns:
        """All columns. `y` and `labels` are the targets and their names, unless the targets are
        tags; `usable` marks the usable rows."""
        x, words = self._words.choose(client.codes)
        if words and x.shape[0] and x.nnz == 0:
            raise PmtlError(
                "No row has a known word: check that the vocabulary fits the texts and their "
                "language."
            )
        if not x.shape[1]:
            raise PmtlError("The text columns contain no words: correct text=.")
        disclosed = self._words.disclosed(x.shape[1], "word", LIST_WORDS)
        if self._tags is not None:
            counts, labels = self._tags.choose(client.codes)
            tagged = np.flatnonzero(np.diff(counts.indptr))
            if not len(tagged):
                raise PmtlError("No row has a known tag: correct the target or the list.")
            disclosed += self._tags.disclosed(counts.shape[1], "tag", LIST_TAGS)
            x, y = x[tagged], counts[tagged].astype(bool).astype(np.uint8)
            client = Coded(client.codes[tagged], client.names)
            split = None if split is None else Coded(split.codes[tagged], split.names)
            usable = None if usable is None else usable[tagged]
        return Columns(
            x=frequencies(x),
            y=y,
            client=client,
            split=split,
            feature_names=words,
            labels=labels,
            text=self._rule,
            disclosed=disclosed,
            usable=usable,
        )
