"""The features of a file's rows, as a finished model reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import vstack

from pmtl.data import Schema
from pmtl.data.schema.inputs import Inputs
from pmtl.prediction.source import ReadingRules, open_rows


def features_of(
    path: Any,
    shape: tuple[int, ...],
    names: Any = None,
    text: Any = None,
    schema: Any = None,
    keep: tuple[str, ...] = (),
) -> Any:
    """All rows that `open_rows` reads, an array or a CSR matrix."""
    known = None if schema is None else Schema.of(schema)
    inputs = Inputs(shape, None if names is None else tuple(names), text, schema=known)
    with open_rows(path, ReadingRules(inputs, keep=keep)) as source:
        parts = [piece.x for piece in source.pieces()]
    return np.concatenate(parts) if text is None else vstack(parts, format="csr")
