"""Who may write what to whom."""

from __future__ import annotations

import pytest

pytest.importorskip("nvflare", reason="NVFLARE is an extra: pip install 'pmtl[federation]'")

from pmtl.federation.nvflare.guard import Guard, SiteNames
from pmtl.federation.nvflare.policy import write_site_names

ADMIN, CELL = "admin@pmtl.local", "_admin_0a"


@pytest.fixture
def guard():
    made = Guard()
    made.server, made.sites = "fl.example.org", lambda: frozenset({"a", "b"})
    return made


@pytest.mark.parametrize(
    "message",
    [
        ("a", "a", "a", "server", "task"),
        ("a", "a", "a", "server.job", "sm__STREAM"),
        ("server.job", None, "server.job", "a", "sm__STREAM"),
        ("server.job", "fl.example.org", "server.job", "a", "sm__STREAM"),
        (CELL, ADMIN, CELL, "server", "hci_channel"),
    ],
)
def test_what_passes(guard, message):
    assert guard.reason(*message) is None


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (("a", "a", "server.job", "server", "task"), "it says that it comes from 'server.job'"),
        (("a", "a", "b", "server.job", "sm__STREAM"), "it says that it comes from 'b'"),
        (("a", "a", "a", "b", "pmtl"), "only the server"),
        (("a", "a", "a", "serverx", "pmtl"), "only the server"),
        (("a", "a", "a", "server", "_net_manager"), "no right to maintain"),
        (("a", None, "a", "server", "task"), "its certificate is that of None"),
        (("server.job", "a", "server.job", "b", "pmtl"), "its certificate is that of 'a'"),
        (("c", "c", "c", "server", "task"), "no site of this federation"),
        ((CELL, "a", CELL, "server", "hci_channel"), "its certificate is that of 'a'"),
        ((CELL, ADMIN, CELL, "a", "admin"), "only the server"),
        ((CELL, ADMIN, "a", "server", "task"), "it says that it comes from 'a'"),
    ],
)
def test_what_is_refused(guard, message, reason):
    assert reason in guard.reason(*message)


def test_a_site_that_is_removed_is_refused_at_once(guard, tmp_path, caplog):
    (tmp_path / "local").mkdir()
    write_site_names(tmp_path, ["a", "b"])
    guard.sites = SiteNames(tmp_path)
    message = ("b", "b", "b", "server", "task")
    assert guard.reason(*message) is None
    write_site_names(tmp_path, ["a"])
    assert guard.reason(*message) == "no site of this federation has this name"
    write_site_names(tmp_path, ["a", "b", "c"])
    assert guard.reason("c", "c", "c", "server", "task") is None
    (tmp_path / "local/pmtl-sites.json").write_text("{")
    assert guard.reason(*message) == "no site of this federation has this name"
    (tmp_path / "local/pmtl-sites.json").unlink()
    assert guard.reason(*message) == "no site of this federation has this name"
    assert "All sites are refused" in caplog.text
