"""A table as it comes: text, empty cells, dates, booleans, an id, and unequal clients."""

from __future__ import annotations

import numpy as np
import pandas as pd

WARDS = ("icu", "surgery", "general", "maternity")
_YES = ("yes", "No", "Y", "n", "TRUE", "false")
_EMPTY = ("", "NA", "?", "n/a", "-", "NULL")


def hospital_frame(hospitals: int = 40, seed: int = 0) -> pd.DataFrame:
    """Visits of patients: most hospitals have about 20, a few have 1, and one has 300."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(8, 33, hospitals)
    sizes[:2], sizes[2] = 1, 300
    owner = np.repeat(np.arange(hospitals), sizes)
    rows = len(owner)
    age, sugar = rng.normal(55, 18, rows).clip(0, 105), rng.lognormal(1.7, 0.3, rows)
    ward, smoker = rng.integers(0, len(WARDS), rows), rng.random(rows) < 0.3
    day = rng.integers(0, 1500, rows)
    level = rng.normal(0, 0.5, hospitals)[owner]
    effect = np.array([1.5, 0.5, -0.5, -1.5])[ward]
    score = (age - 55) / 12 + 1.5 * smoker + effect + (day - 750) / 700 + level
    died = score + rng.logistic(0, 0.7, rows) > 0.5
    frame = pd.DataFrame(
        {
            "visit_id": [f"V{number:06d}" for number in rng.permutation(rows)],
            "hospital": [f"h{k:02d}" for k in owner],
            "age": np.round(age, 1),
            "sugar": np.round(sugar, 2),
            "ward": np.array(WARDS)[ward],
            "smoker": np.where(smoker, rng.choice(_YES[::2], rows), rng.choice(_YES[1::2], rows)),
            "admitted": (pd.Timestamp("2019-03-01") + pd.to_timedelta(day, unit="D")).strftime(
                "%Y-%m-%d"
            ),
            "doctor": [f"dr {number}" for number in rng.integers(0, 90, rows)],
            "remark": [
                " ".join(rng.choice(["pain", "fever", "stable", "fall", "chest", "cough"], 5))
                + f" {number}"
                for number in range(rows)
            ],
            "empty": "",
            "constant": 3,
            "outcome": np.where(died, "died", "home"),
        }
    )
    gaps = rng.random((rows, 4)) < 0.15
    gaps[owner == 5, 1] = True  # A whole hospital without a value.
    for place, name in enumerate(("age", "sugar", "ward", "smoker")):
        text = frame[name].astype(str).to_numpy(dtype=object)
        text[gaps[:, place]] = rng.choice(_EMPTY, gaps[:, place].sum())
        frame[name] = text
    return frame.sample(frac=1, random_state=seed).reset_index(drop=True)
