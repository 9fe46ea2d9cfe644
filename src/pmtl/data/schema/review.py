"""The TOML text of a schema, and `pmtl data schema`: one for a person to review."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from pmtl.data.readers.columns import TABLES, assign_roles
from pmtl.data.readers.table import open_table
from pmtl.data.schema.column import EPOCH, Column
from pmtl.data.schema.infer import Inferred, infer
from pmtl.data.schema.schema import VERSION, Schema
from pmtl.errors import PmtlError, errors_naming
from pmtl.spec import unknown

HEADING = """\
What the columns of {name} hold. This was inferred from the rows.
Check every column, and remove what is not known without the clients' rows: a category that only
one client has, or an indicator of empty cells that only one client has. Then write public = true,
by which you state that all of this is known without the rows. Production needs it.
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
    given = {key: value for key, value in options.items() if key != "task"}
    with errors_naming(str(path)), open_table(path) as table:
        roles = assign_roles(table.names, table.where, **given)
        found = infer(table, roles, options.get("task"), review=True)
    return found, to_toml(found.schema, found.notes, HEADING.format(name=path.name))


def to_toml(schema: Schema, notes: Mapping[str, str] | None = None, heading: str = "") -> str:
    """The text of a schema's file, with comments: `notes` by column, a `heading` for the file."""
    public = "true" if schema.public else "false"
    parts = [_comment(heading) + f"version = {VERSION}\npublic = {public}\n"]
    for column in schema.columns:
        text = tomli_w.dumps({"columns": {column.name: _values(column)}})
        # An empty table is written with its parent's name alone.
        note = _comment((notes or {}).get(column.name, ""))
        parts.append(note + text.replace("[columns]\n\n", ""))
    return "\n".join(parts)


def _values(column: Column) -> dict[str, Any]:
    values = column.to_dict()
    for key in ("low", "high"):
        if column.kind == "date" and key in values:
            moment = EPOCH + datetime.timedelta(days=values[key])
            values[key] = moment.date() if moment.time() == datetime.time() else moment
    return values


def _comment(text: str) -> str:
    printable = ("".join(c if c.isprintable() else "?" for c in line) for line in text.splitlines())
    return "".join(f"# {line}".rstrip() + "\n" for line in printable)
