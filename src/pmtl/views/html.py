"""A small piece of HTML for notebooks. Everything that is shown is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; the first cell of a row is its heading. The headings of columns may be empty."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in header)
    lines = [f"<thead><tr>{head}</tr></thead>"] if header else []
    lines.append("<tbody>")
    for first, *others in rows:
        cells = "".join(f"<td>{escape(str(cell))}</td>" for cell in others)
        lines.append(f'<tr><th scope="row">{escape(str(first))}</th>{cells}</tr>')
    return "".join(["<table>", *lines, "</tbody></table>"])


def block(title: str, *parts: str) -> str:
    """A heading, which is escaped, and the pieces of HTML that follow it."""
    return f"<div><p><strong>{escape(title)}</strong></p>{''.join(parts)}</div>"


def paragraph(words: str) -> str:
    """A paragraph of escaped words."""
    return f"<p>{escape(words)}</p>"
