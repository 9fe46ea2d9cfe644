"""The results of a comparison as a tidy table: one line for each run, split, view and metric."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pmtl import storage as files
from pmtl.errors import PmtlError
from pmtl.spec import parse_spec

if TYPE_CHECKING:
    import pandas

TABLE_FILE = "results.csv"
#: Columns before and after those of the settings that vary.
_ABOUT = ("run", "name", "method", "algorithm")
_MEASURED = ("epsilon", "seed", "split", "view", "metric", "value", "failure")


class Comparison(dict[str, Any]):
    """The content of `results.json`, which is also a table."""

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

    def to_frame(self) -> pandas.DataFrame:
        """The table as a pandas frame."""
        try:
            import pandas
        except ImportError as error:
            raise PmtlError(
                "A frame needs pandas: pip install pandas, or read results.csv instead."
            ) from error
        return pandas.DataFrame([*self.lines()], columns=self.columns())

    def write_csv(self, folder: Path) -> None:
        """Write the table to `results.csv`.

        Args:
            folder: the folder of the comparison.
        """
        text = io.StringIO()
        writer = csv.DictWriter(text, self.columns(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.lines())
        files.write_text(folder / TABLE_FILE, text.getvalue())


def _settings(row: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run's algorithm, by names such as `pmtl:lam`, and those that vary."""
    method, options = parse_spec(row["algorithm"])
    own: dict[str, Any] = {f"{method}:{key}": value for key, value in options.items()}
    return {**own, **row["settings"]}
