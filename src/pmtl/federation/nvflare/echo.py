"""A job that sends bytes to all sites and back, to test connections and measure their speed."""

from __future__ import annotations

import json
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pmtl.errors import Interrupted
from pmtl.federation.nvflare.cells import ECHO, CellTransport
from pmtl.federation.nvflare.job import Echo
from pmtl.storage import write_text

FILE = "echo.json"
_WAIT = 60.0  # Seconds for sites to connect.


def run_echo(
    asked: Echo,
    transport: CellTransport,
    folder: Path,
    stop: threading.Event,
    tell: Callable[[str], None],
) -> None:
    """Send random bytes to each site, and write what came back to `folder`."""
    size, rounds, deadline = asked.bytes, asked.rounds, asked.deadline
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _wait_for_all(transport, stop)
    content = np.random.default_rng(0).bytes(size)
    results: list[dict[str, Any]] = []
    for number in range(rounds):
        if stop.is_set():
            raise Interrupted(f"Stopped after {number} of {rounds} echoes.")
        messages = dict.fromkeys(transport.sites, content)
        began = time.monotonic()
        answers = transport.ask(messages, deadline, topic=ECHO)
        seconds = time.monotonic() - began
        wrong = [site for site, answer in answers.items() if answer != content]
        results.append({"seconds": seconds, "answered": sorted(answers), "wrong": wrong})
        del answers  # Else they would be kept while the next ones arrive.
        count = f"{len(results[-1]['answered'])} of {len(transport.sites)}"
        tell(f"Echo {number + 1} of {rounds}: {count} sites answered in {seconds:.3f} s.")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        found = {"bytes": size, "rounds": results, "peak_bytes": peak}
        write_text(folder / FILE, json.dumps(found))


def _wait_for_all(transport: CellTransport, stop: threading.Event) -> None:
    end = time.monotonic() + _WAIT
    while transport.present() != frozenset(transport.sites):
        if stop.wait(0.2) or time.monotonic() > end:
            return
