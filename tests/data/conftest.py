"""One small federation, and what "the same federation" means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from pmtl.data import SPLITS, FederatedData


@dataclass(frozen=True)
class Raw:
    """Rows of three clients in mixed order, already split into train and test."""

    x: np.ndarray
    y: np.ndarray
    client: np.ndarray
    split: np.ndarray

    def of(self, client: str, split: str | None = None) -> np.ndarray:
        """The rows of a client, in order."""
        mine = self.client == client
        return np.flatnonzero(mine if split is None else mine & (self.split == split))


@pytest.fixture
def raw() -> Raw:
    rng = np.random.default_rng(5)
    client = rng.permutation(np.repeat(["ann", "bob", "cy"], [9, 12, 15]))
    x = rng.integers(-64, 64, (36, 4)).astype(np.float32) / 8
    x[rng.random(x.shape) < 0.4] = 0
    split = np.full(36, "train")
    for name in ("ann", "bob", "cy"):
        split[np.flatnonzero(client == name)[::4]] = "test"
    return Raw(x, rng.integers(0, 3, 36), client, split)


@pytest.fixture
def expected(raw: Raw) -> dict[str, Any]:
    return content(FederatedData.from_arrays(raw.x, raw.y, raw.client, raw.split))


def content(data: FederatedData) -> dict[str, Any]:
    """Every client's rows in every split, without regard to how they are stored."""
    rows: dict[str, Any] = {"task": data.task, "outputs": data.outputs}
    for k, client in enumerate(data.clients):
        for split in SPLITS:
            x, y = data.gather(data.rows(split).of(k))
            rows[f"{client} {split}"] = (x.tolist(), y.tolist())
    return rows


@pytest.fixture(name="content")
def content_fixture() -> Any:
    return content
