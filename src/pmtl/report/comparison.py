"""The results of `compare`: a dictionary that shows itself as a table."""

from __future__ import annotations

from typing import Any

from pmtl.report.tables import chosen_cells, comparison_cells, selection_cells
from pmtl.views import html


class ComparisonView(dict[str, Any]):
    """The content of `results.json`, and how it looks."""

    def __repr__(self) -> str:
        algorithms = ", ".join(dict.fromkeys(row["algorithm"] for row in self["summary"]))
        runs, clients = len(self["runs"]), self["clients"]
        return f"<Comparison of {algorithms}: {runs} runs, {clients:,} clients>"

    def _repr_html_(self) -> str:
        cells = (chosen_cells(self), comparison_cells(self), selection_cells(self))
        tables = [html.table(*each) for each in cells if each[1]]
        sentences = self["verdict"]["sentence"].split("\n")
        told = [html.paragraph(sentence) for sentence in sentences]
        title = f"Comparison of {len(self['runs'])} runs on {self['clients']:,} clients"
        return html.block(title, *told, *tables)
