"""A federation of real processes on this machine, for tests."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

WAIT = 180.0  # Seconds for anything; a busy machine is no reason to fail.


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def pmtl(*arguments: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    command = [sys.executable, "-m", "pmtl", *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=2 * WAIT, check=False, env=environment()
    )
    assert not check or done.returncode == 0, done.stderr
    return done


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


class Loopback:
    """The kits and the processes of a federation; only what it started is ended."""

    def __init__(self, folder: Path, sites: tuple[str, ...] = ("a", "b", "c")) -> None:
        self.folder, self.kits, self.sites = folder, folder / "kits", sites
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        named = [part for site in sites for part in ("--site", site)]
        self.port = free_port()
        pmtl("federation", "provision", "--server", f"localhost:{self.port}", *named,
             "--out", self.kits)  # fmt: skip

    def start(self, name: str, *arguments: object, **variables: str) -> None:
        """Start the server or a site; without data a site can only echo.

        `variables` are further ones of its environment."""
        command: list[object] = ["pmtl.federation.nvflare.process", self.kits / name]
        if name == "server" or arguments:
            role = "server" if name == "server" else "site"
            command = ["pmtl", "federation", role, self.kits / name, *arguments]
        with (self.folder / f"{name}.out").open("ab") as out:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", *map(str, command)],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                env={**environment(), **variables},
            )  # fmt: skip

    def connected(self, times: int = 1) -> None:
        """Wait until every site has connected so many times."""
        for site in self.sites:
            self.wait_for(site, "is connected and waits", times)

    def log(self, name: str) -> str:
        file = self.kits / name / "log.txt"
        return file.read_text(encoding="utf-8") if file.exists() else ""

    def runs(self) -> str:
        """What runs said at the server."""
        file = self.kits / "server/runs.log"
        return file.read_text(encoding="utf-8") if file.exists() else ""

    def wait_for(self, name: str, text: str, times: int = 1, seconds: float = WAIT) -> None:
        """Wait until a log has a text."""
        wait_until(lambda: self.log(name).count(text) >= times, f"{name}: {text!r}", seconds)

    def job(self, *arguments: object, check: bool = True) -> dict[str, Any]:
        """Run `pmtl federation COMMAND ADMIN … --json`."""
        command, *more = arguments
        done = pmtl("federation", command, self.kits / "admin", *more, "--json", check=check)
        return json.loads(done.stdout)

    def child(self, name: str) -> psutil.Process:
        """NVFLARE's process below the one that was started."""
        return psutil.Process(self.processes[name].pid).children()[0]

    def end(self, name: str) -> tuple[int, list[psutil.Process]]:
        """End what was started by SIGTERM; returns its status and what it left behind."""
        process = self.processes.pop(name)
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        status = process.wait(WAIT)
        return status, [child for child in family if child.is_running()]

    def close(self) -> None:
        """End everything, by force where it must be."""
        for name in list(self.processes):
            process = self.processes[name]
            family = []
            if process.poll() is None:
                family = psutil.Process(process.pid).children(recursive=True)
            try:
                self.end(name)
            except (psutil.NoSuchProcess, subprocess.TimeoutExpired):
                process.kill()
                process.wait()
            for child in family:
                if child.is_running():
                    child.kill()


@contextmanager
def loopback(folder: Path, sites: tuple[str, ...] = ("a", "b", "c")) -> Iterator[Loopback]:
    """A federation that is ended afterwards."""
    made = Loopback(folder, sites)
    try:
        yield made
    finally:
        made.close()


def wait_until(condition: Any, what: str, seconds: float = WAIT) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds:g} s in vain for {what}"
        time.sleep(0.1)
