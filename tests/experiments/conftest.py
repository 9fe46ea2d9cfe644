"""A laboratory in an empty folder."""

from __future__ import annotations

import pytest
from tiny import TINY

from pmtl.experiments.result_cache import ResultCache


@pytest.fixture
def lab(tmp_path) -> ResultCache:
    return ResultCache(TINY, tmp_path, device="cpu")
