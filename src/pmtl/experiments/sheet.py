"""The tables that experiments write, as Markdown and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

from pmtl import storage as files
from pmtl.report.tables import markdown_table

Spread = dict[str, Any]


@dataclass
class Sheet:
    """One experiment's results: the rows of a table."""

    name: str
    caption: str
    columns: Sequence[str]
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, **values: Any) -> None:
        """Add a row: values by column."""
        self.rows.append({column: values.get(column) for column in self.columns})

    def markdown(self) -> str:
        rows = [[shown(row[column]) for column in self.columns] for row in self.rows]
        return f"{self.caption}\n\n{markdown_table(self.columns, rows)}\n"

    def save(self, folder: Path, clients: int) -> None:
        """Write NAME.md and NAME.json into the folder."""
        files.write_text(folder / f"{self.name}.md", self.markdown())
        content = {"caption": self.caption, "columns": self.columns, "rows": self.rows}
        files.write_json(folder / f"{self.name}.json", content | {"clients": clients})


def spread(values: Sequence[float]) -> Spread | None:
    """Mean and standard deviation over seeds."""
    if not values:
        return None
    return {"mean": mean(values), "std": pstdev(values), "seeds": len(values)}


def shown(value: Any) -> str:
    """A cell of a table: accuracies with three digits and their ±."""
    if value is None:
        return "–"
    if isinstance(value, dict):
        several = f" ± {value['std']:.3f}" if value["seeds"] > 1 else ""
        return f"{value['mean']:.3f}{several}"
    if value in (float("inf"), "inf"):  # As JSON has it.
        return "∞"
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(value)
