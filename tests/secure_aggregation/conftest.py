"""One authority for all tests of a file: keys take time."""

from __future__ import annotations

import pytest
from certificates import Authority


@pytest.fixture(scope="module")
def authority():
    return Authority()
