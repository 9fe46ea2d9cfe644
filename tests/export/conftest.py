"""torch's table of ONNX functions, which it makes anew for every export, is made once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from torch.onnx._internal.exporter._registration import ONNXRegistry


@pytest.fixture(scope="session", autouse=True)
def _one_table_of_functions() -> Iterator[None]:
    """An export only reads the table; making it takes longer than tracing a small network."""
    made = ONNXRegistry.from_torchlib

    @cache
    def once(*given: Any, **named: Any) -> ONNXRegistry:
        return made(*given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(once))
        yield
