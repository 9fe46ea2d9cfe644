"""What passes between the server and a site: plain data, as bytes.

The server sends a `RoundMessage` to every site of the cohort. A site answers with its upload, a
mapping of one array (`Release.receive` takes whatever comes). As bytes both are safetensors, which
hold numbers and cannot hold code: nothing that comes over a connection is ever unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from pmtl.errors import PmtlError

#: The name under which a site sends its upload.
UPLOAD = "upload"


@dataclass(frozen=True)
class RoundMessage:
    """What one site is told in a round.

    Args:
        round: the number of the round, counted from 0.
        shared: `[P]`, what this client reads of the billboard; already noisy, hence public.
    """

    round: int
    shared: NDArray[Any]

    def to_bytes(self) -> bytes:
        """The message as bytes."""
        return to_bytes({"round": np.array([self.round]), "shared": self.shared})

    @classmethod
    def from_bytes(cls, content: bytes) -> RoundMessage:
        """The message that `to_bytes` wrote; anything else is refused."""
        arrays = from_bytes(content)
        shared, round = arrays.get("shared"), arrays.get("round")
        if (
            set(arrays) != {"round", "shared"}
            or round is None
            or round.shape != (1,)
            or round.dtype != np.int64
            or shared is None
            or shared.ndim != 1
            or shared.dtype.kind != "f"
        ):
            raise PmtlError("The server's message is not one of a round: it is refused.")
        return cls(int(round[0]), shared)


def to_bytes(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Named arrays as bytes."""
    return save({name: np.ascontiguousarray(array) for name, array in arrays.items()})


def from_bytes(content: bytes) -> dict[str, NDArray[Any]]:
    """The arrays that `to_bytes` wrote."""
    try:
        return load(content)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise PmtlError(f"A message cannot be read: {error}.") from error
