"""What experiments write: a table (Markdown), its numbers (JSON), and cells with their ±."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

from pmtl import storage as files
from pmtl.experiments.result_cache import ResultCache


class Sheet:
    """One experiment's results: rows of a table, to be shown and to be kept."""

    def __init__(self, name: str, caption: str, columns: Sequence[str]) -> None:
        self.name = name
        self.caption = caption
        self.columns = list(columns)
        self.rows: list[dict[str, Any]] = []

    @classmethod
    def load(cls, path: Path) -> Sheet:
        """The sheet that was saved as this JSON file."""
        told = files.read_json(path)
        sheet = cls(path.stem, told["caption"], told["columns"])
        sheet.rows = told["rows"]
        return sheet

    def add(self, **values: Any) -> None:
        """A row: values by column."""
        self.rows.append({column: values.get(column) for column in self.columns})

    def markdown(self) -> str:
        """The table as text."""
        lines = [
            "| " + " | ".join(self.columns) + " |",
            "| " + " | ".join("---:" if n else "---" for n in range(len(self.columns))) + " |",
        ]
        for row in self.rows:
            lines.append("| " + " | ".join(shown(row[c]) for c in self.columns) + " |")
        return f"{self.caption}\n\n" + "\n".join(lines) + "\n"

    def save(self, lab: ResultCache) -> Path:
        """Write NAME.md and NAME.json into the lab's folder."""
        files.write_text(lab.out / f"{self.name}.md", self.markdown())
        told = {"caption": self.caption, "columns": self.columns, "rows": self.rows}
        files.write_json(lab.out / f"{self.name}.json", told | {"clients": lab.data.m})
        return lab.out / f"{self.name}.md"


def spread(values: Sequence[float]) -> dict[str, Any] | None:
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
