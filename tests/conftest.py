"""What all tests share: one small federation, the command line in-process, one thread."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import fuzzing
import pytest
import torch
from example_data import small_federation
from hypothesis import settings

from pmtl.cli import app
from pmtl.data import FederatedData

# Several test processes share two cores; more threads each would only get in each other's way.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start

# Tests and the processes that they start sign runs with a key of their own.
os.environ.setdefault("XDG_STATE_HOME", tempfile.mkdtemp(prefix="pmtl-tests-"))

# No test cuts the power, so that nothing has to reach the disk before a test goes on. A handle that
# is none is still an error, and processes that tests start and kill do sync.
os.fsync = os.fstat

# A busy machine is no reason to fail, and what passed yesterday is tried in the same way today;
# PMTL_FUZZ asks for other examples.
settings.register_profile("steady", deadline=None, derandomize="PMTL_FUZZ" not in os.environ)
settings.load_profile("steady")


def pytest_collection_finish() -> None:
    """What was imported stays, so that the garbage collector need not look at it again."""
    gc.collect()
    gc.freeze()


@dataclass
class Outcome:
    """What a command left behind."""

    status: int
    out: str
    err: str


@pytest.fixture
def pmtl_command(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """Run `pmtl ARGUMENTS` as the installed command does, without starting a process."""

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["pmtl", *(str(argument) for argument in arguments)])
        status = 0
        try:
            app.main()
        except SystemExit as exit:
            status = int(exit.code or 0)
        captured = capfd.readouterr()
        return Outcome(status, captured.out, captured.err)

    return run


@pytest.fixture
def silent(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Hold a test to printing nothing, also from inside a library."""
    yield
    assert capfd.readouterr() == ("", "")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Leave the library's own warnings out of pytest's summary: small federations have many."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    told = [] if reporter is None else reporter.stats.get("warnings", [])
    told[:] = [one for one in told if "PmtlWarning" not in one.message]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the fuzzing tests tried, where they were asked to try more than usual."""
    if fuzzing.TIMES > 1:
        for line in fuzzing.summary():
            terminalreporter.write_line(line)


@pytest.fixture
def small() -> FederatedData:
    """Twelve clients with a few rows each, alike but not the same."""
    return small_federation()
