"""What every federation keeps to, wherever it came from."""

from __future__ import annotations

import numpy as np

from pmtl.data import SPLITS, FederatedData, describe
from pmtl.data.checks import is_sparse
from pmtl.data.client_names import canonical


def check_federation(data: FederatedData) -> None:
    """Finite features, targets in range, everybody with training rows, every row in one split."""
    rows = data.x.shape[0]
    assert rows == len(data.y) > 0
    assert data.input_shape
    assert 0 not in data.input_shape
    values = data.x.data if is_sparse(data.x) else np.asarray(data.x)
    assert values.dtype.kind in "fiub"
    with np.errstate(all="ignore"):
        assert np.isfinite(values.astype(np.float32)).all()
    _check_targets(data)
    _check_clients(data)
    _check_splits(data, rows)
    assert len(data.fingerprint()) == 64
    assert describe(data)["samples"] == sum(len(data.rows(split).order) for split in SPLITS)


def rows_of(data: FederatedData, client: str) -> dict[str, tuple[bytes, ...]]:
    """The values of a client's rows in every split."""
    place = data.index_of(client)
    return {
        split: tuple(part.tobytes() for part in data.gather(data.rows(split).of(place)))
        for split in SPLITS
    }


def _check_targets(data: FederatedData) -> None:
    assert data.outputs >= 1
    assert data.labels is None or len(set(data.labels)) == len(data.labels) == data.outputs
    if data.task == "classification":
        assert data.y.dtype == np.int64
        assert data.y.ndim == 1
        assert data.outputs >= 2 or data.labels is not None
        assert 0 <= data.y.min() <= data.y.max() < data.outputs
    else:
        assert data.outputs == (1 if data.y.ndim == 1 else data.y.shape[1])
        assert np.isfinite(data.y).all()
    if data.task == "multilabel":
        assert set(np.unique(data.y)) <= {0, 1}


def _check_clients(data: FederatedData) -> None:
    assert data.m >= 1
    assert all(data.clients)
    assert list(data.clients) == canonical(set(data.clients))
    assert all(name.encode().decode() == name for name in data.clients)


def _check_splits(data: FederatedData, rows: int) -> None:
    for split in SPLITS:
        part = data.rows(split)
        assert part.offsets[0] == 0
        assert part.offsets[-1] == len(part.order)
        assert (part.counts >= (split == "train")).all()
    order = np.concatenate([data.rows(split).order for split in SPLITS])
    assert len(np.unique(order)) == len(order) <= rows
    assert order.min() >= 0
    assert order.max() < rows
    x, y = data.gather(data.rows("train").order[:3])
    assert np.isfinite(x).all()
    assert len(x) == len(y)
