"""`load("PATH:key=value,…")`: the one door for data, whatever its format.

The ending of the path (or what lies in the folder) chooses the reader, the reader hands over
columns, and `FederatedData.from_arrays` checks them and groups them by client. Options are the
parameters of the reader and those below, which every file has.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pmtl.data.checks import as_model_input, check_features
from pmtl.data.federated import FederatedData
from pmtl.data.readers.columns import Columns
from pmtl.data.readers.hdf5 import HDF5_ENDINGS, read_hdf5
from pmtl.data.readers.leaf import read_leaf
from pmtl.data.readers.npz import read_folder, read_npz, read_x
from pmtl.data.readers.table import (
    TABLE_ENDINGS,
    read_known_columns,
    read_known_texts,
    read_table,
)
from pmtl.data.readers.text import Known, TextRule, frequencies
from pmtl.data.synthetic import synthetic
from pmtl.errors import PmtlError, PublicError, naming
from pmtl.spec import construct, format_spec, parse_spec, unknown

COMMON = ("task", "outputs", "validation", "test", "min_rows", "clients", "largest", "scale")
PATHS = ("images", "vocabulary", "taglist")
"""Options that name files or folders."""
FORMATS = (
    ".npz, .csv, .tsv (also .gz), .parquet, LEAF's .json or .zip, TensorFlow Federated's .h5, or a "
    "folder of .npy, .json or .h5"
)

Reader = Callable[..., Columns]


def load(
    spec: str | Path, *, progress: bool = False, production: bool = False, **options: Any
) -> FederatedData:
    """The federation that `spec` names: `PATH[:key=value,…]` or `synthetic[:key=value,…]`.

    Options may be written in the spec or given as keywords, which win. With `progress`, formats
    that take their time show a bar. In `production` a row that cannot be used is left out, and an
    error that might quote a client's row says only how its owner can see it.
    """
    # A path may hold ":" and "=", so one that exists is not taken apart.
    name, written = (str(spec), {}) if _exists(Path(spec)) else parse_spec(str(spec))
    given = {**written, **{key: value for key, value in options.items() if value is not None}}
    if name == "synthetic":
        source = format_spec(name, given)
        return construct(synthetic, given, "synthetic", source=source)

    path, place = _places(name)
    # Written down so that it means the same from any folder.
    paths = {key: str(_places(value)[1]) for key, value in given.items() if key in PATHS}
    source = format_spec(str(place), given | paths)
    reader = choose_reader(path)
    if production and reader in (read_leaf, read_hdf5):
        raise PublicError(
            f"{path} is LEAF's or TensorFlow Federated's format, which is read for experiments "
            "only: one client's part of it decides how everybody's is read. Save the rows as a "
            "table (CSV, Parquet) or as NumPy arrays for production."
        )
    parameters = inspect.signature(reader).parameters
    asked = {"progress": progress, "lenient": production}
    fixed = {"path": path} | {key: value for key, value in asked.items() if key in parameters}
    own = [option for option in parameters if option not in fixed]
    for option in given:
        if option not in (*own, *COMMON):
            raise unknown(f"option of {path.name} named", option, (*own, *COMMON))
    # A reader that has an option of this kind, too, reads no more clients than are asked for.
    own_given = {key: value for key, value in given.items() if key in own}
    common = {key: value for key, value in given.items() if key in COMMON}
    bad_rows = "drop" if production else "refuse"
    try:
        with naming(str(path)):
            columns = construct(reader, own_given, path.name, **fixed)
            return construct(
                *(FederatedData.from_arrays, common, path.name),
                **columns,
                source=source,
                bad_rows=bad_rows,
            )
    except PublicError:
        raise
    except PmtlError:
        if not production:
            raise
        raise PublicError(
            f"{path} cannot be read. What is wrong may quote a client's rows, so it is not said "
            f"here: `pmtl data show {source}` tells whoever may see the data."
        ) from None
    except OSError as error:
        raise PmtlError(
            f"{error.filename or path} cannot be read: {error.strerror or error}."
        ) from error


def load_features(
    path: str | Path,
    shape: tuple[int, ...],
    names: Sequence[str] | None,
    text: TextRule | None = None,
) -> Any:
    """Rows without targets, for a model to answer, as an array or a CSR matrix.

    Args:
        path: a table, whose columns are found by name (others are ignored), a .npz (`x`) or a .npy.
        shape: the shape of a row that the model reads.
        names: the names of the features in training; None if they had none.
        text: how text became features in training, if it did.
    """
    path = Path(path)
    if not path.is_file():
        raise PmtlError(f"There is no file {path} to predict on.")
    is_table = path.name.lower().endswith(TABLE_ENDINGS)
    with naming(str(path)):
        if text is not None:
            if not is_table:
                raise PmtlError(
                    f"{path} is no table: this model reads text, from .csv, .tsv or .parquet."
                )
            bags = Known(names=None if names is None else tuple(names), hashed=text.hashed).bags()
            for row in read_known_texts(path, text.columns):
                bags.append(text.words(row))
            return check_features(frequencies(bags.finish()), None)
        x = read_known_columns(path, shape, names) if is_table else read_x(path)
        if x.shape[1:] != shape:
            raise PmtlError(
                f"{path} holds rows of shape {x.shape[1:]}, but the model reads {shape}."
            )
        return as_model_input(check_features(x, names))


def choose_reader(path: Path) -> Reader:
    """The reader for a path; a path that is not there is told with its likely neighbour."""
    if not _exists(path):
        raise _absent(path)
    name = path.name.lower()
    if path.is_dir():
        if any(path.glob("*.h5")):
            return read_hdf5
        numpy = any((path / file).exists() for file in ("x.npy", "x_data.npy", "y.npy"))
        return read_folder if numpy else read_leaf
    if name.endswith(".npz"):
        return read_npz
    if name.endswith(TABLE_ENDINGS):
        return read_table
    if name.endswith(HDF5_ENDINGS):
        return read_hdf5
    if name.endswith((".json", ".zip")):
        return read_leaf
    raise PmtlError(f"{path} has an ending that no reader knows: data is {FORMATS}.")


def _places(name: str) -> tuple[Path, Path]:
    """A path as it is written (but for ~), and as it is from anywhere."""
    try:
        path = Path(name).expanduser()
        return path, path.resolve()
    except (ValueError, RuntimeError) as error:  # A null character; the home of nobody.
        raise PmtlError(f"{name!r} is not a path: {error}.") from error


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # e.g. a name that is longer than any file's may be
        return False


def _absent(path: Path) -> PmtlError:
    folder = path.parent
    if not folder.is_dir():
        return PmtlError(f"There is no file or folder {path}: the folder {folder} does not exist.")
    try:
        known = [file.name for file in folder.iterdir()]
    except OSError as error:
        return PmtlError(f"The folder {folder} cannot be read: {error.strerror}.")
    if folder == Path():
        known.append("synthetic")
    near = difflib.get_close_matches(path.name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else " Check the path."
    return PmtlError(f"There is no file or folder {path}.{hint}")
