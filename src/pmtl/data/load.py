"""`load("PATH:key=value,…")`: the one door for data, whatever its format.

The ending of the path (or what lies in the folder) chooses the reader, the reader hands over
columns, and `FederatedData.from_arrays` checks them and groups them by client. Options are the
parameters of the reader and those below, which every file has.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pmtl.data.columns import Columns
from pmtl.data.federated import FederatedData
from pmtl.data.leaf import read_leaf
from pmtl.data.npz import read_folder, read_npz
from pmtl.data.synthetic import synthetic
from pmtl.data.table import CSV_ENDINGS, PARQUET_ENDINGS, read_csv, read_parquet
from pmtl.errors import PmtlError
from pmtl.spec import construct, format_spec, parse_spec, unknown

COMMON = ("task", "outputs", "validation", "test", "min_rows", "clients", "scale")
FORMATS = (
    ".npz, .csv, .tsv (also .gz), .parquet, LEAF's .json or .zip, or a folder of .npy or .json"
)

Reader = Callable[..., Columns]


def load(spec: str | Path, **options: Any) -> FederatedData:
    """The federation that `spec` names: `PATH[:key=value,…]` or `synthetic[:key=value,…]`.

    Options may be written in the spec or given as keywords, which win.
    """
    # A path may hold ":" and "=", so one that exists is not taken apart.
    name, written = (str(spec), {}) if _exists(Path(spec)) else parse_spec(str(spec))
    given = {**written, **{key: value for key, value in options.items() if value is not None}}
    # Written down so that it means the same from any folder.
    place = str(Path(name).expanduser().resolve()) if name != "synthetic" else name
    paths = {k: str(Path(v).resolve()) for k, v in given.items() if k == "images"}
    source = format_spec(place, given | paths)
    if name == "synthetic":
        return construct(synthetic, given, "synthetic", source=source)

    path = Path(name).expanduser()
    reader = choose_reader(path)
    own = [option for option in inspect.signature(reader).parameters if option != "path"]
    for option in given:
        if option not in (*own, *COMMON):
            raise unknown(f"option of {path.name} named", option, (*own, *COMMON))
    try:
        own_given = {key: value for key, value in given.items() if key in own}
        columns = construct(reader, own_given, path.name, path=path)
    except OSError as error:
        raise PmtlError(f"{error.filename or path} cannot be read: {error.strerror}.") from error
    common = {k: v for k, v in given.items() if k in COMMON}
    return construct(FederatedData.from_arrays, common, path.name, **columns, source=source)


def choose_reader(path: Path) -> Reader:
    """The reader for a path; a path that is not there is told with its likely neighbour."""
    if not _exists(path):
        raise _absent(path)
    name = path.name.lower()
    if path.is_dir():
        numpy = any((path / file).exists() for file in ("x.npy", "x_data.npy", "y.npy"))
        return read_folder if numpy else read_leaf
    if name.endswith(".npz"):
        return read_npz
    if name.endswith(CSV_ENDINGS):
        return read_csv
    if name.endswith(PARQUET_ENDINGS):
        return read_parquet
    if name.endswith((".json", ".zip")):
        return read_leaf
    raise PmtlError(f"{path} has an ending that no reader knows: data is {FORMATS}.")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # e.g. a name that is longer than any file's may be
        return False


def _absent(path: Path) -> PmtlError:
    folder = path.parent
    if not folder.is_dir():
        return PmtlError(f"There is no file or folder {path}: the folder {folder} does not exist.")
    known = [file.name for file in folder.iterdir()]
    if folder == Path():
        known.append("synthetic")
    near = difflib.get_close_matches(path.name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else " Check the path."
    return PmtlError(f"There is no file or folder {path}.{hint}")
