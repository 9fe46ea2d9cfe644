"""A notebook as a page: its cells are run when the site is built, and shown with their results."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
from nbclient import NotebookClient


def page(path: Path) -> str:
    """The page of a notebook.

    Args:
        path: the `.ipynb` file. An error in a cell ends the build.
    """
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": "."}}).execute()
    parts = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        printed = "".join(one.text for one in cell.outputs if one.get("name") == "stdout")
        shown = [_text(printed), *(_value(one.data) for one in cell.outputs if "data" in one)]
        parts += [one for one in shown if one]
    download = f"\n\n[This page as a notebook]({path.name})\n"
    return "\n\n".join(parts) + download


def _value(data: nbformat.NotebookNode) -> str:
    """The value of a cell: a table in HTML if there is one, otherwise text."""
    if "text/html" in data:
        lines = re.sub(r"<style.*?</style>|\n\s*(?=\n)", "", data["text/html"], flags=re.S)
        return f'<div class="result">\n{lines}\n</div>'
    return _text(data.get("text/plain", ""))


def _text(printed: str) -> str:
    return f"```text\n{printed.rstrip()}\n```" if printed.strip() else ""
