"""Real processes on this machine: a run, intruders, and the end."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="NVFLARE is an extra: pip install 'pmtl[federation]'")

from loopback import environment, loopback
from three_sites import coordinate, job, services, write_tables

from pmtl import storage as files
from pmtl.federation.nvflare.kits import provision
from pmtl.runs.result import load_run

ROOT = Path(__file__).parents[3]
PAGE, PROGRAM = ROOT / "docs/federation.md", ROOT / "tests/programs/intruder.py"
SETTINGS = ("--algorithm", "pmtl:lam=0.3", "--epsilon", 8, "--rounds", 3, "--steps", 2,
            "--batch", 4, "--hardened", "--seed", 3)  # fmt: skip


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """A server and three sites, started by the commands of the page."""
    folder = tmp_path_factory.mktemp("federation")
    (folder / "limits.toml").write_text("[limits]\nepsilon = 100\n")
    tables = write_tables(folder / "tables")
    with loopback(folder) as made:
        lines = [line for line in PAGE.read_text().splitlines() if " kits/" in line]
        for line in (line for line in lines if line.startswith("pmtl federation s")):
            _, _, role, kit, *options = line.split()
            if role in {"server", "site"}:
                for site, table in tables.items():
                    options = [o.replace(f"{site}.csv", f"{table}:validation=0") for o in options]
                options = [o.replace("limits.toml", str(folder / o)) for o in options]
                made.start(kit.removeprefix("kits/"), *options)
        assert set(made.processes) == {"server", "a", "b", "c"}
        made.connected()
        yield made


def _stolen(federation, folder):
    """A copy of the kit of site a, without its rows."""
    kit = folder / "stolen"
    shutil.copytree(federation.kits / "a", kit, ignore=shutil.ignore_patterns("models", "*.txt"))
    (kit / "local/pmtl-site.toml").unlink()
    return kit


def _intruder(*arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *map(str, arguments)],
        capture_output=True, text=True, timeout=180, check=False, env=environment(),
    )  # fmt: skip
    return done.stdout


def test_a_run_between_processes_gives_the_bits_of_one_process(federation, tmp_path):
    assert federation.job("run", "--name", "r1", *SETTINGS)["state"] == "finished"
    sites = services(write_tables(tmp_path / "tables"), tmp_path / "sites")
    settings = {"algorithm": "pmtl:lam=0.3", "local": {"steps": 2, "batch": 4}}
    settings["privacy"] = {"epsilon": 8.0, "rounds": 3, "hardened": True}
    coordinate(job(**settings), sites, tmp_path / "one")
    there = federation.kits / "server/federation/runs/r1/public/shared.safetensors"
    here = tmp_path / "one/runs/r1/public/shared.safetensors"
    (found, _), (wanted, _) = files.read_tensors(there), files.read_tensors(here)
    assert np.array_equal(found["weights"].numpy(), wanted["weights"].numpy())
    for site in federation.sites:
        mine = load_run(federation.kits / site / "models/r1")
        same = load_run(tmp_path / "sites" / site / "r1")
        everybody = np.arange(len(mine.clients))
        personal = mine.views()["personal"](everybody), same.views()["personal"](everybody)
        assert np.array_equal(personal[0].numpy(), personal[1].numpy())


def test_bytes_reach_all_sites_and_come_back(federation):
    outcome = federation.job("check", "--bytes", 1_000_000, "--rounds", 2)
    assert outcome["state"] == "finished"
    (file,) = (federation.kits / "server/federation/echo").glob("*/echo.json")
    found = json.loads(file.read_text())
    assert len(found["rounds"]) == 2
    assert all(round["answered"] == ["a", "b", "c"] for round in found["rounds"])
    assert not any(round["wrong"] for round in found["rounds"])


def test_nobody_enters_without_a_certificate_of_this_federation(federation, tmp_path):
    other = provision("localhost", ["a"], tmp_path / "other")
    kit = federation.kits / "a"
    assert _intruder("knock", kit).startswith("refused")  # The root certificate alone.
    assert _intruder("knock", kit, f"{other['a']}/startup").startswith("refused")
    assert _intruder("knock", kit, kit / "startup").startswith("read")  # TLS lets in a member.


def test_a_site_cannot_claim_another_name(federation, tmp_path):
    kit = _stolen(federation, tmp_path)
    command = [sys.executable, str(PROGRAM), "claim", str(kit), "b"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=environment(), **quiet) as claiming:
        federation.wait_for("server", "authenticated as 'a' but claimed endpoint 'b'")
        claiming.kill()
    assert "is connected" not in (kit / "log.txt").read_text()


def test_a_site_cannot_act_as_the_administrator(federation, tmp_path):
    kit = tmp_path / "posing"
    shutil.copytree(federation.kits / "admin", kit)
    for name in ("client.crt", "client.key"):
        shutil.copy(federation.kits / "a/startup" / name, kit / "startup" / name)
    assert "code:" not in _intruder("administer", kit)  # It gets no session to try anything in.
    refused = r"A message of _admin_\S+ is refused: its certificate is that of 'a'"
    assert re.search(refused, federation.log("server"))


def test_a_site_writes_to_the_server_alone(federation, tmp_path):
    federation.end("a")
    assert "forged" in _intruder("reach-out", _stolen(federation, tmp_path))
    federation.wait_for("server", "A message of a is refused: it is for 'b'", 3)
    federation.wait_for("server", "A message of a is refused: sites have no right to maintain", 1)
    federation.wait_for("server", "bound to origin a, not message origin server.job")
    assert "could not be answered" not in federation.log("b")


def test_an_administrator_gets_neither_code_nor_a_shell(federation):
    said = dict(line.split(": ", 1) for line in _intruder("administer", federation.kits / "admin")
                .splitlines() if ": " in line)  # fmt: skip
    log = federation.log("server")
    for what, reason in {
        "code": "other files than a job of pmtl",
        "class": "config_fed_server.json is not that of pmtl",
        "component": "config_fed_server.json is not that of pmtl",
    }.items():
        number = said[what].strip("'")
        federation.wait_for("server", f"Job {number} is refused: it")
        log = federation.log("server")
        (line,) = [line for line in log.splitlines() if f"Job {number} is refused" in line]
        assert reason in line
    for what in ("shell at the server", "shutdown"):
        assert "not authorized for" in said[what], what
    for what in ("shell at a site", "site's log", "sites' status"):
        assert "invalid_request" in said[what] or "not authorized" in said[what], what
    assert "not found" in said["network"]
    assert {"b", "c"} <= set(federation.job("status")["connected"])


def test_processes_end_with_all_their_children(federation):
    for name in ("b", "server"):
        status, left = federation.end(name)
        assert status == 0, name
        assert left == [], name
