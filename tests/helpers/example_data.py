"""Small federations for tests."""

from __future__ import annotations

import numpy as np

from pmtl.data import FederatedData


def small_federation(m: int = 12, rows: int = 14, seed: int = 5) -> FederatedData:
    """Two-class rows in four dimensions, linearly separable but for a client's own offset."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(m * rows, 4)).astype(np.float32)
    client = np.repeat([f"site-{k:02d}" for k in range(m)], rows)
    offset = np.repeat(random.normal(size=m), rows)
    y = (x[:, 0] - x[:, 1] + 0.5 * offset > 0).astype(np.int64)
    return FederatedData.from_arrays(x, y, client, outputs=2)
