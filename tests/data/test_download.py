"""Downloads, from a server of our own on loopback; nothing here reaches outside."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import shutil
import socket
import sys
import tarfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from pmtl.data import download as fetch
from pmtl.data.download import CATALOGUE, DataSet, Source
from pmtl.errors import PmtlError

CONTENT = bytes(range(256)) * 40


def packed(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:bz2") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves `server.files`; cuts a transfer short after `server.cut` bytes, once."""

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.asked.append(asked)
        content = self.server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        begins = 0
        if asked and self.server.ranges:
            begins = int(asked.removeprefix("bytes=").removesuffix("-"))
            if begins >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begins}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content) - begins))
        self.end_headers()
        cut, self.server.cut = self.server.cut, None
        self.wfile.write(content[begins:cut])

    def log_message(self, *arguments: object) -> None:
        return None


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(fetch, "TIMEOUT", 5.0)
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as served:
        served.files, served.asked, served.cut, served.ranges = {}, [], None, True
        thread = threading.Thread(target=served.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield SimpleNamespace(http=served, url=f"http://127.0.0.1:{served.server_address[1]}")
        served.shutdown()
        thread.join(timeout=5)


@pytest.fixture
def plain(server, monkeypatch):
    """A data set of one file without a published checksum."""
    server.http.files["/rows.bin"] = CONTENT
    offer(monkeypatch, Source(f"{server.url}/rows.bin"))
    return server.http


def offer(monkeypatch, *sources: Source) -> None:
    monkeypatch.setitem(CATALOGUE, "rows", DataSet(sources, "Rows", "pmtl train --data {folder}"))


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_a_file_without_a_published_checksum_has_its_first_one_kept(plain, tmp_path):
    came = fetch.fetch("rows", tmp_path / "to")
    assert (tmp_path / "to" / "rows.bin").read_bytes() == CONTENT
    entry = {"file": "rows.bin", "sha256": digest(CONTENT), "checked": "first download"}
    assert came["files"] == [entry]
    assert came["next"] == f"pmtl train --data {tmp_path / 'to'}"
    assert (tmp_path / "to" / "rows.bin.sha256").read_text() == f"{digest(CONTENT)}  rows.bin\n"
    assert not list(tmp_path.glob("to/*.part"))

    fetch.fetch("rows", tmp_path / "to")
    assert len(plain.asked) == 1
    assert fetch.fetch("rows", tmp_path / "to", force=True)["files"][0]["checked"] == "recorded"
    plain.files["/rows.bin"] = CONTENT[::-1]
    with pytest.raises(PmtlError, match="first download"):
        fetch.fetch("rows", tmp_path / "to", force=True)
    assert (tmp_path / "to" / "rows.bin").read_bytes() == CONTENT


def test_a_transfer_that_is_cut_off_goes_on(plain, tmp_path, monkeypatch):
    monkeypatch.setattr(fetch, "CHUNK", 1000)  # The bytes of an unfinished chunk are lost.
    plain.cut = 3000
    with pytest.raises(PmtlError, match=r"stopped .*3000 bytes read.*downloaded part is kept"):
        fetch.fetch("rows", tmp_path)
    assert not (tmp_path / "rows.bin").exists()
    fetch.fetch("rows", tmp_path)
    assert plain.asked == [None, "bytes=3000-"]
    assert (tmp_path / "rows.bin").read_bytes() == CONTENT


def test_a_server_that_knows_no_ranges_begins_again(plain, tmp_path):
    (tmp_path / "rows.bin.part").write_bytes(b"old")
    plain.ranges = False
    fetch.fetch("rows", tmp_path)
    assert (tmp_path / "rows.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("there", [CONTENT, CONTENT + b"and more"])
def test_a_part_with_nothing_behind_it(plain, tmp_path, there):
    (tmp_path / "rows.bin.part").write_bytes(there)
    fetch.fetch("rows", tmp_path)
    assert (tmp_path / "rows.bin").read_bytes() == CONTENT
    assert len(plain.asked) == (1 if there == CONTENT else 2)


def test_archives_are_checked_and_unpacked(server, monkeypatch, tmp_path):
    inside = {"a/rows_train.h5": b"train", "../rows_test.h5": b"test", "other": b"?"}
    server.http.files["/rows.tar.bz2"] = archive = packed(inside)
    names = ("rows_train.h5", "rows_test.h5")
    offer(monkeypatch, Source(f"{server.url}/rows.tar.bz2", digest(archive), names))
    folder = tmp_path / "to"
    assert fetch.fetch("rows", folder)["files"][0]["checked"] == "published"
    assert {file.name for file in tmp_path.iterdir()} == {"to"}
    assert {file.name for file in folder.iterdir()} == {*names, "rows.tar.bz2.sha256"}
    assert (folder / "rows_test.h5").read_bytes() == b"test"
    fetch.fetch("rows", folder)
    assert len(server.http.asked) == 1

    offer(monkeypatch, Source(f"{server.url}/rows.tar.bz2", digest(archive), (*names, "c.h5")))
    with pytest.raises(PmtlError, match=r"does not hold c\.h5"):
        fetch.fetch("rows", tmp_path / "new")


def test_a_wrong_checksum(server, monkeypatch, tmp_path):
    server.http.files["/rows.bin"] = CONTENT
    offer(monkeypatch, Source(f"{server.url}/rows.bin", "0" * 64))
    with pytest.raises(PmtlError, match=f"{digest(CONTENT)}, but the one published is 0000"):
        fetch.fetch("rows", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_gone(server, monkeypatch, tmp_path):
    offer(monkeypatch, Source(f"{server.url}/nowhere.bin"))
    with pytest.raises(PmtlError, match=r"nowhere\.bin answers 404"):
        fetch.fetch("rows", tmp_path)


def test_no_network(monkeypatch, tmp_path):
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as closed:  # Bound and not listening: whoever calls is turned away.
        closed.bind(("127.0.0.1", 0))
        offer(monkeypatch, Source(f"http://127.0.0.1:{closed.getsockname()[1]}/rows.bin"))
        for folder in (tmp_path, tmp_path / "new"):
            with pytest.raises(PmtlError, match=r"cannot be reached.*check the network"):
                fetch.fetch("rows", folder)
    assert tmp_path.exists()
    assert not (tmp_path / "new").exists()


def test_a_disk_without_room(plain, monkeypatch, tmp_path):
    room = SimpleNamespace(free=len(CONTENT) - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: room)
    with pytest.raises(PmtlError, match=r"needs 10,240 bytes in .*10,239 are free"):
        fetch.fetch("rows", tmp_path)
    room.free += 1
    fetch.fetch("rows", tmp_path)


def test_a_disk_that_fills_up(plain, monkeypatch, tmp_path):
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pooch.HTTPDownloader.__call__", full)
    with pytest.raises(PmtlError, match="disk is full"):
        fetch.fetch("rows", tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(PmtlError, match="could not be written"):
        fetch.fetch("rows", tmp_path / "file")


def test_what_a_person_has_to_do_and_what_nobody_knows(tmp_path):
    with pytest.raises(PmtlError, match=r"agreement.*preprocess\.sh"):
        fetch.fetch("celeba", tmp_path)
    with pytest.raises(PmtlError, match="Did you mean 'femnist'"):
        fetch.fetch("femmist", tmp_path)


def test_without_pooch(plain, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(PmtlError, match=r"needs pooch.*pmtl\[datasets\]"):
        fetch.fetch("rows", tmp_path / "to")
    assert not (tmp_path / "to").exists()


def test_the_catalogue():
    sources = [source for entry in CATALOGUE.values() for source in entry.sources]
    assert len({source.name for source in sources}) == len(sources) == 6
    assert all(source.url.startswith("https://") for source in sources)
    published = [source.sha256 for source in sources if source.sha256]
    assert len(published) == 4
    assert all(len(bytes.fromhex(sha)) == 32 for sha in published)
    assert CATALOGUE["celeba"].sources == ()


def test_the_command(plain, pmtl_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = pmtl_command("data", "fetch", "rows", "--json")
    assert json.loads(outcome.out)["files"][0]["sha256"] == digest(CONTENT)
    assert Path("data/rows/rows.bin").read_bytes() == CONTENT
    outcome = pmtl_command("data", "fetch", "rows", "--to", "there")
    assert f"rows.bin  SHA-256 {digest(CONTENT)} (first download)" in outcome.out
    assert "Next: pmtl train --data there" in outcome.out
    refused = pmtl_command("data", "fetch", "celeba")
    assert refused.status == 2
    assert "non-commercial research" in refused.err
