"""The results of a comparison as a tidy table: one line for each run, split, view and metric."""

from __future__ import annotations

from typing import Any

from pmtl.errors import how_many
from pmtl.report.tables import filled_cells
from pmtl.spec import parse_spec, unknown
from pmtl.views import html
from pmtl.views.frames import columns_of, flat_row, make_frame

#: Columns before and after those of the settings that vary.
_ABOUT = ("run", "name", "method", "algorithm")
_MEASURED = ("epsilon", "seed", "split", "view", "metric", "value", "failure")


class Comparison(dict[str, Any]):
    """The content of `results.json`, which is also a table, and shows itself as one."""

    def __repr__(self) -> str:
        algorithms = ", ".join(dict.fromkeys(row["algorithm"] for row in self["summary"]))
        runs, clients = len(self["runs"]), self["clients"]
        return (
            f"<Comparison of {algorithms}: {how_many(runs, 'run')}, {how_many(clients, 'client')}>"
        )

    def _repr_html_(self) -> str:
        tables = [html.table(*each) for each in filled_cells(self)]
        sentences = self["verdict"]["sentence"].split("\n")
        paragraphs = [html.paragraph(sentence) for sentence in sentences]
        title = (
            f"Comparison of {how_many(len(self['runs']), 'run')} on "
            f"{how_many(self['clients'], 'client')}"
        )
        return html.block(title, *paragraphs, *tables)

    def lines(self) -> list[dict[str, Any]]:
        """The lines of `results.csv`, each with all columns, one for each setting that varies among
        them. A run that failed has one line, with the reason."""
        varied = dict.fromkeys(name for row in self["runs"] for name in _settings(row))
        names = [*_ABOUT, *varied, *_MEASURED]
        lines = []
        for row in self["runs"]:
            about = {**row, **_settings(row), "failure": row.get("error") or row.get("not_finite")}
            measured = [
                {"split": split, "view": view, "metric": metric, "value": value}
                for split in ("test", "validation")
                for view, values in (row.get(split) or {}).items()
                for metric, value in values.items()
            ]
            for each in measured or [{}]:
                line = about | each
                lines.append({name: line.get(name) for name in names})
        return lines

    def to_frame(self, what: str = "values") -> Any:
        """A table: a pandas DataFrame or, where pandas is not installed, a pyarrow Table.

        Args:
            what: "values", the lines of results.csv, one for each run, split, view and metric;
                "runs", one row for each run; or "summary", means and deviations over seeds.
        """
        if what == "values":
            return make_frame(columns_of(self.lines()))
        if what not in ("runs", "summary"):
            raise unknown("table of a comparison named", what, ("values", "runs", "summary"))
        return make_frame(columns_of(flat_row(row) for row in self[what]))


def _settings(row: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run's algorithm, by names such as `pmtl:lam`, and those that vary."""
    method, options = parse_spec(row["algorithm"])
    own: dict[str, Any] = {f"{method}:{key}": value for key, value in options.items()}
    return {**own, **row["settings"]}
