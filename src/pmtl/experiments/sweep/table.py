"""The results of a comparison as a tidy table: one line for each run, split, view and metric."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pmtl import storage as files
from pmtl.report.tables import chosen_cells, comparison_cells, selection_cells
from pmtl.spec import parse_spec, unknown
from pmtl.views import html
from pmtl.views.frames import columns_of, csv_text, flat_row, make_frame

TABLE_FILE = "results.csv"
#: Columns before and after the columns of the settings that vary.
_ABOUT = ("run", "name", "method", "algorithm")
_MEASURED = ("epsilon", "seed", "split", "view", "metric", "value", "failure")


class Comparison(dict[str, Any]):
    """The content of `results.json`, which is also a table, and shows itself as one."""

    def __repr__(self) -> str:
        algorithms = ", ".join(dict.fromkeys(row["algorithm"] for row in self["summary"]))
        runs, clients = len(self["runs"]), self["clients"]
        return f"<Comparison of {algorithms}: {runs} runs, {clients:,} clients>"

    def _repr_html_(self) -> str:
        cells = (chosen_cells(self), comparison_cells(self), selection_cells(self))
        tables = [html.table(*each) for each in cells if each[1]]
        sentences = self["verdict"]["sentence"].split("\n")
        paragraphs = [html.paragraph(sentence) for sentence in sentences]
        title = f"Comparison of {len(self['runs'])} runs on {self['clients']:,} clients"
        return html.block(title, *paragraphs, *tables)

    def columns(self) -> list[str]:
        """The names of the table's columns; one for each setting that varies."""
        names = dict.fromkeys(name for row in self["runs"] for name in _settings(row))
        return [*_ABOUT, *names, *_MEASURED]

    def lines(self) -> Iterator[dict[str, Any]]:
        """The lines of the table. A run that failed has one line, with the reason."""
        for row in self["runs"]:
            about = {name: row[name] for name in (*_ABOUT, "epsilon", "seed")}
            about |= _settings(row)
            about["failure"] = row.get("error") or row.get("not_finite")
            measured = [
                {"split": split, "view": view, "metric": metric, "value": value}
                for split in ("test", "validation")
                for view, values in (row.get(split) or {}).items()
                for metric, value in values.items()
            ]
            yield from ({**about, **each} for each in measured or [{}])

    def to_frame(self, what: str = "values") -> Any:
        """A table: a pandas DataFrame or, where pandas is not installed, a pyarrow Table.

        Args:
            what: "values", the lines of results.csv, one for each run, split, view and metric;
                "runs", one row for each run; or "summary", means and deviations over seeds.
        """
        if what == "values":
            return make_frame(columns_of(self._rows()))
        if what not in ("runs", "summary"):
            raise unknown("table of a comparison named", what, ("values", "runs", "summary"))
        return make_frame(columns_of(flat_row(row) for row in self[what]))

    def write_csv(self, folder: Path) -> None:
        """Write the table to `results.csv` in the folder of the comparison."""
        files.write_text(folder / TABLE_FILE, csv_text(self._rows()))

    def _rows(self) -> list[dict[str, Any]]:
        """The lines, each with all columns."""
        names = self.columns()
        return [{name: line.get(name) for name in names} for line in self.lines()]


def _settings(row: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run's algorithm, by names such as `pmtl:lam`, and those that vary."""
    method, options = parse_spec(row["algorithm"])
    own: dict[str, Any] = {f"{method}:{key}": value for key, value in options.items()}
    return {**own, **row["settings"]}
