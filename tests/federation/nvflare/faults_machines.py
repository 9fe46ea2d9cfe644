"""Clocks, disks, wires and moments that go wrong, with real processes: `make federation-faults`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="NVFLARE is an extra: pip install 'pmtl[federation]'")

from loopback import environment, loopback, pmtl, wait_until
from proxy import wire
from three_sites import coordinate, job, services, write_tables

from pmtl import storage as files
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.runs.result import load_run

SETTINGS = ("--algorithm", "pmtl:lam=0.3", "--epsilon", 8, "--steps", 2, "--batch", 4,
            "--hardened")  # fmt: skip
DAY = 86400
HOOKS = Path(__file__).with_name("hooks")


@contextmanager
def federation(folder, variables=None, site_options=None, prepare=None):
    """A server and three sites that are connected; `variables` are of each one's environment."""
    limits = folder / "limits.toml"
    limits.write_text("[limits]\nepsilon = 100\n")
    reading = ("--client-column", "client", "--target", "target", "--limits", limits)
    variables, site_options = variables or {}, site_options or {}
    with loopback(folder) as made:
        if prepare is not None:
            prepare(made)
        made.start("server", **variables.get("server", {}))
        for site, table in write_tables(folder / "tables").items():
            options = (*reading, *site_options.get(site, ()))
            made.start(site, "--data", f"{table}:validation=0", *options, **variables.get(site, {}))
        made.connected()
        yield made


def _begin(made, rounds, *more, name="r1", seconds=60, seed=("--seed", 3)):
    """Submit a run and return the process that waits for it."""
    asked = ("--name", name, *SETTINGS, *seed, "--rounds", rounds, "--round-seconds", seconds)
    command = ["federation", "run", made.kits / "admin", *asked, *more, "--json"]
    return subprocess.Popen(
        [sys.executable, "-m", "pmtl", *map(str, command)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip


def _finished(waiting):
    out, err = waiting.communicate(timeout=400)
    assert waiting.returncode == 0, err
    assert json.loads(out)["state"] == "finished"


def _same_bits(made, folder, rounds):
    """Whether the shared model is that of a run in one process without faults."""
    sites = services(write_tables(folder / "again"), folder / "sites")
    settings = {"algorithm": "pmtl:lam=0.3", "local": {"steps": 2, "batch": 4}}
    settings["privacy"] = {"epsilon": 8.0, "rounds": rounds, "hardened": True}
    coordinate(job(**settings), sites, folder / "one")
    found, wanted = (
        files.read_tensors(place / "runs/r1/public/shared.safetensors")[0]["weights"].numpy()
        for place in (made.kits / "server/federation", folder / "one")
    )
    return np.array_equal(found, wanted)


def _clock(folder, seconds):
    """The environment of a process whose clock is wrong."""
    library = folder / "clock.so"
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("a wrong clock needs a C compiler")
    source = str(HOOKS / "clock.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "PMTL_TEST_CLOCK": str(seconds)}


def test_sites_with_wrong_clocks_give_the_same_bits(tmp_path):
    wrong = {"b": _clock(tmp_path, 30 * DAY), "c": _clock(tmp_path, -DAY // 2)}
    with federation(tmp_path, wrong) as made:
        days = time.strftime("%Y-%m-%d", time.localtime(time.time() + 30 * DAY))
        assert made.log("b").startswith(days), "the clock was not wrong"
        _finished(_begin(made, 4))
        assert _same_bits(made, tmp_path, 4)


@contextmanager
def _small_disk(place, megabytes):
    place.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "pmtl-test", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small disk needs the right to mount a tmpfs")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def _fill(place):
    """Use all space that is left; files that are replaced leave some again."""
    ballast = os.open(place / "ballast", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        while True:
            os.write(ballast, b"\0" * 4096)
    except OSError:
        os.close(ballast)


def test_a_site_with_a_full_disk_counts_as_zero_until_there_is_space(tmp_path):
    small = tmp_path / "small"
    with (
        _small_disk(small, 2),
        federation(tmp_path, site_options={"b": ("--models", small / "models")}) as made,
    ):
        waiting = _begin(made, 400)
        wait_until(lambda: "Round 3 of" in made.runs(), "round 3")
        sentence = "This site could not answer. Its own log says why."
        wait_until(lambda: _fill(small) or sentence in made.runs(), "a site that cannot answer")
        wait_until(lambda: "The disk is full" in made.log("b"), "the reason in the site's log")
        assert "disk" not in made.runs()
        (small / "ballast").unlink()
        wait_until(lambda: "Site 'b' is back" in made.runs(), "the site's return")
        _finished(waiting)
        assert load_run(small / "models/r1").clients == ("p0", "p1", "p2")


def test_a_server_with_a_full_disk_stops_with_a_sentence_and_goes_on(tmp_path):
    small = tmp_path / "kits/server/federation"

    kept = []

    def prepare(made):
        kept.append(_small_disk(small, 2))
        kept[0].__enter__()

    try:
        with federation(tmp_path, prepare=prepare) as made:
            rounds = 60
            waiting = _begin(made, rounds)
            wait_until(lambda: "Round 3 of" in made.runs(), "round 3")
            wait_until(lambda: _fill(small) or waiting.poll() is not None, "a run that stops")
            _, err = waiting.communicate()
            assert waiting.returncode == 2
            assert "disk is full" in err
            (small / "ballast").unlink()
            _finished(_begin(made, rounds, "--resume"))
            with Ledger.open(small / "ledger.db", write=False) as ledger:
                assert len(ledger.charged("r1")) == rounds
            assert _same_bits(made, tmp_path, rounds)
    finally:
        if kept:
            kept[0].__exit__(None, None, None)


@pytest.mark.parametrize("how", ["cut", "stall"])
def test_a_wire_that_fails_for_a_while(tmp_path, how):
    wires = []

    def prepare(made):
        wires.append(wire(made.port))
        through = wires[0].__enter__()
        file = made.kits / "b/startup/fed_client.json"
        known = json.loads(file.read_text())
        known["servers"][0]["service"]["target"] = f"localhost:{through.port}"
        file.write_text(json.dumps(known))
        wires.append(through)

    try:
        with federation(tmp_path, prepare=prepare) as made:
            waiting = _begin(made, 400, seconds=5)
            wait_until(lambda: "Round 3 of" in made.runs(), "round 3")
            getattr(wires[1], how)()
            wait_until(lambda: "Site 'b' did not answer round" in made.runs(), "a missed round")
            time.sleep(5)
            wires[1].mend()
            wait_until(lambda: "Site 'b' is back" in made.runs(), "the site's return", 120)
            _finished(waiting)
            for site in made.sites:
                assert load_run(made.kits / site / "models/r1").clients
    finally:
        if wires:
            wires[0].__exit__(None, None, None)


def test_a_server_that_is_killed_between_charge_and_publication(tmp_path):
    places = [str(HOOKS), os.environ.get("PYTHONPATH", "")]
    dies = {"PYTHONPATH": os.pathsep.join(places), "PMTL_TEST_KILL": f"2:{tmp_path / 'killed'}"}
    with federation(tmp_path, {"server": dies}) as made:
        for name, mode in (("r1", ("--seed", 3)), ("r2", ("--mode", "production"))):
            (tmp_path / "killed").unlink(missing_ok=True)
            waiting = _begin(made, 4, name=name, seed=mode)
            waiting.communicate(timeout=200)
            assert waiting.returncode == 2
            assert (tmp_path / "killed").exists()
            ledger = made.kits / "server/federation/ledger.db"
            with Ledger.open(ledger, write=False) as opened:
                assert len(opened.charged(name)) == 3, "the third round was charged"
            said = made.runs().rpartition(f"take part in run {name}")[2]
            assert "Round 2 of 4 is published" in said
            assert "Round 3 of 4 is published" not in said
            _finished(_begin(made, 4, "--resume", name=name, seed=mode))
            with Ledger.open(ledger, write=False) as opened:
                assert len(opened.charged(name)) == 4
            said = made.runs().rpartition(f"take part in run {name}")[2]
            assert ("lost to a crash" in said) == (name == "r2"), "no aggregate has two noises"
        assert _same_bits(made, tmp_path, 4)


def test_two_servers_on_one_ledger(tmp_path):
    with federation(tmp_path) as made:
        second = pmtl("federation", "server", made.kits / "server", check=False)
        assert second.returncode == 2
        assert "Another process is working on" in second.stderr
        _finished(_begin(made, 2))
        with Ledger.open(made.kits / "server/federation/ledger.db"):  # As another server would.
            refused = _begin(made, 2, name="r2")
            _, err = refused.communicate(timeout=200)
        assert refused.returncode == 2
        assert "ledger" in err
        _finished(_begin(made, 2, name="r2"))


def test_members_come_and_go_while_the_server_runs(tmp_path):
    with federation(tmp_path) as made:
        waiting = _begin(made, 400)
        wait_until(lambda: "Round 3 of" in made.runs(), "round 3")
        pmtl("federation", "members", made.kits / "server", "--remove", "b")
        wait_until(lambda: "Site 'b' did not answer round" in made.runs(), "a refused site")
        made.wait_for("server", "A message of b is refused: no site of this federation")
        pmtl("federation", "members", made.kits / "server", "--add", "b")
        wait_until(lambda: "Site 'b' is back" in made.runs(), "the site's return")
        _finished(waiting)
        pmtl("federation", "add-site", made.kits, "--site", "d")
        made.sites = (*made.sites, "d")
        made.start("d")
        made.wait_for("server", "A message of d is refused: no site of this federation")
        pmtl("federation", "members", made.kits / "server", "--add", "d")
        made.wait_for("d", "is connected and waits")
        assert "4 of 4 sites" in made.job("check")["sentence"]


def test_renewed_certificates_fit_old_ones(tmp_path):
    with loopback(tmp_path) as made:
        pmtl("federation", "renew", made.kits, "--out", tmp_path / "new")
        for name in ("server", "b"):
            shutil.rmtree(made.kits / name / "startup")
            shutil.move(tmp_path / "new" / name / "startup", made.kits / name / "startup")
        for name in ("server", *made.sites):
            made.start(name)
        made.connected()
        assert "3 of 3 sites" in made.job("check")["sentence"]


@pytest.mark.parametrize("millions", [5, 30])
def test_large_models(tmp_path, millions):
    hidden = millions * 10**6 // 6
    with federation(tmp_path, site_options=dict.fromkeys("abc", ("--one-client",))) as made:
        asked = ("--name", "r1", "--algorithm", "fedavg", "--model", f"mlp:hidden={hidden}",
                 "--epsilon", 8, "--rounds", 2, "--steps", 1, "--batch", 4)  # fmt: skip
        command = ["federation", "run", made.kits / "admin", *asked, "--json"]
        waiting = subprocess.Popen(
            [sys.executable, "-m", "pmtl", *map(str, command)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
        )  # fmt: skip
        _finished(waiting)
        for site in made.sites:
            assert load_run(made.kits / site / "models/r1").facts.parameters > 0.99e6 * millions
