"""Who may write what to whom."""

from __future__ import annotations

import pytest

pytest.importorskip("nvflare", reason="NVFLARE is an extra: pip install 'pmtl[federation]'")

from pmtl.federation.nvflare.guard import Guard

ADMIN, CELL = "admin@pmtl.local", "_admin_0a"


@pytest.fixture
def guard():
    made = Guard()
    made.server, made.sites = "fl.example.org", frozenset({"a", "b"})
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
