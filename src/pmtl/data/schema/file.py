"""The TOML text of a schema, with comments for the person who reviews it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tomli_w

from pmtl.data.schema.column import EPOCH, Column

if TYPE_CHECKING:
    from pmtl.data.schema.schema import Schema


def to_toml(schema: Schema, notes: Mapping[str, str] | None = None, heading: str = "") -> str:
    """The text of a schema's file, with a comment for each column (`notes`, by its name) and one
    for the whole file (`heading`)."""
    from pmtl.data.schema.schema import VERSION

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
