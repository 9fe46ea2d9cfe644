"""Rows of text and tags, collected one by one, as the columns of a federation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmtl.data.client_names import Coded
from pmtl.data.readers.columns import Columns
from pmtl.data.readers.text import (
    Known,
    TextRule,
    frequencies,
    known_tags,
    known_words,
    split_tags,
)
from pmtl.errors import PmtlError

LIST_WORDS = "name the words beforehand (vocabulary=FILE) or hash them (hash=N)"
LIST_TAGS = "name the tags beforehand (taglist=FILE)"


def text_options(
    text: str | None,
    words: int | None,
    vocabulary: str | None,
    hash: int | None,
    tags: int | None,
    taglist: str | None,
) -> tuple[Known, Known | None] | None:
    """Which words and tags are known after a table's options; None if it has no text."""
    if text is not None:
        return known_words(words, vocabulary, hash), known_tags(tags, taglist)
    given = {"words": words, "vocabulary": vocabulary, "hash": hash}
    for name, value in (given | {"tags": tags, "taglist": taglist}).items():
        if value is not None:
            raise PmtlError(f"{name}= is about text: name its column with text=COLUMN.")
    return None


class TextRows:
    """Collects texts, and tags where these are the target.

    A row none of whose tags is known has no right answer, and is left out at the end.
    """

    def __init__(self, rule: TextRule, words: Known, tags: Known | None = None) -> None:
        self._rule = replace(rule, hashed=words.hashed)
        self._words = words.bags()
        self._tags = None if tags is None else tags.bags()

    @property
    def tagged(self) -> bool:
        """Whether tags are the target."""
        return self._tags is not None

    def append(self, text: str) -> None:
        """The next row's text."""
        self._words.append(self._rule.words(text))

    def append_tags(self, text: str) -> None:
        """The next row's tags."""
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
        """All columns; `y` and its `labels` are the targets where these are not tags, and `usable`
        marks the rows that can be used."""
        x, words = self._words.choose(client.codes)
        if words and x.shape[0] and x.nnz == 0:
            raise PmtlError(
                "No row has a word that is known: is the vocabulary one of other texts, or in "
                "another language?"
            )
        if not x.shape[1]:
            raise PmtlError("There is not a single word in the text columns: correct text=.")
        disclosed = self._words.disclosed(x.shape[1], "word", LIST_WORDS)
        if self._tags is not None:
            counts, labels = self._tags.choose(client.codes)
            tagged = np.flatnonzero(np.diff(counts.indptr))
            if not len(tagged):
                raise PmtlError("No row has a tag that is known: correct the target or the list.")
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
