"""TensorFlow Federated's HDF5 files: FEMNIST's pixels and StackOverflow's questions, by client.

The group `examples` holds a group for each client, with an array for each column: `pixels` and
`label`, or `tokens`, `title` and `tags` (separated by |). Data is one file, whose rows are then
split here, or a folder with `…_train.h5` and `…_test.h5`, whose clients are those with rows in
both. Clients are read in sorted order, with `clients=N` only up to the N-th: StackOverflow's file
is far larger than memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmtl.data.checks import check_lengths
from pmtl.data.client_names import canonical
from pmtl.data.disk import memory_limit
from pmtl.data.readers.columns import Collector, Columns, Owners
from pmtl.data.readers.hdf5_check import HeapCheck
from pmtl.data.readers.text import Bags, TextRule, split_tags
from pmtl.data.readers.text_rows import TextOptions, TextRows
from pmtl.errors import PmtlError, errors_naming, require_package
from pmtl.views.progress import progress_bar

GROUP = "examples"
#: The largest factor by which compression can shrink an array; Deflate: 1032.
MAX_COMPRESSION = 1100
PIXELS, QUESTIONS = ("pixels", "label"), ("tokens", "title", "tags")
WORDS, TAGS = 10_000, 500  #: the defaults of words= and tags=; the paper's numbers
WORD_COUNT, TAG_COUNT = "stackoverflow.word_count", "stackoverflow.tag_count"
#: LEAF's and TensorFlow Federated's numbering of FEMNIST's classes.
CHARACTERS = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")

Rows = dict[str, NDArray[Any]]


def read_hdf5(
    path: Path,
    words: int | None = None,
    vocabulary: str | None = None,
    hash: int | None = None,
    tags: int | None = None,
    taglist: str | None = None,
    min_rows: int = 0,
    clients: int | None = None,
    progress: bool = False,
) -> Columns:
    """The rows of TensorFlow Federated's files: pixels, or StackOverflow's words and tags.

    Args:
        path: the file or the folder.
        words: how many words are columns, the first of the list; 10,000 unless given.
        vocabulary: a file with the words; by default the list beside the data.
        hash: into how many columns words are hashed, instead of a list.
        tags: how many tags are targets, the first of the list; 500 unless given.
        taglist: a file with the tags; by default the list beside the data.
        min_rows: clients with fewer rows are left out.
        clients: at most this many clients are read.
        progress: show a progress bar.
    """
    options = TextOptions(words, vocabulary, hash, tags, taglist)
    with ExitStack() as stack:
        files = {
            split: _File(file, stack.enter_context(_opened(file)))
            for split, file in _files(path).items()
        }
        names = canonical(set.intersection(*(file.clients() for file in files.values())))
        if not names:
            raise PmtlError(f"{path} has no clients" + ("." if len(files) == 1 else " in both."))
        kind = next(iter(files.values())).kind(names[0])
        if kind == QUESTIONS:
            folder = path if path.is_dir() else path.parent
            rows: _Pixels | _Questions = _Questions(*_known(folder, options))
        elif options.given:
            raise PmtlError(f"{path} holds pixels: leave out the options about words and tags.")
        else:
            rows = _Pixels()
        bar = stack.enter_context(
            progress_bar("reading clients", clients or len(names), show=progress)
        )
        kept = 0
        for name in names:
            read = {
                split: rows.choose(file.rows(name, kind), f"client {name!r} of {file.path}")
                for split, file in files.items()
            }
            sizes = [len(part[kind[0]]) for part in read.values()]
            if not all(sizes) or sum(sizes) < min_rows:
                continue
            for split, part in read.items():
                rows.append(name, split, part)
            bar.advance()
            kept += 1
            if kept == clients:
                break
    if not kept:
        raise PmtlError(f"{path} has no client with enough rows: lower min_rows.")
    return rows.columns(with_split=len(files) > 1)


def _files(path: Path) -> dict[str, Path]:
    """The files by their split; a single file has all rows."""
    if not path.is_dir():
        return {"train": path}
    found = {split: sorted(path.glob(f"*_{split}.h5")) for split in ("train", "test")}
    for split, files in found.items():
        if len(files) != 1:
            raise PmtlError(
                f"{path} needs one file that ends in _{split}.h5, and has {len(files)}: name one "
                "file, or keep one data set in a folder."
            )
    return {split: files[0] for split, files in found.items()}


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """An open file; errors of h5py, also while it is read, become sentences."""
    with require_package(f"Reading {path} needs h5py: pip install 'pmtl[hdf5]'."):
        import h5py
    try:
        with h5py.File(path, "r") as file:
            yield file
    except PmtlError:
        raise
    except Exception as error:  # h5py raises many kinds of errors for a damaged file.
        reason = " ".join(str(error).split()).rstrip(".")
        raise PmtlError(
            f"{path} cannot be read as HDF5 ({reason}): it may be cut short; fetch or copy it "
            "again."
        ) from error


class _File:
    def __init__(self, path: Path, file: Any) -> None:
        self.path, self._file = path, file
        self._heap_check = HeapCheck(path)

    def clients(self) -> set[str]:
        group = self._file.get(GROUP)
        if group is None or not hasattr(group, "keys"):
            raise PmtlError(
                f"{self.path} has no group {GROUP!r}, which holds the clients in files of "
                "TensorFlow Federated: it is another kind of file."
            )
        return {str(name) for name in group}

    def kind(self, client: str) -> tuple[str, ...]:
        held = sorted(self._group(client))
        for kind in (PIXELS, QUESTIONS):
            if set(kind) <= set(held):
                return kind
        raise PmtlError(
            f"The client {client!r} of {self.path} has {', '.join(held) or 'nothing'}: "
            f"{', '.join(PIXELS)} or {', '.join(QUESTIONS)} are needed."
        )

    def rows(self, client: str, columns: tuple[str, ...]) -> Rows:
        """One client's columns, which have the same length."""
        import h5py

        group = self._group(client)
        rows: Rows = {}
        for name in columns:
            column = group.get(name)
            where = f"The column {name!r} of the client {client!r} of {self.path}"
            if column is None or not getattr(column, "shape", ()):
                raise PmtlError(f"The client {client!r} of {self.path} has no column {name!r}.")
            # A damaged file may state any shape, and h5py would allocate memory for it.
            compression = 1 if column.chunks is None else MAX_COMPRESSION
            most = min(memory_limit(), compression * self._file.id.get_filesize())
            if column.size * column.dtype.itemsize > most:
                raise PmtlError(
                    f"{where} has shape {column.shape}, more than the file or memory can hold: it "
                    "is damaged."
                )
            if column.dtype.hasobject:
                if h5py.check_string_dtype(column.dtype) is None:
                    raise PmtlError(f"{where} holds neither text nor numbers.")
                self._heap_check.check(column)
            rows[name] = np.asarray(column[()])
        with errors_naming(f"client {client!r} of {self.path}"):
            check_lengths(**rows)
        return rows

    def _group(self, client: str) -> Any:
        group = self._file[GROUP].get(client)
        if group is None or not hasattr(group, "keys"):
            raise PmtlError(f"The client {client!r} of {self.path} is not a group of columns.")
        return group


class _Pixels:
    """FEMNIST: images of 28 × 28 between 0 and 1 (1 is white)."""

    def __init__(self) -> None:
        self._collector = Collector()

    def choose(self, rows: Rows, where: str) -> Rows:
        """The usable rows of one client: all of them."""
        x, y = rows["pixels"], rows["label"]
        if x.ndim < 2 or x.dtype.kind not in "fiu" or y.ndim != 1 or y.dtype.kind not in "iu":
            raise PmtlError(
                f"pixels of {where} are {x.dtype} of shape {x.shape} and label {y.dtype} of shape "
                f"{y.shape}: images of numbers and one whole number for each are needed."
            )
        return rows

    def append(self, client: str, split: str, rows: Rows) -> None:
        labels = rows["label"].astype(np.int64)
        self._collector.append(client, split, rows["pixels"], labels, f"client {client!r}")

    def columns(self, with_split: bool) -> Columns:
        columns = self._collector.columns(with_split)
        y = columns["y"]
        if 0 <= int(y.min()) <= int(y.max()) < len(CHARACTERS):
            columns["labels"] = CHARACTERS if y.max() > 9 else CHARACTERS[:10]
        return columns


class _Questions:
    """StackOverflow: the words of a question or answer and its title, and its tags."""

    def __init__(self, words: Bags, tags: Bags) -> None:
        self._rows = TextRows(TextRule(QUESTIONS[:2], tokenised=True), words, tags)
        self._tags = frozenset(tags.names or ())
        self._owners = Owners()

    def choose(self, rows: Rows, where: str) -> Rows:
        """The usable rows of one client: those with a known tag."""
        for name, column in rows.items():
            if column.ndim != 1 or column.dtype.kind not in "OSU":
                raise PmtlError(
                    f"{name} of {where} is {column.dtype} of shape {column.shape}, not text."
                )
        texts = {name: [_text(value) for value in column] for name, column in rows.items()}
        known = [not self._tags.isdisjoint(split_tags(tags)) for tags in texts["tags"]]
        kept = np.array(known, dtype=bool)
        return {name: np.array(column, dtype=object)[kept] for name, column in texts.items()}

    def append(self, client: str, split: str, rows: Rows) -> None:
        self._owners.append(client, split, len(rows["tags"]))
        for tokens, title, tags in zip(*(rows[name] for name in QUESTIONS), strict=True):
            self._rows.append(f"{tokens} {title}")
            self._rows.append_tags(tags)

    def columns(self, with_split: bool) -> Columns:
        client, split = self._owners.coded()
        return self._rows.finish(client, split if with_split else None)


def _known(folder: Path, options: TextOptions) -> tuple[Bags, Bags]:
    """Bags of the words and tags of the publisher's lists, unless others are named."""
    if options.vocabulary is None and options.hash is None and (folder / WORD_COUNT).exists():
        options = replace(options, vocabulary=str(folder / WORD_COUNT))
    if options.taglist is None and (folder / TAG_COUNT).exists():
        options = replace(options, taglist=str(folder / TAG_COUNT))
    known = None if options.taglist is None else options.tag_bags(TAGS)
    if known is None:
        raise PmtlError(
            f"There is no list of tags in {folder}: put {TAG_COUNT} there (pmtl data fetch "
            "stackoverflow does) or name one with taglist=FILE."
        )
    return options.word_bags(WORDS), known


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
