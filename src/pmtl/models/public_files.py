"""Tensors from files that the user says are public: a start, a basis.

The user guarantees that a file is public: made without the clients' data. The statement records its
SHA-256 digest. Private files of a run are refused.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from pmtl.errors import PmtlError
from pmtl.storage import as_path, disk_errors

#: Files that mark the folder of a run, or the private part of one, or of a fine-tuned result.
_RUN_FILES = ("run.json", "finetuned.json")
#: The public files of such a folder.
_PUBLIC = ("shared.safetensors", "start.safetensors")


@dataclass(frozen=True)
class PublicFile:
    """The tensors of a safetensors file."""

    name: str  #: the name of the file, without its folder
    digest: str  #: SHA-256 of its bytes
    tensors: dict[str, Tensor]

    def about(self) -> dict[str, str]:
        """The description of the file in a run's records."""
        return {"file": self.name, "sha256": self.digest}


def read_public(path: str | Path, what: str) -> PublicFile:
    """Read a public safetensors file, which errors call `what` ("start", "basis"). Digest and
    tensors come from the same bytes."""
    path = as_path(path, f"The {what}")
    with disk_errors(f"The {what} {path}", "read"):
        _refuse_private(path, what)
        content = path.read_bytes()
    _refuse_exported(content, path, what)
    try:
        tensors = load(content)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise PmtlError(
            f"The {what} {path} is not a safetensors file ({error}): write one with "
            "safetensors.torch.save_file."
        ) from error
    for name, value in tensors.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise PmtlError(f"The {what} {path} is not finite: {name!r} has infinite or NaN.")
    return PublicFile(path.name, hashlib.sha256(content).hexdigest(), tensors)


def _refuse_exported(content: bytes, path: Path, what: str) -> None:
    """Refuse a client's model that `pmtl export` wrote; what is not such a file is read later."""
    try:
        head = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        owner = json.loads(head["__metadata__"]["pmtl"])["private_to"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return
    if owner is not None:
        raise PmtlError(
            f"The {what} {path} is the model of client {owner!r} and was made from its data, so it "
            "is private: give a file that was made from public data only."
        )


def _refuse_private(path: Path, what: str) -> None:
    """Refuse a file of a run's folder that was made from the clients' rows."""
    for place in {Path(os.path.abspath(path)), Path(os.path.realpath(path))}:  # noqa: PTH100
        for folder in place.parents:
            of_a_run = any(os.path.exists(folder / name) for name in _RUN_FILES)  # noqa: PTH110
            if of_a_run and str(place.relative_to(folder)) not in _PUBLIC:
                raise PmtlError(
                    f"The {what} {path} lies in the run {folder} and was made from its clients' "
                    "data, so it is private: give a file that was made from public data only."
                )
