"""`personal.safetensors`: the personal models of a finished run.

They may not fit in memory together, so they are written and read a few at a time. The tensors are

    weights  [n, P]       one row for each client that was ever sampled
    clients  [n]          the numbers of these clients; their names are in the metadata
    digests  [n, 32]      SHA-256 of each row, checked when the row is read
    unseen   [blocks, P]  the weights of all other clients
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from pmtl import storage as files
from pmtl.algorithms import Algorithm
from pmtl.errors import PmtlError
from pmtl.simulation import Store, Weights
from pmtl.simulation.client_vectors.final_models import unseen_weights
from pmtl.simulation.client_vectors.row_file import RowFile, digest_rows, private

_TYPES = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64", torch.uint8: "U8"}
#: Bytes of weights that are in memory at a time while the file is written.
CHUNK = 64 * 2**20


@dataclass(frozen=True)
class Personal:
    seen: NDArray[np.int64]  #: the clients that were ever sampled, sorted
    unseen: Tensor  #: [blocks, P]: the weights of the other clients
    weights: Weights  #: gives the weights of any clients


def personal_models(
    algorithm: Algorithm,
    store: Store,
    shared: Tensor,
    weights: Weights,
    alone: Weights | None,
    mixed: bool = False,
) -> dict[str, Personal]:
    """The models of each client for the run's folder: "personal" and "alone", if there are any.
    `shared` [vectors, P] was published; `weights` and `alone` give the weights of any clients.
    `mixed`: each client reads a mixture of these vectors, so no two clients have the same model."""
    seen = np.arange(store.m) if mixed else store.seen
    unseen = unseen_weights(algorithm, store.start, shared)
    models = {}
    if algorithm.personal:
        models["personal"] = Personal(seen, unseen, weights)
    if alone is not None:
        models["alone"] = Personal(seen, torch.zeros_like(unseen), alone)
    return models


def write_personal(
    path: Path, personal: Personal, about: Mapping[str, Any], key: bytes = b""
) -> str:
    """Replace the file; `about` (any JSON object) is its metadata.

    Returns the digest of its content under `key`; it covers the rows by their digests."""
    rows, size = len(personal.seen), personal.unseen.shape[1]
    small = {
        "clients": torch.from_numpy(personal.seen),
        "unseen": personal.unseen.detach().cpu().contiguous(),
    }
    dtype = small["unseen"].dtype
    # Wide numbers come first, so that every tensor is aligned.
    shapes = {
        "clients": (torch.int64, (rows,)),
        "unseen": (dtype, tuple(small["unseen"].shape)),
        "weights": (dtype, (rows, size)),
        "digests": (torch.uint8, (rows, 32)),
    }

    def write(partial: Path) -> None:
        with partial.open("wb") as file:
            file.write(_header(shapes, about, "0" * 32))  # Replaced below, at the same length.
            for value in small.values():
                file.write(value.numpy().data)
            digests = np.empty((rows, 32), dtype=np.uint8)
            step = max(1, CHUNK // (size * dtype.itemsize))
            for first in range(0, rows, step):
                some = slice(first, min(first + step, rows))
                weights = personal.weights(personal.seen[some]).detach().cpu().contiguous()
                digests[some] = digest_rows(weights)
                file.write(weights.numpy().data)
            file.write(digests.data)
            small["digests"] = torch.from_numpy(digests)
            file.seek(0)
            file.write(_header(shapes, about, files.digest(small, about, key)))

    files.replace(path, write, private)
    return files.digest(small, about, key)


class PersonalFile:
    """Reads the weights of any clients. `blocks` are the blocks of the billboard that they read;
    `known` is the digest that `write_personal` returned, if the caller has it."""

    def __init__(
        self, path: Path, blocks: NDArray[np.int64], known: str | None = None, key: bytes = b""
    ) -> None:
        self.path = path
        self._blocks = blocks
        with files.read_errors(path):
            # safetensors opens it first, because it refuses a header longer than the file.
            with safe_open(path, framework="pt") as opened:
                about = json.loads(opened.metadata()["pmtl"])
                small = {name: opened.get_tensor(name) for name in ("clients", "digests", "unseen")}
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(length))
            digest = about.pop("digest")
            weights = header["weights"]
            begins = 8 + length + weights["data_offsets"][0]
        files.check_digest(path, digest, files.digest(small, about, key), known)
        self._unseen = small["unseen"]
        self._digests = small["digests"].numpy()
        self._row = np.full(len(blocks), -1, dtype=np.int64)
        self._row[small["clients"].numpy()] = np.arange(len(self._digests))
        handle = path.open("rb", buffering=0)
        weakref.finalize(self, handle.close)
        self._rows = RowFile(handle, self._unseen.shape[1], self._unseen.dtype, begins)

    def __call__(self, clients: NDArray[np.int64]) -> Tensor:
        """The weights `[K, P]` of these clients."""
        rows = self._row[clients]
        weights: Tensor = self._unseen[torch.from_numpy(self._blocks[clients])]
        known = rows >= 0
        if known.any():
            mine = self._rows.read(rows[known])
            if not np.array_equal(digest_rows(mine), self._digests[rows[known]]):
                raise PmtlError(
                    f"{self.path} is damaged: its numbers are not the ones that were written."
                )
            weights[torch.from_numpy(known)] = mine
        return weights


def _header(
    shapes: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], about: Mapping[str, Any], digest: str
) -> bytes:
    """The header of a safetensors file; its length does not depend on the digest."""
    pmtl = json.dumps({**about, "digest": digest}, sort_keys=True)
    head: dict[str, Any] = {"__metadata__": {"pmtl": pmtl}}
    end = 0
    for name, (dtype, shape) in shapes.items():
        begin, end = end, end + int(np.prod(shape)) * dtype.itemsize
        head[name] = {"dtype": _TYPES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
