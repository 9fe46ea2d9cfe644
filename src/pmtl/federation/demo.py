"""A federation of three sites on one machine, from nothing to personal models.

Everything is as between organisations: kits with certificates, a server's process and three sites'
processes that connect to it over TLS. Only the rows are made up.
"""

from __future__ import annotations

import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from pmtl.errors import PmtlError
from pmtl.federation.nvflare.admin import Administrator, JobState, administrator
from pmtl.federation.nvflare.kits import provision
from pmtl.runs.config import TrainConfig
from pmtl.storage import disk_errors

SITES = ("north", "south", "west")
RUN = "demo"
#: Wards of a site, and rows of a ward.
_WARDS, _ROWS = 40, 25
#: Seconds for processes to start and connect, and for the run.
_CONNECT, _TRAIN = 90.0, 300.0


def write_tables(folder: Path) -> dict[str, Path]:
    """A table of made-up visits for each site, in a folder that exists: wards are the clients."""
    tables = {}
    for number, site in enumerate(SITES):
        rng = np.random.default_rng(number)
        lines = ["ward,age,stay,emergency,returns"]
        for ward in range(_WARDS):
            slopes = np.array([0.9, 1.2, 0.7]) + 0.3 * rng.normal(size=3)
            age = rng.integers(18, 95, _ROWS)
            stay = rng.gamma(2.0, 3.0, _ROWS).round(1)
            emergency = rng.integers(0, 2, _ROWS)
            columns = np.stack([(age - 55) / 20, (stay - 6) / 4, emergency - 0.5], axis=1)
            score = columns @ slopes - 0.3 + 0.5 * rng.normal()
            returns = rng.random(_ROWS) < 1 / (1 + np.exp(-2 * score))
            lines += [
                f"{site}-{ward:02d},{a},{s},{e},{'yes' if r else 'no'}"
                for a, s, e, r in zip(age, stay, emergency, returns, strict=True)
            ]
        tables[site] = folder / f"{site}.csv"
        tables[site].write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tables


def run_demo(
    folder: Path, config: TrainConfig, secure: bool, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Provision, start, train, and stop all processes, in a new folder; returns where the results
    are. `secure`: sites hide their uploads from the server. `tell` is called with sentences about
    the progress."""
    if folder.exists():
        raise PmtlError(f"{folder} exists already: choose another --out, or remove it.")
    with disk_errors(folder):
        folder.mkdir(parents=True)
        tables = write_tables(folder)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = int(free.getsockname()[1])
    kits = provision(f"localhost:{port}", list(SITES), folder / "kits")
    tell(f"Kits with certificates for the server and {len(SITES)} sites are in {folder / 'kits'}.")
    commands = {"server": ["server", kits["server"]]}
    for site, table in tables.items():
        reading = ["--client-column", "ward", "--target", "returns"]
        commands[site] = ["site", kits[site], "--data", str(table), *reading]
    with _processes(commands, folder):
        _wait_for_sites(Path(kits["admin"]))
        tell(f"The server and {len(SITES)} sites run and are connected, on port {port}.")
        job = {"run": RUN, "config": asdict(config), "sites": [], "summed": False}
        job |= {"secure": secure, "colluders": None, "round_seconds": 60.0}
        with administrator(Path(kits["admin"])) as admin:
            number = admin.submit({"name": RUN, "resume": False, "job": job})
            _wait(admin, number, tell)
    results = {site: folder / "kits" / site / "models" / RUN for site in SITES}
    missing = [site for site, path in results.items() if not path.exists()]
    if missing:
        raise PmtlError(f"The site {missing[0]!r} has no models; see {folder / 'kits'} for logs.")
    public = folder / "kits" / "server" / "federation" / "runs" / RUN / "public"
    return {"sites": {site: str(path) for site, path in results.items()}, "public": str(public)}


@contextmanager
def _processes(commands: Mapping[str, list[str]], folder: Path) -> Iterator[None]:
    """The processes of the server and of the sites, which are ended with all their children.

    Each reads a pipe of this process and ends when the pipe closes, also if this process is killed.
    """
    started = []
    try:
        for name, command in commands.items():
            with (folder / f"{name}.out").open("wb") as out:
                started.append(
                    subprocess.Popen(
                        [sys.executable, "-m", __name__, *command],
                        stdout=out,
                        stderr=subprocess.STDOUT,
                        stdin=subprocess.PIPE,
                        start_new_session=True,
                        # They share this machine, and more threads would wait for each other.
                        env={"OMP_NUM_THREADS": "1", **os.environ},
                    )
                )
        yield
    finally:
        for process in reversed(started):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _wait_for_sites(kit: Path) -> None:
    """Return when all sites are connected."""
    until, last = time.monotonic() + _CONNECT, "the server does not answer"
    while time.monotonic() < until:
        try:
            with administrator(kit) as admin:
                while time.monotonic() < until:
                    there = set(admin.status()[0])
                    if there >= set(SITES):
                        return
                    last = f"only {len(there)} of {len(SITES)} sites are connected"
                    time.sleep(0.5)
        except PmtlError as error:  # The server is not up yet.
            last = str(error)
            time.sleep(0.5)
    raise PmtlError(f"The federation did not start within {_CONNECT:g} seconds: {last}.")


def _wait(admin: Administrator, number: str, tell: Callable[[str], None]) -> None:
    """Wait for the end of the job; a job that did not finish is an error."""
    until, told = time.monotonic() + _TRAIN, ""
    state = JobState(number, "waiting")
    for state in admin.wait(number):
        if state.sentence != told:
            told = state.sentence
            tell(told)
        if time.monotonic() > until:
            raise PmtlError(f"The run did not end within {_TRAIN:g} seconds.")
    if state.state != "finished":
        raise PmtlError(state.sentence or "The run failed; the server's log says why.")


def _end_with_input() -> None:
    """End this process when its standard input ends."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":  # `pmtl federation ARGUMENTS`, for `_processes`
    threading.Thread(target=_end_with_input, daemon=True).start()
    sys.argv[:1] = ["pmtl", "federation"]
    runpy.run_module("pmtl", run_name="__main__")
