"""Rows of forty clients for the estimators, and routing switched on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import sklearn

from pmtl.sklearn import search


@dataclass
class Table:
    """Rows of forty clients, whose weights are alike and whose intercepts differ."""

    x: np.ndarray
    y: np.ndarray  #: "no" or "yes"
    amount: np.ndarray
    groups: np.ndarray


@pytest.fixture(scope="session")
def table() -> Table:
    random = np.random.default_rng(3)
    groups = np.repeat([f"h{k:02d}" for k in range(40)], 12)
    x = random.normal(size=(480, 4))
    own = np.repeat(random.normal(size=40), 12)
    level = x @ [2.0, -1.0, 0.0, 0.5] + 2 * own
    return Table(x, np.where(level > 0, "yes", "no"), 100 + 10 * level, groups)


@pytest.fixture(autouse=True)
def routing(monkeypatch: pytest.MonkeyPatch):
    """Metadata routing on, and no fits of other tests remembered."""
    monkeypatch.setattr(search, "_fits", {})
    with sklearn.config_context(enable_metadata_routing=True):
        yield
