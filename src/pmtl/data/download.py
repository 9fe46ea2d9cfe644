"""Downloads of the paper's data sets, from their official places.

A file is written beside its place and renamed when it is whole and its SHA-256 is right. A transfer
that was cut off goes on where it stopped. Where the publisher gives no checksum, that of the first
download is written down beside the file and later ones are held against it.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import shutil
import ssl
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from pmtl._version import __version__
from pmtl.data.catalogue import Source, data_set
from pmtl.errors import PmtlError
from pmtl.progress import progress_bar

CHUNK = 1 << 20
PATIENCE = 60.0
"""Seconds without a byte after which a server is given up."""

#: What a network that is not there, or goes away, raises.
_AWAY = (
    urllib.error.URLError,
    http.client.HTTPException,
    ssl.SSLError,
    TimeoutError,
    ConnectionError,
)


def fetch(
    name: str, to: str | Path | None = None, force: bool = False, progress: bool = False
) -> dict[str, Any]:
    """Download a data set to the folder `to` (data/NAME unless given), and say what came.

    What is there already is left alone unless `force` asks for it again.
    """
    wanted = data_set(name)
    if wanted.by_hand is not None:
        raise PmtlError(wanted.by_hand)
    folder = Path(to) if to is not None else Path("data") / name
    with _writing(folder):
        there = folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            files = [_fetch_source(source, folder, force, progress) for source in wanted.sources]
        finally:
            if not there and not any(folder.iterdir()):  # Nothing came.
                folder.rmdir()
    return {
        "name": name,
        "about": wanted.about,
        "folder": str(folder),
        "files": files,
        "next": wanted.next.format(folder=folder),
    }


def _fetch_source(source: Source, folder: Path, force: bool, progress: bool) -> dict[str, Any]:
    file = folder / source.name
    record = folder / f"{source.name}.sha256"
    there = [folder / part for part in source.holds] or [file]
    known = _recorded(record)
    if all(part.exists() for part in there) and not force:
        return {"file": source.name, "sha256": known, "checked": "already there"}
    if file.exists() and not force:
        found = known  # An archive that was found right before, and could not be unpacked.
    else:
        partial = folder / f"{source.name}.part"
        _download(source.url, partial, progress)
        found = _sha256(partial, progress)
        _refuse_other(source, found, known, partial)
        record.write_text(f"{found}  {source.name}\n", encoding="utf-8")
        partial.replace(file)
    if source.holds:
        _unpack(file, folder, source.holds, progress)
        file.unlink()
    checked = "published" if source.sha256 else "recorded" if known else "first download"
    return {"file": source.name, "sha256": found, "checked": checked}


def _refuse_other(source: Source, found: str, known: str | None, partial: Path) -> None:
    """Remove a file that is not what was published, or not what came the first time."""
    right = source.sha256 or known
    if right not in (None, found):
        partial.unlink()
        whose = "published" if source.sha256 else "of the first download"
        raise PmtlError(
            f"{source.name} has the SHA-256 {found}, but the one {whose} is {right}: what came was "
            "removed; fetch it again, and if that does not help, do not use it."
        )


def _recorded(record: Path) -> str | None:
    try:
        return record.read_text(encoding="utf-8").split()[0]
    except (FileNotFoundError, IndexError, UnicodeDecodeError):
        return None


def _download(url: str, partial: Path, progress: bool) -> None:
    """Get the rest of a file, whatever part of it is there already."""
    done = partial.stat().st_size if partial.exists() else 0
    headers = {"User-Agent": f"pmtl/{__version__}"}
    if done:
        headers["Range"] = f"bytes={done}-"
    with _network(url, partial):
        try:
            answer = urllib.request.urlopen(
                urllib.request.Request(url, headers=headers), timeout=PATIENCE
            )
        except urllib.error.HTTPError as error:
            if error.code != 416 or not done:
                raise
            error.close()
            # Nothing lies behind what is there: it is the whole file, or none of it.
            if error.headers.get("Content-Range") == f"bytes */{done}":
                return None
            partial.unlink()
            return _download(url, partial, progress)
        with answer:
            done = done if answer.status == 206 and _begins_at(answer, done) else 0
            length = answer.headers.get("Content-Length")
            total = None if length is None else done + int(length)
            if total is not None:
                _refuse_without_room(partial.parent, total - done, url)
            with partial.open("ab" if done else "wb") as file:
                _copy(answer, file, url.rpartition("/")[2], done, total, progress)
            size = partial.stat().st_size
    if total is not None and size != total:
        raise PmtlError(
            f"The transfer of {url} stopped after {size:,} of {total:,} bytes: run the command "
            "again, and it goes on from there."
        )
    return None


def _begins_at(answer: Any, place: int) -> bool:
    return str(answer.headers.get("Content-Range", "")).startswith(f"bytes {place}-")


def _copy(
    source: IO[bytes], file: IO[bytes], what: str, done: int, total: int | None, progress: bool
) -> None:
    whole = -(-(total or done) // CHUNK)
    with progress_bar(f"{what} (MiB)", whole, done // CHUNK, progress) as bar:
        while chunk := source.read(CHUNK):
            file.write(chunk)
            bar.advance()


def _unpack(archive: Path, folder: Path, names: tuple[str, ...], progress: bool) -> None:
    """The named files of an archive, and nothing else, whatever paths it gives them."""
    missing = set(names)
    try:
        with tarfile.open(archive) as packed:
            for member in packed:
                name = Path(member.name).name
                content = packed.extractfile(member) if name in missing else None
                if content is None:
                    continue
                _refuse_without_room(folder, member.size, name)
                partial = folder / f"{name}.part"
                with partial.open("wb") as file:
                    _copy(content, file, f"unpacking {name}", 0, member.size, progress)
                partial.replace(folder / name)
                missing.discard(name)
    except (tarfile.TarError, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise  # It is about the disk and not about the archive.
        raise PmtlError(f"{archive} cannot be unpacked ({error}): fetch it again.") from error
    if missing:
        raise PmtlError(f"{archive} does not hold {', '.join(sorted(missing))}, as it should.")


def _sha256(file: Path, progress: bool) -> str:
    digest = hashlib.sha256()
    size = file.stat().st_size
    with (
        file.open("rb") as stream,
        progress_bar(f"checking {file.name} (MiB)", -(-size // CHUNK), 0, progress) as bar,
    ):
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
            bar.advance()
    return digest.hexdigest()


def _refuse_without_room(folder: Path, needed: int, what: str) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise PmtlError(
            f"{what} needs {needed:,} bytes in {folder}, and {free:,} are free: make room, or name "
            "another folder with --to."
        )


@contextmanager
def _network(url: str, partial: Path) -> Iterator[None]:
    """What may go wrong on the way, in a sentence."""
    try:
        yield
    except urllib.error.HTTPError as error:
        error.close()
        raise PmtlError(
            f"{url} answers {error.code} ({error.reason}): it may have moved; look for it at its "
            "publisher, and report this."
        ) from error
    except _AWAY as error:
        reason = getattr(error, "reason", None) or str(error) or type(error).__name__
        kept = " What came is kept, and the next try goes on from there." * partial.exists()
        raise PmtlError(
            f"{url} cannot be reached ({reason}): check the network and run the command again."
            + kept
        ) from error


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Say where nothing can be written, or nothing more."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise PmtlError(
                f"The disk is full: make room at {folder}, or name another folder with --to, and "
                "run the command again; what came is kept."
            ) from error
        raise PmtlError(
            f"{error.filename or folder} cannot be written: {error.strerror or error}."
        ) from error
