"""Parameters of which `make test` tries some, and `make test-thorough` all the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def at_length(values: Iterable[Any], always: Callable[[Any], bool]) -> list[Any]:
    """The values as parameters; those for which `always` is false are marked thorough."""
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            marks=[] if always(value) else [pytest.mark.thorough],
        )
        for value in values
    ]
