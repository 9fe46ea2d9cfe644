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

Each has a class of headers (`Invite`, `Joined`, …). `Message.read` makes one of what was received,
and refuses missing and unknown entries and wrong types.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from pmtl.errors import PmtlError, PublicError
from pmtl.jsontext import check_text, to_json
from pmtl.messages import from_bytes
from pmtl.privacy.schemes import is_library_scheme
from pmtl.spec import from_values, parse_spec

_LONGEST_HEADER = 64 * 2**20
_NAME = "pmtl"
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_Header = TypeVar("_Header", bound="Header")


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
            check_text([kind, header])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise PmtlError(f"A message cannot be read: {error}.") from error
        return cls(kind, header, arrays)

    def read(self, header: type[_Header]) -> _Header:
        """The header of a message that must be of this kind, checked."""
        if self.kind != header.kind:
            raise PublicError(f"A message is refused: it is not of the kind {header.kind!r}.")
        try:
            return from_values(header, self.header, f"a message of the kind {self.kind!r}")
        except PmtlError as error:
            raise PublicError(f"A message is refused: {error}") from error

    def is_valid(self, header: type[Header]) -> bool:
        """Whether `read` takes it."""
        try:
            self.read(header)
        except PmtlError:
            return False
        return True

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


@dataclass(frozen=True)
class Header:
    """What a message of one kind says beside its arrays."""

    kind: ClassVar[str]

    def message(self, arrays: Mapping[str, NDArray[Any]] | None = None) -> Message:
        """The message with this header; entries that are None are left out."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        return Message(self.kind, given, arrays or {})


@dataclass(frozen=True)
class Invite(Header):
    """From the server: the settings of a run."""

    kind: ClassVar[str] = "invite"
    config: Mapping[str, Any]  #: the settings, as `TrainConfig` has them
    version: str  #: of pmtl at the server
    secure: bool  #: whether uploads are to be hidden from the server


@dataclass(frozen=True)
class Joined(Header):
    """From a site: its clients, and how its rows look."""

    kind: ClassVar[str] = "joined"
    clients: tuple[str, ...]  #: their names, as the server knows them
    columns: Mapping[str, Any]  #: the format of the rows, as `Columns` has it
    fingerprint: str | None = None  #: of the rows; a part of the key of an experiment's noise


@dataclass(frozen=True)
class Start(Header):
    """From the server: what was agreed."""

    kind: ClassVar[str] = "start"
    agreement: Mapping[str, Any]  #: as `Agreement.to_dict` writes it
    version: str  #: of pmtl at the server
    whole: bool  #: whether uploads are whole steps of the grid


@dataclass(frozen=True)
class Ready(Header):
    """From a site: it takes part."""

    kind: ClassVar[str] = "ready"


@dataclass(frozen=True)
class AskKey(Header):
    """From the server: an attempt of a round with secure aggregation."""

    kind: ClassVar[str] = "key"
    run: str
    round: int  #: counted from 0
    attempt: str  #: its identity
    counted: int  #: the last round in which an upload of this site was counted; −1: none


@dataclass(frozen=True)
class AskUploads(AskKey):
    """From the server: an attempt of a round, for uploads that the server adds up."""

    kind: ClassVar[str] = "round"
    summed: bool  #: whether the site sends the sum of its clients' uploads


@dataclass(frozen=True)
class AskMasked(AskKey):
    """From the server: the keys of all sites."""

    kind: ClassVar[str] = "masked"
    keys: tuple[Mapping[str, Any], ...]  #: as `SignedKey` has them


@dataclass(frozen=True)
class Uploads(Header):
    """From a site: the uploads of its clients."""

    kind: ClassVar[str] = "uploads"
    round: int
    attempt: str


@dataclass(frozen=True)
class Key(Uploads):
    """From a site: a fresh key for an attempt."""

    kind: ClassVar[str] = "key"
    signed: Mapping[str, Any]  #: as `SignedKey` has it


@dataclass(frozen=True)
class Masked(Uploads):
    """From a site: the sum of its clients' uploads with masks and a share of the noise."""

    kind: ClassVar[str] = "masked"


@dataclass(frozen=True)
class Finish(Header):
    """From the server: the end of a run."""

    kind: ClassVar[str] = "finish"
    run: str
    counted: int  #: the last round in which an upload of this site was counted; −1: none
    rounds: int  #: how many were published


@dataclass(frozen=True)
class Done(Header):
    """From a site: its models are written."""

    kind: ClassVar[str] = "done"


@dataclass(frozen=True)
class Refused(Header):
    """From a site: why it refuses; the sentence must be public."""

    kind: ClassVar[str] = "refused"
    sentence: str


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
