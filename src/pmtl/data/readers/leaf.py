"""LEAF's JSON (Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018).

A shard is `{"users": […], "num_samples": […], "user_data": {user: {"x": […], "y": […]}}}`. Data is
one shard, or a folder or `.zip` of shards; the folders `train/` and `test/` (at the top or below
`data/`) name the split. Shards are read one at a time. A user in several shards is one client.
CelebA's rows are names of images in `data/raw/img_align_celeba`, or in the folder `images`. LEAF's
text tasks (Shakespeare, Sent140, Reddit) are refused: there is no model for raw text.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmtl.data.checks import as_float32, row_chunks
from pmtl.data.client_names import Coded, Vocabulary
from pmtl.data.readers.archives import open_zip, read_member
from pmtl.data.readers.columns import Collector, Columns
from pmtl.errors import PmtlError, require_package
from pmtl.views.progress import progress_bar

MAX_IMAGE_WIDTH = 4096  #: the largest width of an image after resizing, in pixels
#: LEAF's folder of CelebA's images, below `celeba` or `celeba/data`.
IMAGES = ("data/raw/img_align_celeba", "raw/img_align_celeba")
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".webp")
#: The formats that are decoded. Pillow has more; one of them starts another program.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "WEBP")
#: Folders of shards, and the splits of their rows.
FOLDERS = {"train": "train", "test": "test", "validation": "validation", "val": "validation"}


@dataclass(frozen=True)
class Shard:
    """One JSON file: its name in error messages, the split of its folder, and its bytes."""

    name: str
    split: str | None
    read: Callable[[], bytes]


def read_leaf(
    path: Path, images: str | None = None, size: int = 84, progress: bool = False
) -> Columns:
    """The rows of a LEAF file, folder or zip.

    Args:
        path: the file, the folder or the zip.
        images: the folder of the images; by default LEAF's own.
        size: images are resized to this many pixels in width and height.
        progress: show a progress bar.
    """
    if images is not None and not Path(images).is_dir():
        raise PmtlError(f"images= names the folder {images}, which does not exist.")
    if not 1 <= size <= MAX_IMAGE_WIDTH:
        raise PmtlError(f"size={size} was given: images are 1 to {MAX_IMAGE_WIDTH} pixels wide.")
    usual = next((path / folder for folder in IMAGES if (path / folder).is_dir()), None)
    rows = _Rows(None if images is None else Path(images), usual, size)
    shards = _find_shards(path)
    with progress_bar("reading shards", len(shards), show=progress) as bar:
        for shard in shards:
            try:
                for user, x, y in _users(_parse(shard), shard):
                    for part in row_chunks(len(x), 3 * size**2):
                        rows.append(user, x[part], y[part], shard)
            except RecursionError:
                raise PmtlError(
                    f"{shard.name} is not a LEAF shard: its lists are nested too deeply."
                ) from None
            bar.advance()
    columns = rows.columns(with_split=shards[0].split is not None)
    if columns["split"] is not None:
        _refuse_untrained(columns["client"], columns["split"], path)
    return columns


def _find_shards(path: Path) -> list[Shard]:
    """The shards of a file, folder or zip, sorted by name."""
    if path.is_file() and path.suffix != ".zip":
        return [Shard(str(path), None, path.read_bytes)]
    found: dict[PurePosixPath, tuple[str, Callable[[], bytes]]] = {}
    if path.is_dir():
        for file in (*path.glob("*.json"), *path.glob("*/*.json"), *path.glob("data/*/*.json")):
            found[PurePosixPath(file.relative_to(path).as_posix())] = str(file), file.read_bytes
    else:
        with open_zip(path, "copy it again") as archive:
            names = {PurePosixPath(name): name for name in archive.namelist()}
        members = [
            name
            for name in names
            if name.suffix == ".json" and not name.parts[0].startswith(("__MACOSX", "."))
        ]
        tops = {name.parts[0] for name in members}
        wrapped = len(tops) == 1 and not tops & {*FOLDERS, "data"}  # All is in one folder.
        for name in members:
            inner = PurePosixPath(*name.parts[1:]) if wrapped and len(name.parts) > 1 else name
            found[inner] = f"{path}/{name}", partial(read_member, path, names[name])
    return [Shard(found[name][0], split, found[name][1]) for name, split in _choose(found, path)]


def _choose(names: dict[PurePosixPath, Any], path: Path) -> list[tuple[PurePosixPath, str | None]]:
    """The shards in split folders (at the top, else below data/), or, without any, those at the
    top. Other JSON files are intermediate ones of LEAF."""
    for base in (PurePosixPath(), PurePosixPath("data")):
        found: list[tuple[PurePosixPath, str | None]] = [
            (name, FOLDERS[name.parent.name])
            for name in sorted(names)
            if name.parent.parent == base and name.parent.name in FOLDERS
        ]
        if found:
            return found
    found = [(name, None) for name in sorted(names) if name.parent == PurePosixPath()]
    if not found:
        raise PmtlError(
            f"{path} holds no LEAF data: .json shards are expected in it, or in its folders "
            "train and test."
        )
    return found


def _parse(shard: Shard) -> dict[str, Any]:
    try:
        content = json.loads(shard.read())
    except ValueError as error:
        raise PmtlError(
            f"{shard.name} is not valid JSON ({error}): the file may be cut short; copy it again."
        ) from error
    if not isinstance(content, dict) or not isinstance(content.get("user_data"), dict):
        raise PmtlError(f"{shard.name} is not a LEAF shard: it has no 'user_data' by user.")
    if not isinstance(content.get("users"), list):
        raise PmtlError(f"{shard.name} is not a LEAF shard: it has no list 'users'.")
    return content


def _users(content: dict[str, Any], shard: Shard) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """The x and y of each user; the shard's lists must agree with each other."""
    users, user_data = Counter(map(str, content["users"])), content["user_data"]
    for user, count in users.items():
        if count > 1:
            raise PmtlError(f"{shard.name} lists the user {user!r} twice in 'users'.")
        if user not in user_data:
            raise PmtlError(f"{shard.name} lists the user {user!r}, who is not in its 'user_data'.")
    for user in user_data:
        if user not in users:
            raise PmtlError(f"{shard.name} has data of {user!r}, who is not in its list 'users'.")
    counts = content.get("num_samples")
    if counts is not None and (not isinstance(counts, list) or len(counts) != len(users)):
        raise PmtlError(f"{shard.name} needs one entry of 'num_samples' for each of its users.")
    for position, user in enumerate(users):
        rows = user_data[user]
        x, y = (rows.get("x"), rows.get("y")) if isinstance(rows, dict) else (None, None)
        if not isinstance(x, list) or not isinstance(y, list):
            raise PmtlError(f"The user {user!r} in {shard.name} needs the lists 'x' and 'y'.")
        stated = len(x) if counts is None else counts[position]
        if not len(x) == len(y) == stated:
            raise PmtlError(
                f"The user {user!r} in {shard.name} has {len(x)} x and {len(y)} y, but "
                f"'num_samples' says {stated}: the numbers must agree."
            )
        if x:
            yield user, x, y


class _Rows:
    """Collects rows; names of classes become codes."""

    def __init__(self, images: Path | None, usual: Path | None, size: int) -> None:
        self._images, self._usual, self._size = images, usual, size
        self._collector = Collector()
        self._first_y: NDArray[Any] | None = None
        self._classes: Vocabulary | None = None

    def append(self, user: str, x: list[Any], y: list[Any], shard: Shard) -> None:
        where = f"the user {user!r} in {shard.name}"
        features, targets = self._features(x, where), self._targets(y, where)
        self._collector.append(user, shard.split or "train", features, targets, where)

    def columns(self, with_split: bool) -> Columns:
        columns = self._collector.columns(with_split)
        if self._classes is not None:
            columns["y"] = self._classes.coded([columns["y"]])
        return columns

    def _features(self, x: list[Any], where: str) -> NDArray[Any]:
        if self._images is None and self._first_y is None and _names_images(x):
            self._images = self._usual
        if self._images is not None:
            if not all(isinstance(name, str) for name in x):
                raise PmtlError(
                    f"x of {where} is not a list of names of image files in {self._images}, but "
                    "images= or the x of other users says that it is."
                )
            return _read_images(self._images, x, self._size)
        try:
            if _holds_text(x[0]):
                raise ValueError
            features = as_float32(x)
        except (ValueError, TypeError, OverflowError) as error:
            if _names_images(x):
                raise PmtlError(
                    f"x of {where} are names of images, and there is no folder {IMAGES[0]} with "
                    "them: name their folder with images=FOLDER."
                ) from None
            if any(_holds_text(row) for row in x):
                raise PmtlError(
                    f"x of {where} is text. LEAF's text tasks are not supported: make it a table "
                    "of client, text and tag and read that with text=COLUMN."
                ) from None
            raise PmtlError(
                f"x of {where} is not rows of numbers of one length ({error})."
            ) from error
        return features[:, None] if features.ndim == 1 else features

    def _targets(self, y: list[Any], where: str) -> NDArray[Any]:
        """Numbers, or the codes of class names."""
        text = all(isinstance(value, str) for value in y)
        if text and self._first_y is None:
            self._classes = Vocabulary("target")
        if text and self._classes is not None:
            targets = np.array([self._classes.code(value) for value in y], dtype=np.int64)
        else:
            try:
                targets = np.asarray(None if any(_holds_text(value) for value in y) else y)
            except ValueError:
                targets = np.asarray(None)
            if self._images is not None and np.isin(targets, (0.0, 1.0)).all():
                targets = targets.astype(np.int64)  # CelebA's classes are written 0.0 and 1.0.
        self._first_y = targets if self._first_y is None else self._first_y
        if (
            targets.dtype.kind not in "iufb"
            or text != (self._classes is not None)
            or targets.shape[1:] != self._first_y.shape[1:]
        ):
            raise PmtlError(
                f"y of {where} is not like the others: every row needs a number, a class name, or "
                "a list of numbers of one length."
            )
        return targets


def _read_images(root: Path, names: Sequence[str], size: int) -> NDArray[np.uint8]:
    """[n, 3, size, size]: the images under `root` as bytes, in colour, resized to a square."""
    with require_package("Reading images needs Pillow: pip install 'pmtl[images]'."):
        from PIL import Image as pillow
    pixels = np.empty((len(names), 3, size, size), dtype=np.uint8)
    for position, name in enumerate(names):
        path = root / name
        if ".." in path.parts[len(root.parts) :] or not path.is_relative_to(root):
            raise PmtlError(f"The image {name!r} is outside of {root}, and is not read.")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                warnings.simplefilter("error", pillow.DecompressionBombWarning)
                with pillow.open(path, formats=FORMATS) as image:
                    square = image.convert("RGB").resize((size, size))
        except FileNotFoundError:
            raise PmtlError(
                f"The image {name!r} is not in {root}: set images= to the folder that holds it."
            ) from None
        except Exception as error:  # Decoders raise many kinds of errors.
            raise PmtlError(
                f"The image {path} cannot be read ({error}): replace the file or drop its row."
            ) from error
        pixels[position] = np.asarray(square).transpose(2, 0, 1)
    return pixels


def _names_images(x: list[Any]) -> bool:
    return all(isinstance(name, str) and name.lower().endswith(ENDINGS) for name in x)


def _holds_text(row: Any) -> bool:
    while isinstance(row, list) and row:
        if any(isinstance(item, str) for item in row):
            return True
        row = row[0]
    return isinstance(row, str)


def _refuse_untrained(client: Coded, split: Coded, path: Path) -> None:
    train = split.names.index("train") if "train" in split.names else -1
    trained = client.codes[split.codes == train]
    untrained = np.setdiff1d(np.arange(len(client.names)), trained)
    if len(untrained):
        raise PmtlError(
            f"The user {client.names[untrained[0]]!r} of {path} appears in test but never in train "
            f"({len(untrained)} such users): a personal model needs training rows. Split every "
            "user's samples, as LEAF's preprocess.sh does with '-t sample'."
        )
