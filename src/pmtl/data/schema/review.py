"""`pmtl data schema`: a schema for a person to review."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pmtl.data.readers.columns import TABLES, assign_roles, dropped_names
from pmtl.data.readers.table import open_table
from pmtl.data.schema.file import to_toml
from pmtl.data.schema.infer import Inferred, infer
from pmtl.errors import PmtlError, naming
from pmtl.spec import unknown

HEADING = """\
What the columns of {name} hold. This was inferred from the rows.
Check every column, and take out what nobody may know without the clients' rows: a category that
only one client has, or an indicator of empty cells that only one client has. Then write
public = true: your word that all of this is known without the rows. Production asks for it.
Settings: kind = number, category, boolean, date or text; role = feature, target, client, split or
dropped; low and high; categories, or hash = N; unknown = zeros, other or refuse; missing =
indicator, fill, drop or refuse; missing_values; decimal of numbers; format and parts of dates
(docs/tables.md).
"""
_OPTIONS = ("client", "target", "split", "drop", "task")


def review(path: Path, options: Mapping[str, str]) -> tuple[Inferred, str]:
    """The schema that fits a table, and its file with comments. The options are client, target,
    split, drop and task, as in a spec."""
    for option in options:
        if option not in _OPTIONS:
            raise unknown(f"option of {path.name} named", option, _OPTIONS)
    if not path.name.lower().endswith(tuple(f".{ending}" for ending in TABLES)):
        raise PmtlError(f"{path} is not a table: a schema is for .{', .'.join(TABLES)}.")
    if not path.is_file():
        raise PmtlError(f"There is no file {path}: check the path.")
    client, target, split = (options.get(key) for key in ("client", "target", "split"))
    drop = options.get("drop", "")
    with naming(str(path)), open_table(path) as table:
        roles = assign_roles(table.names, table.where, client, target, split, drop)
        found = infer(table, roles, options.get("task"), dropped_names(drop), review=True)
    return found, to_toml(found.schema, found.notes, HEADING.format(name=path.name))
