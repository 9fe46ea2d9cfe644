"""What it costs to carry messages between a server and sites, all on this machine.

    python benchmarks/federation.py [--sites 3] [--rounds 10] [--json FILE]

A round sends every site a message of so many float32 and waits until all have sent as many back:
what a round of training adds to the work of the sites. Real processes, certificates and ports, as
`pmtl federation` starts them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch

sys.path.insert(0, str(Path(__file__).parent))
from measure import machine

SIZES = (1_000, 1_000_000, 5_000_000, 30_000_000)
WAIT = 400.0


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", *map(str, arguments)]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_until(condition: Any, what: str) -> None:
    end = time.monotonic() + WAIT
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"waited {WAIT:g} seconds in vain for {what}")
        time.sleep(0.05)


@contextmanager
def processes(commands: dict[str, list[str]], folder: Path) -> Iterator[dict[str, psutil.Process]]:
    """Start processes, and end them with their children."""
    started: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, line in commands.items():
            with (folder / f"{name}.out").open("wb") as out:
                started[name] = subprocess.Popen(
                    line, stdin=subprocess.DEVNULL, stdout=out, stderr=out
                )
        yield {name: psutil.Process(process.pid) for name, process in started.items()}
    finally:
        family = [
            child
            for process in started.values()
            if process.poll() is None
            for child in psutil.Process(process.pid).children(recursive=True)
        ]
        for process in started.values():
            process.send_signal(signal.SIGTERM)
        for process in started.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
        for child in family:
            if child.is_running():
                child.kill()


def measure(sites: int, sizes: list[int], rounds: int, folder: Path) -> dict[str, Any]:
    """Seconds of rounds, of the start and of a whole job, and the processes' largest memory."""
    names = [f"site-{number + 1}" for number in range(sites)]
    named = [part for name in names for part in ("--site", name)]
    kits = folder / "kits"
    place = f"localhost:{free_port()}"
    line = command("pmtl", "federation", "provision", "--server", place, *named, "--out", kits)
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
    module = "pmtl.federation.nvflare.process"
    lines = {name: command(module, kits / name) for name in ("server", *names)}
    began = time.monotonic()
    with processes(lines, folder) as running:
        logs = [kits / name / "log.txt" for name in names]
        wait_until(
            lambda: all(f.exists() and "is connected" in f.read_text() for f in logs), "the sites"
        )
        found: dict[str, Any] = {"connected_seconds": time.monotonic() - began, "rounds": []}
        for size in sizes:
            found["rounds"].append(_job(kits, size, rounds, running))
            print(json.dumps(found["rounds"][-1]), file=sys.stderr)
    return found


def _job(kits: Path, size: int, rounds: int, running: dict[str, psutil.Process]) -> dict[str, Any]:
    echoes = kits / "server/federation/echo"
    before = set(echoes.glob("*/echo.json"))
    asked = ("--bytes", 4 * size, "--rounds", rounds, "--json")
    line = command("pmtl", "federation", "check", kits / "admin", *asked)
    began = time.monotonic()
    done = subprocess.run(line, check=True, capture_output=True, text=True)
    outcome = json.loads(done.stdout)
    (file,) = set(echoes.glob("*/echo.json")) - before
    echo = json.loads(file.read_text())
    seconds = [round["seconds"] for round in echo["rounds"]]
    assert all(len(round["answered"]) == len(running) - 1 for round in echo["rounds"])
    assert not any(round["wrong"] for round in echo["rounds"])
    whole = time.monotonic() - began
    memory = {name: _peak(process) for name, process in running.items()}
    return {
        "parameters": size,
        "seconds": statistics.median(seconds),
        "slowest_seconds": max(seconds),
        "job_seconds": whole,
        "start_seconds": whole - sum(seconds),
        "state": outcome["state"],
        "job_peak_bytes": echo["peak_bytes"],
        "server_peak_bytes": memory.pop("server"),
        "site_peak_bytes": max(memory.values()),
    }


def _peak(process: psutil.Process) -> int:
    """The largest memory that a process has had so far."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--sizes", type=int, nargs="*", default=list(SIZES))
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")  # As `pmtl federation` sets it.
    results: dict[str, Any] = {"machine": machine(torch.device("cpu")), "sites": asked.sites}
    with tempfile.TemporaryDirectory() as folder:
        results |= measure(asked.sites, asked.sizes, asked.rounds, Path(folder))
    text = json.dumps(results, indent=2)
    if asked.json:
        asked.json.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
