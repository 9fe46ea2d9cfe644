"""The README's third command, with real processes on this machine, and uploads hidden."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("nvflare", reason="NVFLARE is an extra: pip install 'pmtl[federation]'")

from pmtl.federation.demo import SITES, write_tables
from pmtl.runs.result import load_run

SOURCE = Path(__file__).parents[2] / "src"


def _environment():
    places = [str(SOURCE), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places), "OMP_NUM_THREADS": "1"}


@pytest.mark.thorough  # nvflare/test_nvflare_processes.py has a run between processes.
def test_three_sites_end_with_models_of_their_own_and_a_report(tmp_path):
    command = ["federation", "demo", "--secure-aggregation", "--out", "demo", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "pmtl", *command],
        cwd=tmp_path,
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found["sites"]) == set(SITES)
    for site, path in found["sites"].items():
        run = load_run(tmp_path / path)
        assert len(run.clients) == 40
        assert all(client.startswith(site) for client in run.clients)
        assert run.privacy.epsilon == pytest.approx(2, rel=1e-3)
        assert "The server did not see uploads" in " ".join(str(run.privacy).split())
    public = tmp_path / found["public"]
    assert not any(public.rglob("personal*"))
    assert (tmp_path / "demo" / "report.html").stat().st_size > 10_000
    for told in (tmp_path / "demo").glob("*.out"):
        assert "Traceback" not in told.read_text(errors="replace"), told.name
    wards = [f"{site}-00" for site in SITES]
    logs = {site: (tmp_path / "demo/kits" / site / "log.txt").read_text() for site in SITES}
    for site, log in logs.items():
        assert not [ward for ward in wards if ward in log and not ward.startswith(site)]


@pytest.mark.parametrize(
    "processes",
    # Two for the server, two for each site; and the run's.
    [2 + 2 * len(SITES), pytest.param(2 + 2 * len(SITES) + 1, marks=pytest.mark.thorough)],
)
def test_a_demo_that_is_killed_leaves_no_process_behind(processes, tmp_path):
    command = [sys.executable, "-m", "pmtl", "federation", "demo", "--out", str(tmp_path / "demo")]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    family = []
    with subprocess.Popen(command, env=_environment(), **quiet) as demo:
        until = time.monotonic() + 120
        while len(family) < processes and time.monotonic() < until:
            family = psutil.Process(demo.pid).children(recursive=True)
            time.sleep(0.1)
        demo.kill()
    _, left = psutil.wait_procs(family, timeout=40)
    for process in left:
        process.kill()
    assert len(family) == processes
    assert left == []


def test_the_tables_are_the_same_every_time(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    first, second = (write_tables(tmp_path / name) for name in ("one", "two"))
    for site in SITES:
        assert first[site].read_bytes() == second[site].read_bytes()
        assert len(first[site].read_text().splitlines()) == 1001
