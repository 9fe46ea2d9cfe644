"""A laboratory in an empty folder."""

from __future__ import annotations

import pytest
from tiny import TINY

from pmtl.experiments.lab import Lab


@pytest.fixture
def lab(tmp_path) -> Lab:
    return Lab(TINY, tmp_path, device="cpu")
