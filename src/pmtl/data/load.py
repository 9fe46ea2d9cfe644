"""`load("PATH:key=value,…")` reads data in any format.

The ending of the path, the files in the folder, or `reader=` chooses the reader, a function of
`path` and its own options. It returns columns (`readers/columns.py`), which
`FederatedData.from_arrays` checks and groups by client. Options are the reader's parameters and
those in `COMMON`. docs/extending.md has a reader of a user's own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pmtl.data.checks import as_array, not_a_federation
from pmtl.data.federated import FederatedData
from pmtl.data.readers.bounds import read_bounds
from pmtl.data.readers.columns import TABLES, Columns
from pmtl.data.scaling import check_scale
from pmtl.data.schema import Schema
from pmtl.data.synthetic import synthetic
from pmtl.errors import PmtlError, PublicError, did_you_mean, errors_naming
from pmtl.plugins import Library, entries, error_text, find
from pmtl.spec import construct, explain_wrong_calls, format_spec, parse_spec, path_options, unknown
from pmtl.storage import as_path, disk_errors

COMMON = (
    *("task", "outputs", "validation", "test", "min_rows", "clients", "largest"),
    *("scale", "bounds"),
)
#: Options that name files or folders, beside those that a reader declares as a `Path`.
PATHS = ("images", "vocabulary", "taglist", "bounds", "schema")

Reader = Callable[..., Mapping[str, Any]]

_PACKAGE = "pmtl.data.readers"
READERS: Library[Reader] = Library(
    _PACKAGE,
    {
        "npz": "npz:read_npz",
        **dict.fromkeys(TABLES, "table:read_table"),
        "h5": "hdf5:read_hdf5",
        "hdf5": "hdf5:read_hdf5",
        "json": "leaf:read_leaf",
        "zip": "leaf:read_leaf",
    },
)
"""The readers of files by their endings: a module of `data/readers/`, and its function."""
FOLDERS = {
    "h5": ("*.h5",),
    "npz": ("x.npy", "x_data.npy", "y.npy"),
    "json": ("*.json", "*/*.json", "data/*/*.json"),
}
"""The readers of folders, each with files of which one must exist."""
_SPREADSHEETS = (".xlsx", ".xls", ".ods")


@explain_wrong_calls()
def load(
    spec: str | Path, *, progress: bool = False, production: bool = False, **options: Any
) -> FederatedData:
    """Read a federation.

    Args:
        spec: `PATH[:key=value,…]` or `synthetic[:key=value,…]`.
        progress: show a progress bar.
        production: leave out unusable rows. An error that might quote a client's row is replaced
            by a sentence on how the data's owner can see it.
        **options: options as keywords, which override those in the spec; None counts as not given.
    """
    if not isinstance(spec, (str, Path)):
        raise not_a_federation(spec)
    # A path may contain ":" and "=", so an existing path is not split.
    name, written = (str(spec), {}) if _exists(Path(spec)) else parse_spec(str(spec))
    given = {**written, **{key: value for key, value in options.items() if value is not None}}
    if name == "synthetic":
        return construct(synthetic, given, "synthetic", source=format_spec(name, given))

    path = as_path(name, "The data")
    # `source` has absolute paths, so that it can be read from every folder.
    kept = {**given}
    if not isinstance(kept.get("schema", ""), (str, Path)):  # The schema is not a file.
        kept = {key: value for key, value in given.items() if key != "schema"}
        kept |= {key: value for key, value in written.items() if key == "schema"}
    reader = choose_reader(path, given.pop("reader", None))
    files = {*PATHS, *path_options(reader)}
    paths = {key: str(as_path(str(at), key).resolve()) for key, at in kept.items() if key in files}
    source = format_spec(str(path.resolve()), kept | paths)
    if "bounds" in given:  # Its errors are reported before the rows are read.
        given["bounds"] = read_bounds(given["bounds"])
    check_scale(given.get("scale"))
    if "schema" in given:
        given["schema"] = Schema.of(given["schema"])
    # A reader may also have options of COMMON, to read no more clients than necessary.
    fixed, own_given = _arguments(reader, path, given, COMMON, progress, lenient=production)
    if production and "lenient" not in fixed:
        raise PublicError(
            f"The format of {path} is for experiments only: the rows of one client may decide how "
            "the rows of others are read. Save the rows as a table (CSV, Parquet) or as NumPy "
            "arrays for production; a reader of your own must have the parameter lenient."
        )
    common = {key: value for key, value in given.items() if key in COMMON}
    bad_rows = "drop" if production else "refuse"
    try:
        with errors_naming(str(path)):
            columns = {**_read(reader, own_given, path, fixed), "source": source}
            make = FederatedData.from_arrays
            return construct(make, common, path.name, **columns, bad_rows=bad_rows)
    except PublicError:
        raise
    except PmtlError:
        if not production:
            raise
        raise PublicError(
            f"{path} cannot be read. The reason may quote a client's rows, so it is not shown "
            f"here: `pmtl data show {source}` shows it to those who may see the data."
        ) from None
    except OSError as error:
        raise PmtlError(
            f"{error.filename or path} cannot be read: {error.strerror or error}."
        ) from error


def choose_reader(path: Path, name: str | None = None) -> Reader:
    """The reader for a path, or the one of this name."""
    if not _exists(path):
        raise _no_such_path(path)
    if name is None and path.is_dir():
        fits = (kind for kind, files in FOLDERS.items() if any(any(path.glob(f)) for f in files))
        name = next(fits, None)
        if name is None:
            raise PmtlError(
                f"The folder {path} holds no data: x.npy, .h5 files or LEAF's .json files are "
                "expected in it. To read a table, name the file."
            )
    endings = [*READERS, *entries("reader")]
    if name is None:
        fits = (ending for ending in endings if path.name.lower().endswith(f".{ending}"))
        name = next(fits, None)
    if name is None and path.suffix.lower() in _SPREADSHEETS:
        raise PmtlError(f"{path} is a spreadsheet: save its sheet as CSV (UTF-8), and give that.")
    if name is None:
        raise PmtlError(
            f"No reader knows the ending of {path}: data is .{', .'.join(endings)}, or a folder of "
            ".npy, .json or .h5. Name a reader of your own with reader=package.module:Name."
        )
    found: Reader = find("reader", name, READERS)
    try:
        inspect.signature(found)
    except (TypeError, ValueError) as error:  # It cannot be called, or Python does not know how.
        raise PmtlError(f"The reader {name!r} is not a function of `path`.") from error
    return found


def read_columns(path: Path, options: Mapping[str, str], others: Iterable[str]) -> dict[str, Any]:
    """The columns of rows to predict on; only `x` is needed. The reader follows from the file's
    ending, unless `options` names one. An option must be one of the reader's or of `others`."""
    reader = choose_reader(path, options.get("reader"))
    fixed, own = _arguments(reader, path, options, others, progress=False, lenient=False)
    return {**_read(reader, own, path, fixed, training=False)}


def _arguments(
    reader: Reader,
    path: Path,
    given: Mapping[str, Any],
    others: Iterable[str],
    progress: bool,
    lenient: bool,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments that every reader with such parameters gets, and the reader's own options."""
    parameters = inspect.signature(reader).parameters
    fixed: dict[str, Any] = {"path": path, "progress": progress, "lenient": lenient}
    fixed = {key: value for key, value in fixed.items() if key in ("path", *parameters)}
    own = [option for option in parameters if option not in fixed]
    for option in given:
        if option not in (*own, *others):
            names = dict.fromkeys(("reader", *own, *others))
            raise unknown(f"option of {path.name} named", option, tuple(names))
    return fixed, {key: value for key, value in given.items() if key in own}


def _read(
    reader: Reader,
    options: Mapping[str, Any],
    path: Path,
    fixed: Mapping[str, Any],
    training: bool = True,
) -> Mapping[str, Any]:
    """The columns that a reader returns; errors of a user's reader become `PmtlError`."""
    name = getattr(reader, "__name__", str(reader))
    try:
        columns = construct(reader, options, path.name, **fixed)
    except (Exception, SystemExit) as error:
        if isinstance(error, PmtlError) or reader.__module__.startswith(_PACKAGE):
            raise
        hint = "" if training else " It may leave y out for rows to predict on."
        raise PmtlError(
            f"The reader {name} failed on {path} ({error_text(error)}).{hint}"
        ) from error
    known, needed = set(Columns.__annotations__), {"x", "y", "client"} if training else {"x"}
    if not isinstance(columns, Mapping) or not needed <= set(columns) <= known:
        raise PmtlError(
            f"The reader {name} must return a dictionary with "
            f"{'x, y and client' if training else 'x'}, and optionally "
            f"{', '.join(sorted(known - needed))}."
        )
    for part in ("feature_names", "target_names", "labels"):
        if isinstance(columns.get(part, []), (str, int, float)):
            raise PmtlError(
                f"The reader {name} must return {part} as a list, but it is {columns[part]!r}."
            )
    with errors_naming(f"{path}, as the reader {name} returned it"):
        words = {"x": "features", "client": "clients"} | ({"y": "targets"} if training else {})
        lists = [part for part in words if type(columns.get(part)) is list]
        return {**columns, **{part: as_array(columns[part], words[part]) for part in lists}}


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # e.g. a name that is too long
        return False


def _no_such_path(path: Path) -> PmtlError:
    folder = path.parent
    if not folder.is_dir():
        return PmtlError(f"There is no file or folder {path}: the folder {folder} does not exist.")
    with disk_errors(f"The folder {folder}", "read"):
        known = [file.name for file in folder.iterdir()]
    if folder == Path():
        known.append("synthetic")
    hint = did_you_mean(path.name, known) or " Check the path."
    return PmtlError(f"There is no file or folder {path}.{hint}")
