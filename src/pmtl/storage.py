"""Files that are either whole or not there.

Everything is written beside its place, flushed to the disk and renamed, so that a crash at any
moment leaves the old file or the new one. Weights are safetensors, which hold numbers and cannot
hold code. Every JSON object and every safetensors file carries a digest of all that it says, so
that a flipped bit or a careless edit is noticed and never read as another weight or another ε.

A digest of private values is an oracle: a reader who knows all but a few of them can try every
guess against it. In production such digests are therefore keyed (keyed BLAKE2b, RFC 7693) with a
secret that only the run's owner can read. The empty key gives the plain digest.

A new file can be read by those who can open its folder and by nobody else. It is created with that
mode, so it is never readable by others in between, whatever the umask is.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from pmtl.errors import PmtlError
from pmtl.jsontext import to_json

if TYPE_CHECKING:  # The ledger uses this module, and must not need torch.
    from torch import Tensor

#: Opens a file: its path and the flags of `os.open`.
Opener = Callable[[str, int], int]


def write_text(path: Path, text: str) -> None:
    """Replace a text file."""
    replace(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a binary file."""
    replace(path, lambda partial: partial.write_bytes(content))


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a JSON file."""
    plain = json.loads(to_json(value))  # As it will be when it is read.
    write_text(path, to_json({**plain, "digest": _digest_of(plain)}, indent=2) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object that `write_json` wrote, or say what is wrong with the file."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise PmtlError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise PmtlError(f"{path} is damaged: it is not JSON ({error}).") from error
    if not isinstance(value, dict):
        raise PmtlError(f"{path} is damaged: it does not hold a JSON object.")
    if value.pop("digest", None) != _digest_of(value):
        raise PmtlError(
            f"{path} is damaged or was edited: it does not say what was written (its digest "
            "differs). Put it back as it was."
        )
    return value


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any], key: bytes = b""
) -> str:
    """Replace a safetensors file; metadata may be anything that JSON holds. Returns the digest,
    under `key`, of its numbers and of its metadata."""
    from safetensors.torch import save_file

    whole = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    known = digest(whole, metadata, key)
    # One entry, because safetensors writes several in no fixed order: same values, same bytes.
    header = json.dumps({**metadata, "digest": known}, sort_keys=True)
    replace(path, lambda partial: save_file(whole, partial, metadata={"pmtl": header}))
    return known


def read_metadata(path: Path) -> dict[str, Any]:
    """The metadata that `write_tensors` wrote, `digest` included, without checking it."""
    try:
        with safe_open(path, framework="pt") as file:
            return dict(json.loads(file.metadata()["pmtl"]))
    except DAMAGE as error:
        raise PmtlError(f"{path} is damaged and cannot be read ({error}).") from error


def read_tensors(
    path: Path, known: str | None = None, key: bytes = b""
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a safetensors file and check that it says what was written with this `key`; where the
    digest that `write_tensors` returned is `known`, that it is that very file."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = json.loads((file.metadata() or {})["pmtl"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        written = metadata.pop("digest")
        found = digest(tensors, metadata, key)
    except FileNotFoundError as error:
        raise PmtlError(f"{path} is missing.") from error
    except DAMAGE as error:
        raise PmtlError(f"{path} is damaged and cannot be read ({error}).") from error
    if written != found:
        raise PmtlError(f"{path} is damaged: its numbers are not the ones that were written.")
    if known not in (None, found):
        raise PmtlError(f"{path} is not the file that this run wrote: put that one back.")
    return tensors, metadata


#: What safetensors, its header's JSON and a tensor of an odd type may raise for a damaged file.
DAMAGE = (
    *(SafetensorError, OSError, KeyError, ValueError, AttributeError),
    *(TypeError, RecursionError, RuntimeError),
)


def append_line(path: Path, value: Mapping[str, Any]) -> None:
    """Add one line of JSON to a file."""
    with disk_errors(path), open(path, "a", encoding="utf-8", opener=like_its_folder) as file:
        file.write(to_json(value) + "\n")


def flush(path: Path) -> None:
    """Make sure that a file's content, or a folder's list of files, survives a loss of power."""
    if path.exists():
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def disk_errors(
    path: object,
    action: str = "written",
    if_full: str = "What was there before is safe: free some space and try again.",
) -> Iterator[None]:
    """Turn errors of the file system into sentences.

    Args:
        path: What is written or read, as the sentence names it.
        action: What could not be done with it.
        if_full: What the sentence adds when the disk is full.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason, code = str(error), None
        if isinstance(error, OSError):
            reason, code = error.strerror or reason, error.errno
        elif wrapped := re.search(r"os error (\d+)", reason):  # safetensors hides it in its text.
            code = int(wrapped[1])
        if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise PmtlError(
                f"The disk is full: {path} could not be {action} ({reason}). {if_full}"
            ) from error
        raise PmtlError(f"{path} could not be {action}: {reason}.") from error


def take_lock(path: Path, if_held: str) -> int:
    """Lock the file `path` and return its handle; refuse with `if_held` if another process has it.

    Closing the handle frees the lock, and so does the end of the process, however it ends.
    """
    with disk_errors(path):
        handle = like_its_folder(str(path), os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            if isinstance(error, BlockingIOError):
                raise PmtlError(if_held) from error
            raise
    return handle


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock file of a folder; refuse if another process holds it."""
    busy = f"Another process is working on {path.parent}: wait for it, or stop it first."
    handle = take_lock(path, busy)
    try:
        yield
    finally:
        os.close(handle)


def replace(path: Path, write: Callable[[Path], object], opener: Opener | None = None) -> None:
    """Let `write` fill a file beside its place, and put it there when it is on disk.

    The file exists, empty and with its final mode, before `write` is called; `opener` creates it
    (unless given, its folder decides who can read it)."""
    partial = path.with_name(f".{path.name}.partial")
    with disk_errors(path):
        try:
            partial.unlink(missing_ok=True)  # A crash may have left one behind.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            os.close((opener or like_its_folder)(str(partial), flags))
            mode = stat.S_IMODE(partial.stat().st_mode)
            write(partial)
            if stat.S_IMODE(partial.stat().st_mode) != mode:
                partial.chmod(mode)  # safetensors makes a file of its own, for its owner only.
            flush(partial)
            place(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def place(partial: Path, path: Path) -> None:
    """Put a file or a folder where it belongs, and return when that is on the disk."""
    partial.replace(path)
    flush_folder(path)


def flush_folder(path: Path) -> None:
    """Make sure that the folder of `path` lists it after a loss of power."""
    flush(path.parent)


def like_its_folder(path: str, flags: int) -> int:
    """Open a file; if that creates it, those can read or write it who can do so with its folder.

    To be used as an `opener`."""
    return os.open(path, flags, stat.S_IMODE(Path(path).parent.stat().st_mode) & 0o666)


def open_to_others(path: Path) -> bool:
    """Whether anybody but its owner has any permission on a file or folder."""
    return bool(stat.S_IMODE(path.stat().st_mode) & 0o077)


def digest_of_text(text: str, key: bytes = b"") -> str:
    """What tells a text from any other; with a `key`, only for those who have it."""
    return hashlib.blake2b(text.encode(), digest_size=16, key=key).hexdigest()


def _digest_of(value: Any) -> str:
    """The digest of a JSON value, however it is laid out."""
    return digest_of_text(json.dumps(value, sort_keys=True))


def digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any], key: bytes = b"") -> str:
    """What tells these tensors and what is said of them from any others; with a `key`, only for
    those who have it."""
    state = hashlib.blake2b(json.dumps(metadata, sort_keys=True).encode(), digest_size=16, key=key)
    for name in sorted(tensors):
        value = tensors[name]
        state.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        state.update(value.contiguous().numpy().data)
    return state.hexdigest()
