"""Tables of hospitals' visits, and runs that were trained on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

import pmtl

HOSPITALS = 12


def visits(rows: int = 12 * 20, seed: int = 0) -> pa.Table:
    """Visits in no order: an id, the hospital, features far from size 1, the outcome."""
    random = np.random.default_rng(seed)
    hospital = random.permutation(np.arange(rows) % HOSPITALS)
    age = random.normal(55, 15, rows).round(1).astype(np.float32)
    dose = random.normal(0, 0.01, rows).round(5).astype(np.float32)
    ill = age + 900 * dose + 3 * hospital > 70
    return pa.table(
        {
            "id": [f"{number:05d}" for number in range(rows)],
            "age": age,
            "hospital": [f"h{number:02d}" for number in hospital],
            "dose": dose,
            "outcome": np.where(ill, "ill", "well"),
        }
    )


def trained(folder: Path, scale: bool = True, algorithm: str = "pmtl") -> pmtl.Run:
    """A run on `visits.csv` in the folder."""
    csv.write_csv(visits(), folder / "visits.csv")
    more = ",scale=client" if scale else ""
    return pmtl.train(
        f"{folder / 'visits.csv'}:client=hospital,target=outcome,drop=id{more}",
        algorithm=algorithm,
        privacy={"noise": 0.01, "rounds": 3},
        out=folder / "run",
    )


def features(table: pa.Table) -> np.ndarray:
    return np.stack([table.column(name).to_numpy() for name in ("age", "dose")], axis=1)
