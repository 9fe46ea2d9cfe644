"""Faults of real processes, which take minutes: `make federation-faults`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

pytest.importorskip("nvflare", reason="NVFLARE is an extra: pip install 'pmtl[federation]'")

from loopback import environment, loopback, wait_until
from three_sites import coordinate, job, services, write_tables

from pmtl import storage as files
from pmtl.runs.result import load_run

ROUNDS = 40
SETTINGS = ("--algorithm", "pmtl:lam=0.3", "--epsilon", 8, "--steps", 2, "--batch", 4,
            "--hardened", "--seed", 3)  # fmt: skip


@pytest.fixture
def federation(tmp_path):
    limits = tmp_path / "limits.toml"
    limits.write_text("[limits]\nepsilon = 100\n")
    reading = ("--client-column", "client", "--target", "target", "--limits", limits)
    with loopback(tmp_path) as made:
        made.start("server")
        for site, table in write_tables(tmp_path / "tables").items():
            made.start(site, "--data", f"{table}:validation=0", *reading)
        made.connected()
        yield made


def _begin(made, *settings, rounds=ROUNDS, seconds=60):
    """Submit a run and return the process that waits for it."""
    settings = (*settings, "--rounds", rounds, "--round-seconds", seconds)
    command = ["federation", "run", made.kits / "admin", "--name", "r1", *settings, "--json"]
    return subprocess.Popen(
        [sys.executable, "-m", "pmtl", *map(str, command)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip


def _out(made):
    return (made.folder / "server.out").read_text()


def _outcome(waiting):
    out, err = waiting.communicate(timeout=240)
    assert waiting.returncode == 0, err
    return json.loads(out)


def _wanted(folder):
    """The shared model of the same run in one process, without faults."""
    sites = services(write_tables(folder / "again"), folder / "sites")
    settings = {"algorithm": "pmtl:lam=0.3", "local": {"steps": 2, "batch": 4}}
    settings["privacy"] = {"epsilon": 8.0, "rounds": ROUNDS, "hardened": True}
    coordinate(job(**settings), sites, folder / "one")
    return files.read_tensors(folder / "one/runs/r1/public/shared.safetensors")[0][
        "weights"
    ].numpy()


def _found(made):
    public = made.kits / "server/federation/runs/r1/public"
    return files.read_tensors(public / "shared.safetensors")[0]["weights"].numpy()


def test_a_site_that_is_killed_comes_back_and_the_run_goes_on(federation):
    rounds = 300  # So many that it is back before the end.
    waiting = _begin(federation, *SETTINGS, rounds=rounds)
    wait_until(lambda: "Round 5 of" in _out(federation), "round 5")
    federation.child("b").kill()
    assert _outcome(waiting)["state"] == "finished"
    out = _out(federation)
    assert f"Round {rounds} of {rounds} is published" in out
    assert "Site 'b' did not answer round" in out
    assert "Site 'b' is back" in out
    for site in federation.sites:
        assert load_run(federation.kits / site / "models/r1").clients


def test_a_site_that_is_frozen_for_a_while(federation):
    waiting = _begin(federation, *SETTINGS, seconds=3)
    wait_until(lambda: "Round 5 of" in _out(federation), "round 5")
    frozen = federation.child("c")
    frozen.suspend()
    wait_until(lambda: "Site 'c' did not answer round" in _out(federation), "a missed round")
    time.sleep(2)
    frozen.resume()
    assert _outcome(waiting)["state"] == "finished"
    assert load_run(federation.kits / "c/models/r1").clients


def test_a_server_that_is_killed_goes_on_and_gives_the_same_bits(federation, tmp_path):
    waiting = _begin(federation, *SETTINGS)
    wait_until(lambda: "Round 5 of" in _out(federation), "round 5")
    server = federation.child("server")
    family = [server, *server.children(recursive=True)]
    for process in reversed(family):
        process.kill()
    waiting.communicate(timeout=120)
    assert waiting.returncode == 2
    wait_until(lambda: _out(federation).count("The server waits for the sites") == 2, "the restart")
    published = _out(federation).count("is published")
    assert 5 <= published < ROUNDS
    wait_until(lambda: set(federation.job("status")["connected"]) == {"a", "b", "c"}, "sites")
    (old,) = federation.job("status")["jobs"]
    assert old["state"] == "failed"
    assert "--resume" in old["sentence"]
    assert _outcome(_begin(federation, *SETTINGS, "--resume"))["state"] == "finished"
    assert np.array_equal(_found(federation), _wanted(tmp_path))


def test_a_run_that_is_stopped_is_resumed_to_the_same_bits(federation, tmp_path):
    waiting = _begin(federation, *SETTINGS)
    wait_until(lambda: "Round 5 of" in _out(federation), "round 5")
    assert federation.job("stop")["state"] == "stopped"
    assert _outcome(waiting)["state"] == "stopped"
    assert not (federation.kits / "server/federation/runs/r1/public").exists()
    assert _outcome(_begin(federation, *SETTINGS, "--resume"))["state"] == "finished"
    assert np.array_equal(_found(federation), _wanted(tmp_path))


def test_two_hundred_rounds_without_growth_of_memory(tmp_path):
    size, rounds = 4_000_000, 200
    with loopback(tmp_path) as made:
        for name in ("server", *made.sites):
            made.start(name)
        made.connected()
        made.job("check", "--bytes", size, "--rounds", 50)
        processes = {"server": made.child("server")}
        processes |= {site: psutil.Process(made.processes[site].pid) for site in made.sites}
        before = {name: process.memory_info().rss for name, process in processes.items()}
        made.job("check", "--bytes", size, "--rounds", rounds)
        after = {name: process.memory_info().rss for name, process in processes.items()}
        echoes = sorted((made.kits / "server/federation/echo").glob("*/echo.json"),
                        key=lambda file: file.stat().st_mtime)  # fmt: skip
        before["job"], after["job"] = (json.loads(f.read_text())["peak_bytes"] for f in echoes)
        growth = {name: (after[name] - before[name]) / size for name in before}
        print({name: f"{after[name] / 2**20:.0f} MiB" for name in after}, growth)
        assert max(growth.values()) < 20, "that would be a message in ten rounds that is kept"


def test_a_process_without_its_parent_ends(tmp_path):
    with loopback(tmp_path, ("a",)) as made:
        for name in ("server", "a"):
            made.start(name)
        made.connected()
        child = made.child("server")
        os.kill(made.processes["server"].pid, signal.SIGKILL)
        wait_until(lambda: not child.is_running(), "the end of the server's process", 30)
