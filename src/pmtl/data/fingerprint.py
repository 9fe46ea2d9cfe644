"""The fingerprint of a federation: a SHA-256 of everything that training depends on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from pmtl.data.checks import as_float32, is_sparse, row_chunks
from pmtl.data.splits import SPLITS

if TYPE_CHECKING:
    from pmtl.data.federated import FederatedData


def fingerprint_of(data: FederatedData) -> str:
    """The SHA-256 that `FederatedData.fingerprint` describes."""
    storage = "sparse" if is_sparse(data.x) else "uint8" if data.x.dtype == np.uint8 else "float"
    head: list[Any] = [data.task, data.outputs, storage, data.input_shape, data.clients]
    if data.text is not None:  # Equal numbers differ in meaning if the words differ.
        head += [asdict(data.text), data.feature_names, data.labels]
    if data.bounds is not None:
        head += [data.bounds.to_dict()]
    if data.schema is not None:
        head += [data.schema.to_dict()]
    digest = hashlib.sha256(json.dumps(head).encode())
    width = 64 if is_sparse(data.x) else int(np.prod(data.input_shape)) * 4
    for split in SPLITS:
        rows = data.rows(split)
        # One digest per column, so that the size of chunks does not matter.
        columns = [hashlib.sha256(rows.offsets.tobytes()) for _ in range(4)]
        for chunk in row_chunks(len(rows.order), width):
            index = rows.order[chunk]
            x, parts = data.x[index], [data.y[index]]
            if is_sparse(x):
                parts += [np.diff(x.indptr).astype(np.int64), x.indices.astype(np.int64)]
                x = x.data
            parts.append(x if x.dtype == np.uint8 else as_float32(x))
            for column, part in zip(columns, parts, strict=False):
                column.update(np.ascontiguousarray(part).tobytes())
        for column in columns:
            digest.update(column.digest())
    return digest.hexdigest()
