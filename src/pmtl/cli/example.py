"""Made-up tables to try the commands of the documentation with: `pmtl data example`."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import numpy as np

from pmtl.errors import PmtlError
from pmtl.storage import disk_errors, write_text

HOSPITALS, ROWS, _NEW_ROWS = 200, 25, 3
_WARDS = ("general", "icu", "maternity", "surgery")
_EFFECTS = np.array([0.0, 1.2, -1.0, 0.5])
_HEADER = "visit,hospital,age,dose,ward,smoker,admitted"
_FIRST_DAY = date(2024, 1, 1)
SCHEMA = """\
version = 1
public = true  # All of this is known without the hospitals' rows.

[columns.visit]
role = "dropped"

[columns.hospital]
role = "client"

[columns.age]
kind = "number"
low = 0
high = 110
missing = "fill"

[columns.dose]
kind = "number"

[columns.ward]
kind = "category"
categories = ["general", "icu", "maternity", "surgery"]
missing = "indicator"

[columns.smoker]
kind = "boolean"

[columns.admitted]
kind = "date"
parts = ["month"]

[columns.outcome]
role = "target"
kind = "category"
categories = ["home", "returns"]
"""


def write_example(folder: Path) -> dict[str, str]:
    """Write `visits.csv`, `new.csv`, `elsewhere.csv` and `schema.toml` to a folder, which is made
    if it does not exist. Files are never replaced. Returns what each file holds, by its path."""
    random = np.random.default_rng(0)
    names = [f"h{number:03d}" for number in range(HOSPITALS)]
    levels = dict(zip(names, random.normal(0, 0.7, HOSPITALS), strict=True))
    texts = {
        "visits.csv": _table(random, levels, ROWS, "V", outcome=True),
        "new.csv": _table(random, levels, _NEW_ROWS, "N", outcome=False),
        "elsewhere.csv": _table(random, {"x001": 0.5}, ROWS, "E", outcome=False),
        "schema.toml": SCHEMA,
    }
    if there := [name for name in texts if (folder / name).exists()]:
        raise PmtlError(f"{folder / there[0]} exists: name an empty folder with --out.")
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_text(folder / name, text)
    about = (
        f"{HOSPITALS * ROWS:,} made-up visits to {HOSPITALS} hospitals, with their outcome",
        f"{HOSPITALS * _NEW_ROWS:,} new visits to the same hospitals, without the outcome",
        f"{ROWS} visits to another hospital, without the outcome",
        "what the columns hold",
    )
    return dict(zip((str(folder / name) for name in texts), about, strict=True))


def _table(
    random: np.random.Generator, levels: dict[str, float], rows: int, mark: str, outcome: bool
) -> str:
    """Visits in random order; hospitals differ only in their level."""
    hospital = random.permutation(np.repeat(list(levels), rows))
    total = len(hospital)
    age = random.normal(55, 18, total).clip(0, 105).round()
    dose = random.gamma(2.0, 5.0, total).round(1)
    ward, smoker = random.integers(0, len(_WARDS), total), random.random(total) < 0.3
    day = random.integers(0, 730, total)
    score = (age - 55) / 15 - (dose - 10) / 8 + smoker + _EFFECTS[ward]
    score += np.array([levels[name] for name in hospital])
    returns = score + random.logistic(0, 0.7, total) > 0.5
    no_age, no_ward = random.random((2, total)) < 0.05
    lines = [_HEADER + (",outcome" if outcome else "")]
    for k in range(total):
        cells = [
            f"{mark}{k:05d}",
            hospital[k],
            "" if no_age[k] else f"{age[k]:.0f}",
            f"{dose[k]}",
            "" if no_ward[k] else _WARDS[ward[k]],
            "yes" if smoker[k] else "no",
            (_FIRST_DAY + timedelta(days=int(day[k]))).isoformat(),
        ]
        lines.append(",".join(cells + (["returns" if returns[k] else "home"] if outcome else [])))
    return "\n".join(lines) + "\n"
