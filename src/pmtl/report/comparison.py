"""The results of `compare`: a dictionary that shows itself as a table."""

from __future__ import annotations

from typing import Any

from pmtl.errors import PmtlError
from pmtl.report.tables import comparison_cells, selection_cells
from pmtl.views import html
from pmtl.views.frames import columns_of, flat_row, make_frame


class Comparison(dict[str, Any]):
    """The content of `results.json`."""

    def to_frame(self, what: str = "runs") -> Any:
        """A table: a pandas DataFrame or, where pandas is not installed, a pyarrow Table.

        Args:
            what: "runs", one row for each run, or "summary", means and deviations over seeds.
        """
        if what not in ("runs", "summary"):
            raise PmtlError(f"There is no table of {what!r}: use 'runs' or 'summary'.")
        return make_frame(columns_of(flat_row(row) for row in self[what]))

    def __repr__(self) -> str:
        algorithms = ", ".join(dict.fromkeys(row["algorithm"] for row in self["summary"]))
        runs, clients = len(self["runs"]), self["clients"]
        return f"<Comparison of {algorithms}: {runs} runs, {clients:,} clients>"

    def _repr_html_(self) -> str:
        tables = [html.table(*cells) for cells in (comparison_cells(self), selection_cells(self))]
        sentences = self["verdict"]["sentence"].split("\n")
        told = [html.paragraph(sentence) for sentence in sentences]
        title = f"Comparison of {len(self['runs'])} runs on {self['clients']:,} clients"
        return html.block(title, *told, tables[0], *(tables[1:] if self["selection"] else []))
