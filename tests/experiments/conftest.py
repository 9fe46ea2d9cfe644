"""Results in an empty folder."""

from __future__ import annotations

import pytest
from tiny import TINY

from pmtl.experiments.results import Results


@pytest.fixture
def results(tmp_path) -> Results:
    return Results(TINY, tmp_path, device="cpu")
