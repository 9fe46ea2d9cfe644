"""JSON that every parser accepts: standard JSON has no infinity and no NaN."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def to_json(value: Any, indent: int | None = None) -> str:
    """`value` as JSON; infinity becomes the text "inf", and NaN becomes null.

    >>> to_json({"epsilon": math.inf, "loss": math.nan})
    '{"epsilon": "inf", "loss": null}'
    """
    return json.dumps(_plain(value), indent=indent, ensure_ascii=False, allow_nan=False)


def check_text(value: Any) -> None:
    """Raise a ValueError if a text in a value from JSON is not valid Unicode: JSON can say half of
    a character ("\\ud800"), which cannot be written to a file."""
    json.dumps(value, ensure_ascii=False).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value
