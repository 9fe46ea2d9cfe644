"""What all tests share: one small federation, the command line in-process, one thread."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import fuzzing
import numpy as np
import pytest
import torch
from hypothesis import settings

from pmtl.cli import app
from pmtl.data import FederatedData

# Several test processes share two cores; more threads each would only get in each other's way.
torch.set_num_threads(1)

# A busy machine is no reason to fail, and what passed yesterday is tried in the same way today;
# PMTL_FUZZ asks for other examples.
settings.register_profile("steady", deadline=None, derandomize="PMTL_FUZZ" not in os.environ)
settings.load_profile("steady")


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


def small_federation(m: int = 12, rows: int = 14, seed: int = 5) -> FederatedData:
    """Two-class rows in four dimensions, linearly separable but for a client's own offset."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(m * rows, 4)).astype(np.float32)
    client = np.repeat([f"site-{k:02d}" for k in range(m)], rows)
    offset = np.repeat(random.normal(size=m), rows)
    y = (x[:, 0] - x[:, 1] + 0.5 * offset > 0).astype(np.int64)
    return FederatedData.from_arrays(x, y, client, outputs=2)
