"""Arrays as bytes, and the messages between a server and the reference of one client.

The server sends a `RoundMessage` to the sites (`client/site.py`) of the cohort. A site answers with
its upload, a mapping with one array. Both are encoded as safetensors, which hold numbers and no
code: received bytes are never unpickled.

The sites of a real federation exchange other messages, those of `federation/messages.py`; they are
read with `from_bytes`, too.
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
    """What a server sends to the reference of one client (`client/site.py`) in a round."""

    round: int  #: counted from 0
    shared: NDArray[Any]  #: `[P]`, what this client reads of the billboard; noisy, hence public

    def to_bytes(self) -> bytes:
        return to_bytes({"round": np.array([self.round]), "shared": self.shared})

    @classmethod
    def from_bytes(cls, content: bytes) -> RoundMessage:
        """The message that `to_bytes` wrote; anything else is refused.

        Args:
            content: what `to_bytes` returned.
        """
        arrays = from_bytes(content)
        if set(arrays) == {"round", "shared"}:
            round, shared = arrays["round"], arrays["shared"]
            valid_round = round.shape == (1,) and round.dtype == np.int64
            if valid_round and shared.ndim == 1 and shared.dtype.kind == "f":
                return cls(int(round[0]), shared)
        raise PmtlError("The server's message is refused: it is not a round message.")


def to_bytes(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    return save({name: np.ascontiguousarray(array) for name, array in arrays.items()})


def from_bytes(content: bytes) -> dict[str, NDArray[Any]]:
    """The arrays that `to_bytes` wrote."""
    try:
        return load(content)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise PmtlError(f"A message cannot be read: {error}.") from error
