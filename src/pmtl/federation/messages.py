"""The messages of a federation as bytes: a kind, a header of plain values, and named arrays.

They are safetensors with a JSON header, which hold numbers and no code: received bytes are never
unpickled.

| from the server | answer |
|---|---|
| `invite`: the settings of a run | `joined`: the site's clients, and how its rows look |
| `start`: plan, clients, columns | `ready` |
| `round`: the vectors that clients read, and which of them were drawn | `uploads` |
| `key`: an attempt of a round with secure aggregation | `key`: a fresh key, signed |
| `masked`: the keys of all sites, what clients read | `masked`: a sum with masks and noise |
| `finish`: what was published at the end | `done` |

Any of them may be answered by `refused`, with a sentence that is public.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from pmtl.errors import PmtlError, PublicError
from pmtl.jsontext import to_json
from pmtl.messages import from_bytes
from pmtl.privacy.sampling import is_library_scheme
from pmtl.spec import parse_spec

REFUSED = "refused"
_LONGEST_HEADER = 64 * 2**20
_NAME = "pmtl"
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True)
class Message:
    """One message."""

    kind: str
    header: Mapping[str, Any] = field(default_factory=dict)  #: plain values, as in JSON
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The message as bytes."""
        whole = {name: np.ascontiguousarray(array) for name, array in self.arrays.items()}
        return save(whole, metadata={_NAME: to_json({"kind": self.kind, **self.header})})

    @classmethod
    def from_bytes(cls, content: bytes) -> Message:
        """The message that `to_bytes` wrote; anything else is refused."""
        arrays = from_bytes(content)  # It checks the form of the whole.
        length = int.from_bytes(content[:8], "little")
        try:
            if length > _LONGEST_HEADER:
                raise ValueError("the header is too long")
            header = json.loads(json.loads(content[8 : 8 + length])["__metadata__"][_NAME])
            kind = header.pop("kind")
            if not isinstance(kind, str):
                raise ValueError("the kind is not text")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise PmtlError(f"A message cannot be read: {error}.") from error
        return cls(kind, header, arrays)

    def array(self, name: str, kinds: str, dimensions: int) -> NDArray[Any]:
        """A copy of an array that must be there, with numbers of one of these `kinds` (NumPy's
        letters)."""
        found = self.arrays.get(name)
        if found is None or found.dtype.kind not in kinds or found.ndim != dimensions:
            raise PublicError(f"A message is refused: it has no such array {name!r}.")
        return np.array(found)

    def reads(self, clients: int) -> NDArray[Any]:
        """[m, P] what each of a site's `clients` reads: a row of `shared`, by its number in
        `reads`."""
        vectors = self.array("shared", "f", 2)
        rows = self.array("reads", "iu", 1).astype(np.int64)
        inside = len(rows) == clients and ((rows >= 0) & (rows < len(vectors))).all()
        if not inside or not np.isfinite(vectors).all():
            raise PublicError("A message is refused: what clients read is not valid.")
        return np.asarray(vectors[rows])


def refusal(sentence: str) -> Message:
    """The answer of a site that refuses; the sentence must be public."""
    return Message(REFUSED, {"sentence": sentence})


def check_run_name(name: Any) -> str:
    """The name of a run, which is also the name of folders."""
    if not isinstance(name, str) or not _RUN_NAME.fullmatch(name):
        raise PublicError(
            f"{str(name)[:64]!r} is not a valid run name: use 1 to 64 letters, digits, hyphens "
            "and underscores, and begin with a letter or a digit."
        )
    return name


def refuse_code(config: Any, sampling: Any = None) -> None:
    """Refuse settings of a run, or the sampling of its plan, that name code: server and sites would
    import `package.module:Name`. Installed sampling schemes and all metrics are refused, too."""
    config = config if isinstance(config, Mapping) else {}
    privacy = config.get("privacy")
    asked = privacy.get("sampling") if isinstance(privacy, Mapping) else None
    named = {name: config.get(name) for name in ("model", "algorithm", "metric")}
    for name, value in [*named.items(), ("sampling", asked), ("sampling", sampling)]:
        if isinstance(value, str) and ":" in parse_spec(value)[0]:
            raise PublicError(
                f"A federation does not import code that a job names, and the {name} is {value!r}: "
                "use one of the library's, or leave it out."
            )
    own = any(s is not None and not is_library_scheme(s) for s in (asked, sampling))
    if named["metric"] is not None or own:
        raise PublicError(
            "A federation takes no metric, and only the library's sampling schemes: leave out the "
            "others."
        )
