"""What the tests of the ledger share."""

import shutil

import pytest

from pmtl.errors import PmtlError
from pmtl.privacy.events import GaussianEvent
from pmtl.privacy.ledger import Ledger

CLIENTS = [f"site-{k}" for k in range(10)]
FULL = GaussianEvent("full", 10, 10, 1.0, 1.0)
COINS = GaussianEvent("poisson", 10, 5, 1.0, 1.0)
LOUD = GaussianEvent("full", 10, 10, 1.0, 0.1)
BARE = GaussianEvent("full", 10, 10, 1.0, 0.0)


def fill(path, rounds=3):
    with Ledger.create(path, CLIENTS) as ledger:
        ledger.cap(50.0, 1e-5)
        for round in range(rounds):
            ledger.charge("a", round, FULL)
        ledger.mark("a", rounds - 1, "digest")


def copy(path, folder):
    """The ledger and its head, as a backup would take them."""
    folder.mkdir(exist_ok=True)
    for name in (path.name, path.name + ".head"):
        shutil.copy(path.with_name(name), folder / name)
    return folder / path.name


def head(path):
    return path.with_name(path.name + ".head")


def refused(path, words, write=True):
    with pytest.raises(PmtlError, match=words):
        Ledger.open(path, write=write).close()
