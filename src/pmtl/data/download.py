"""Downloads the paper's data sets from their publishers (`pmtl data fetch`).

A file is downloaded under another name and renamed when it is complete and its SHA-256 is correct.
An interrupted transfer is continued. TensorFlow Federated's checksums are those of its own loaders
(its modules `emnist` and `stackoverflow`, releases that read HDF5). NIST publishes
none: the checksum of the first download is kept beside the file, and later ones must be equal.
"""

from __future__ import annotations

import hashlib
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pmtl._version import __version__
from pmtl.errors import PmtlError, require_package
from pmtl.spec import unknown
from pmtl.storage import disk_errors
from pmtl.views.progress import progress_bar

CHUNK = 1 << 20
TIMEOUT = 60.0  #: seconds without a byte after which a transfer is given up

_IF_FULL = (
    "Free some space, or name another folder with --to, and run the command again; the downloaded "
    "part is kept."
)
_TFF = "https://storage.googleapis.com/tff-datasets-public"
_NIST = "https://s3.amazonaws.com/nist-srd/SD19"


@dataclass(frozen=True)
class Source:
    """One file to download. An archive is unpacked into the files `holds`, and then removed."""

    url: str
    sha256: str | None = None
    holds: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class DataSet:
    sources: tuple[Source, ...]
    about: str
    next: str  #: how to use it; {folder} is its folder
    by_hand: str | None = None  #: the steps for a person, if a program must not fetch it


CATALOGUE: dict[str, DataSet] = {
    "femnist": DataSet(
        (
            Source(
                f"{_TFF}/fed_emnist.tar.bz2",
                "fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0",
                ("fed_emnist_train.h5", "fed_emnist_test.h5"),
            ),
        ),
        "FEMNIST, 3,400 writers and 62 classes, as TensorFlow Federated publishes it",
        "pmtl train --data {folder}:min_rows=100,clients=205 --model femnist_cnn",
    ),
    "femnist-nist": DataSet(
        (Source(f"{_NIST}/by_class.zip"), Source(f"{_NIST}/by_write.zip")),
        "NIST Special Database 19, from which LEAF's scripts make FEMNIST",
        "unpack both in LEAF's data/femnist/data/raw_data, run its preprocess.sh -s niid --sf 0.05 "
        "-k 100 -t sample, and give pmtl LEAF's folder data/femnist",
    ),
    "stackoverflow": DataSet(
        (
            Source(
                f"{_TFF}/stackoverflow.word_count.tar.bz2",
                "1dc00256d6e527c54b9756d968118378ae14e6692c0b3b6cad470cdd3f0c519c",
                ("stackoverflow.word_count",),
            ),
            Source(
                f"{_TFF}/stackoverflow.tag_count.tar.bz2",
                "6fe281cec490d9384a290d560072438e7e2b377bbb823876ce7bd6f82696772d",
                ("stackoverflow.tag_count",),
            ),
            Source(
                f"{_TFF}/stackoverflow.tar.bz2",
                "99eca2f8b8327a09e5fc123979df2d237acbc5e52322f6d86bf523ee47b961a2",
                ("stackoverflow_train.h5", "stackoverflow_held_out.h5", "stackoverflow_test.h5"),
            ),
        ),
        "StackOverflow's questions and answers (CC BY-SA 3.0), as TensorFlow Federated publishes "
        "them: many gigabytes",
        "pmtl train --data {folder}:clients=400 --model logistic",
    ),
    "celeba": DataSet(
        (),
        "CelebA, faces by celebrity, for LEAF's task of detecting a smile",
        "pmtl train --data leaf/data/celeba --model celeba_cnn",
        by_hand="CelebA is for non-commercial research under an agreement that a person has to "
        "accept, so it is not fetched by a program. (1) From its official page, "
        "http://mmlab.ie.cuhk.edu.hk/projects/CelebA.html, get img_align_celeba.zip, "
        "identity_CelebA.txt (on request) and list_attr_celeba.txt. (2) In a copy of "
        "LEAF (https://github.com/TalwalkarLab/leaf) put the two text files into "
        "data/celeba/data/raw and the images into data/celeba/data/raw/img_align_celeba. (3) In "
        "data/celeba run ./preprocess.sh -s niid --sf 0.05 -k 5 -t sample. (4) Give pmtl that "
        "folder: pmtl train --data leaf/data/celeba --model celeba_cnn.",
    ),
}


def fetch(
    name: str, to: str | Path | None = None, force: bool = False, progress: bool = False
) -> dict[str, Any]:
    """Download a data set of the `CATALOGUE` to the folder `to`, by default data/NAME; `force`:
    files that exist are fetched again. Returns the folder, its files with their checksums, and what
    to do next."""
    if name not in CATALOGUE:
        raise unknown("data set to fetch named", name, CATALOGUE)
    wanted = CATALOGUE[name]
    if wanted.by_hand is not None:
        raise PmtlError(wanted.by_hand)
    folder = Path(to) if to is not None else Path("data") / name
    with disk_errors(folder, if_full=_IF_FULL):
        existed = folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            files = [_fetch_source(source, folder, force, progress) for source in wanted.sources]
        finally:
            if not existed and not any(folder.iterdir()):
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
    wanted = [folder / part for part in source.holds] or [file]
    known = _recorded(record)
    if all(part.exists() for part in wanted) and not force:
        return {"file": source.name, "sha256": known, "checked": "already there"}
    if file.exists() and not force:
        found = known  # An archive that was checked before, but could not be unpacked.
    else:
        partial = folder / f"{source.name}.part"
        _download(source.url, partial, progress)
        with partial.open("rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
        right = source.sha256 or known
        if right not in (None, found):
            partial.unlink()
            whose = "published" if source.sha256 else "of the first download"
            raise PmtlError(
                f"{source.name} has the SHA-256 {found}, but the one {whose} is {right}: the "
                "download was removed; fetch it again. If that does not help, do not use it."
            )
        record.write_text(f"{found}  {source.name}\n", encoding="utf-8")
        partial.replace(file)
    if source.holds:
        _unpack(file, folder, source.holds, progress)
        file.unlink()
    checked = "published" if source.sha256 else "recorded" if known else "first download"
    return {"file": source.name, "sha256": found, "checked": checked}


def _recorded(record: Path) -> str | None:
    try:
        return record.read_text(encoding="utf-8").split()[0]
    except (FileNotFoundError, IndexError, UnicodeDecodeError):
        return None


def _download(url: str, partial: Path, progress: bool) -> None:
    with require_package("Fetching data sets needs pooch: pip install 'pmtl[datasets]'."):
        from pooch import HTTPDownloader
        from requests import HTTPError, RequestException

    done = partial.stat().st_size if partial.exists() else 0
    headers = {"User-Agent": f"pmtl/{__version__}", "Accept-Encoding": "identity"}
    if done:
        headers["Range"] = f"bytes={done}-"
    with partial.open("ab") as file:

        def on_answer(answer: Any, **_: Any) -> None:
            if answer.status_code not in (200, 206):
                return
            if not answer.headers.get("Content-Range", "").startswith(f"bytes {done}-"):
                file.truncate(0)  # The server sends the whole file.
            needed = int(answer.headers.get("Content-Length", 0))
            _check_free_space(partial.parent, needed, url)

        get = HTTPDownloader(
            progress, CHUNK, timeout=TIMEOUT, headers=headers, hooks={"response": on_answer}
        )
        try:
            get(url, file, None)
            return
        except HTTPError as error:
            answer: Any = error.response
            # The part has the length of the whole file: it is complete, or another file.
            if answer.headers.get("Content-Range") == f"bytes */{done}":
                return
            if answer.status_code != 416:
                raise PmtlError(
                    f"{url} answers {answer.status_code} ({answer.reason}): it may have moved. "
                    "Look for it at its publisher, and report this."
                ) from error
        except RequestException as error:
            raise PmtlError(
                f"{url} cannot be reached, or the transfer stopped ({error}): check the network "
                "and run the command again. The downloaded part is kept, and will be continued."
            ) from error
        finally:
            if not partial.stat().st_size:
                partial.unlink()
    partial.unlink()
    _download(url, partial, progress)


def _unpack(archive: Path, folder: Path, names: tuple[str, ...], progress: bool) -> None:
    """Unpack the named files of an archive into `folder`, without their paths in the archive."""
    missing = set(names)
    try:
        with tarfile.open(archive) as packed:
            for member in packed:
                name = Path(member.name).name
                content = packed.extractfile(member) if name in missing else None
                if content is None:
                    continue
                _check_free_space(folder, member.size, name)
                partial = folder / f"{name}.part"
                chunks = -(-member.size // CHUNK)
                with (
                    partial.open("wb") as file,
                    progress_bar(f"unpacking {name} (MiB)", chunks, show=progress) as bar,
                ):
                    while chunk := content.read(CHUNK):
                        file.write(chunk)
                        bar.advance()
                partial.replace(folder / name)
                missing.discard(name)
    except (tarfile.TarError, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise  # An error of the disk, not of the archive.
        raise PmtlError(f"{archive} cannot be unpacked ({error}): fetch it again.") from error
    if missing:
        raise PmtlError(f"{archive} does not hold {', '.join(sorted(missing))}: fetch it again.")


def _check_free_space(folder: Path, needed: int, what: str) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise PmtlError(
            f"{what} needs {needed:,} bytes in {folder}, but {free:,} are free: free some space, "
            "or name another folder with --to."
        )
