"""Files that are either complete or absent.

A file is written under another name, flushed to disk and renamed: a crash leaves the old file or
the new one. JSON and safetensors files carry a digest of their content, so damage is noticed.

A digest of private values lets a reader test guesses. In production such digests are keyed (keyed
BLAKE2b, RFC 7693) with a secret of the run's owner. The empty key gives the plain digest.

A new file has the permissions of its folder from the start, whatever the umask is.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from pmtl.errors import PmtlError, PublicError, kind_of
from pmtl.jsontext import to_json

if TYPE_CHECKING:  # The ledger uses this module, and must not need torch.
    from torch import Tensor

#: Opens a file: its path and the flags of `os.open`.
Opener = Callable[[str, int], int]


def write_text(path: Path, text: str) -> None:
    replace(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    replace(path, lambda partial: partial.write_bytes(content))


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    plain = json.loads(to_json(value))  # The digest is of the values as they will be read.
    write_text(path, to_json({**plain, "digest": _digest_of(plain)}, indent=2) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object that `write_json` wrote."""
    try:
        with disk_errors(path, "read"):
            value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise PmtlError(f"{path} is damaged: it is not JSON ({error}).") from error
    if not isinstance(value, dict):
        raise PmtlError(f"{path} is damaged: it does not hold a JSON object.")
    if value.pop("digest", None) != _digest_of(value):
        raise PmtlError(
            f"{path} is damaged or was edited: its digest differs from that of the written values. "
            "Put it back as it was."
        )
    return value


def read_toml(path: str | Path, what: str) -> dict[str, Any]:
    """The values of a TOML file that a user wrote. Error messages begin with `what`."""
    try:
        return tomllib.loads(as_path(path, what).read_bytes().decode("utf-8"))
    except OSError as error:
        raise PublicError(f"{what} {path} cannot be read: {error.strerror}.") from error
    except RecursionError as error:
        raise PublicError(f"{what} {path} is nested too deeply.") from error
    except ValueError as error:
        raise PublicError(f"{what} {path} is not valid TOML: {error}.") from error


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any], key: bytes = b""
) -> str:
    """Replace a safetensors file; returns the digest of tensors and metadata (JSON) under `key`."""
    from safetensors.torch import save_file

    whole = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    known = digest(whole, metadata, key)
    # One entry, because safetensors writes several in no fixed order: same values, same bytes.
    header = json.dumps({**metadata, "digest": known}, sort_keys=True)
    replace(path, lambda partial: save_file(whole, partial, metadata={"pmtl": header}))
    return known


def read_metadata(path: Path) -> dict[str, Any]:
    """The metadata that `write_tensors` wrote, with `digest`; neither is checked."""
    with read_errors(path), safe_open(path, framework="pt") as file:
        return dict(json.loads(file.metadata()["pmtl"]))


def read_tensors(
    path: Path, known: str | None = None, key: bytes = b""
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a safetensors file that was written with this `key`, and check its digest.

    `known` is the digest that `write_tensors` returned, if the caller has it: then the file must
    be the one that was written at that time."""
    with read_errors(path), safe_open(path, framework="pt") as file:
        metadata = json.loads((file.metadata() or {})["pmtl"])
        # Copies are aligned: the last bits of a product may depend on the address in memory.
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        written = metadata.pop("digest")
        found = digest(tensors, metadata, key)
    check_digest(path, written, found, known)
    return tensors, metadata


@contextmanager
def read_errors(path: Path) -> Iterator[None]:
    """Turn errors of reading a safetensors file into `PmtlError`."""
    try:
        yield
    except FileNotFoundError as error:
        raise PmtlError(f"{path} is missing.") from error
    except _DAMAGE as error:
        raise PmtlError(f"{path} is damaged and cannot be read ({error}).") from error


#: Raised for a damaged file by safetensors, by its header's JSON, or by a tensor of another type.
_DAMAGE = (
    *(SafetensorError, OSError, KeyError, ValueError, AttributeError),
    *(TypeError, RecursionError, RuntimeError),
)


def check_digest(path: Path, written: str, found: str, known: str | None) -> None:
    """Refuse a file whose digest `found` is not the one `written` in it, or not the `known` one."""
    if written != found:
        raise PmtlError(f"{path} is damaged: its numbers are not the ones that were written.")
    if known not in (None, found):
        raise PmtlError(f"{path} is not the file that this run wrote: put that one back.")


def append_line(path: Path, line: str) -> None:
    with disk_errors(path), open(path, "a", encoding="utf-8", opener=open_like_folder) as file:
        file.write(f"{line}\n")


def flush(path: Path) -> None:
    """Write a file's content, or a folder's list of files, through to the disk."""
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
    """Turn errors of the file system into a `PmtlError` that names `path`, the `action` that
    failed, and what to do if the disk is full."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason, code = str(error), None
        if isinstance(error, OSError):
            reason, code = error.strerror or reason, error.errno
        elif wrapped := re.search(r"os error (\d+)", reason):  # The code is only in the message.
            code = int(wrapped[1])
        if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise PmtlError(
                f"The disk is full: {path} could not be {action} ({reason}). {if_full}"
            ) from error
        raise PmtlError(f"{path} could not be {action}: {reason}.") from error


def take_lock(path: Path, if_held: str) -> int:
    """Lock the file `path` and return its handle; refuse with `if_held` if another process has it.

    Closing the handle or ending the process, by any cause, frees the lock.
    """
    with disk_errors(path):
        handle = open_like_folder(str(path), os.O_RDWR | os.O_CREAT)
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


def next_numbered(path: Path) -> Path:
    """The first of PATH-1, PATH-2, … that does not exist."""
    names = (path.with_name(f"{path.name}-{number}") for number in count(1))
    return next(name for name in names if not name.exists())


def is_free(path: str | Path) -> bool:
    """Whether `path` does not exist or is an empty folder."""
    path = Path(path)
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))


def as_path(given: Any, what: str) -> Path:
    """A path that a user gave; ~ is the home folder. `what` says in errors what it is for."""
    if not isinstance(given, (str, os.PathLike)):
        raise PublicError(f"{what} must be a path, but {kind_of(given)} was given.")
    try:
        path = Path(given).expanduser()
        path.resolve()
    except (OSError, ValueError, RuntimeError) as error:  # A null character; an unknown home.
        raise PublicError(f"{what} {str(given)!r} is not a path: {error}.") from error
    return path


def replace(path: Path, write: Callable[[Path], object], opener: Opener | None = None) -> None:
    """Let `write` fill a file of another name, and rename it to `path` when it is on disk.

    `opener` creates the file, empty and with its final permissions, before `write` is called; by
    default it has the permissions of its folder."""
    partial = path.parent / f".{path.name}.partial"  # The path "." has no name.
    with disk_errors(path):
        try:
            partial.unlink(missing_ok=True)  # A crash may have left one behind.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            os.close((opener or open_like_folder)(str(partial), flags))
            mode = stat.S_IMODE(partial.stat().st_mode)
            write(partial)
            if stat.S_IMODE(partial.stat().st_mode) != mode:
                partial.chmod(mode)  # safetensors replaces the file by one of another mode.
            flush(partial)
            place(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def place(partial: Path, path: Path) -> None:
    """Rename a file or folder to its final name, and return when that is on disk."""
    partial.replace(path)
    flush(path.parent)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A temporary path for a folder, which is renamed to `path` at the end, or removed on error."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with disk_errors(path):
        try:
            yield partial
            place(partial, path)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


def open_like_folder(path: str, flags: int) -> int:
    """An `opener`: a file that it creates has the read and write permissions of its folder."""
    return os.open(path, flags, stat.S_IMODE(Path(path).parent.stat().st_mode) & 0o666)


def others_have_access(path: Path) -> bool:
    """Whether users other than the owner have any permission on a file or folder."""
    return bool(stat.S_IMODE(path.stat().st_mode) & 0o077)


def digest_of_text(text: str, key: bytes = b"") -> str:
    return hashlib.blake2b(text.encode(), digest_size=16, key=key).hexdigest()


def _digest_of(value: Any) -> str:
    return digest_of_text(json.dumps(value, sort_keys=True))


def digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any], key: bytes = b"") -> str:
    """The BLAKE2b digest of tensors and metadata under `key`."""
    state = hashlib.blake2b(json.dumps(metadata, sort_keys=True).encode(), digest_size=16, key=key)
    for name in sorted(tensors):
        value = tensors[name]
        state.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        state.update(value.contiguous().numpy().data)
    return state.hexdigest()
