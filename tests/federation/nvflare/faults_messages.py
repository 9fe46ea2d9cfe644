"""A real site that lies, and what may be read in whose files: part of `make federation-faults`."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="NVFLARE is an extra: pip install 'pmtl[federation]'")

import misbehaving
from loopback import environment, loopback, pmtl
from three_sites import Faulty, coordinate, job, services, write_tables

from pmtl import storage as files
from pmtl.cli.federation.site_file import write_site_file
from pmtl.federation.messages import Message
from pmtl.runs.result import load_run

ROUNDS = 14
SETTINGS = ("--algorithm", "pmtl:lam=0.3", "--rounds", ROUNDS, "--steps", 2, "--batch", 4,
            "--hardened", "--seed", 3, "--round-seconds", 60)  # fmt: skip


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """A finished run in which site b lied in most rounds, and one that was refused."""
    folder = tmp_path_factory.mktemp("messages")
    (folder / "limits.toml").write_text("[limits]\nepsilon = 100\n")
    tables = write_tables(folder / "tables")
    with loopback(folder) as made:
        made.start("server")
        for site, table in tables.items():
            reading = {"client": "client", "target": "target"}
            limits = folder / "limits.toml"
            write_site_file(made.kits / site, f"{table}:validation=0", reading, limits, None, False)
            with (folder / f"{site}.out").open("ab") as out:
                how = "lying" if site == "b" else "slow"
                made.processes[site] = subprocess.Popen(
                    [sys.executable, misbehaving.__file__, how, str(made.kits / site)],
                    stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment(),
                )  # fmt: skip
        made.connected()
        asked = ("--name", "r1", *SETTINGS, "--epsilon", 8)
        assert made.job("run", *asked)["state"] == "finished"
        beyond = ("--name", "r2", *SETTINGS, "--epsilon", 200)
        done = pmtl("federation", "run", made.kits / "admin", *beyond, check=False)
        assert done.returncode == 2
        assert "it asks for ε = 200, but allows 100" in done.stderr
        yield made


def test_lies_count_as_zero_or_as_no_answer(federation, tmp_path):
    def same(site, message, answer):
        content = answer()
        if site != "b" or message.kind != "round":
            return content
        round = int(message.header["round"])
        honest = Message.from_bytes(content)
        if round in misbehaving.COUNTED:
            zeros = {"uploads": np.zeros_like(honest.arrays["uploads"])}
            return Message("uploads", honest.header, zeros).to_bytes()
        return None if round in misbehaving.LIES or round == 11 else content

    sites = services(write_tables(tmp_path / "tables"), tmp_path / "sites")
    settings = {"algorithm": "pmtl:lam=0.3", "local": {"steps": 2, "batch": 4}}
    settings["privacy"] = {"epsilon": 8.0, "rounds": ROUNDS, "hardened": True}
    coordinate(job(**settings), sites, tmp_path / "one", transport=Faulty(sites, same))
    there, here = (
        files.read_tensors(folder / "runs/r1/public/shared.safetensors")[0]["weights"].numpy()
        for folder in (federation.kits / "server/federation", tmp_path / "one")
    )
    assert np.array_equal(there, here)
    for site in federation.sites:
        mine, same_run = (
            load_run(folder) for folder in (federation.kits / site / "models/r1",
                                            tmp_path / "sites" / site / "r1")
        )  # fmt: skip
        everybody = np.arange(len(mine.clients))
        found, wanted = (run.views()["personal"](everybody) for run in (mine, same_run))
        assert np.array_equal(found.numpy(), wanted.numpy()), site


@pytest.mark.parametrize(
    ("round", "sentence"),
    [
        (6, "It sent something that is not a message"),
        (7, "It sent something that is not a message"),
        (8, "It sent something that is not a message"),
        (9, "It sent an answer that was not asked for"),
        (10, "It sent an answer that was not asked for"),
        (12, "It sent an answer that was not asked for"),
    ],
)
def test_the_server_says_what_it_dropped(federation, round, sentence):
    assert f"Site 'b', round {round}: {sentence}" in federation.runs()


def test_an_error_at_a_site_is_in_its_own_log_alone(federation):
    assert misbehaving.PRIVATE in federation.log("b")
    assert "Site 'b', round 11:" not in federation.runs()
    for name in ("server", "a", "c"):
        for file in (federation.kits / name).rglob("*"):
            if file.is_file():
                assert misbehaving.PRIVATE.encode() not in file.read_bytes(), file


def test_a_run_beyond_a_sites_limits_is_a_sentence_in_both_logs(federation):
    said = "it asks for ε = 200, but allows 100"
    assert said in federation.runs()
    for site in federation.sites:
        assert said in federation.log(site), site
    assert not (federation.kits / "server/federation/runs/r2").exists()
    assert not (federation.kits / "a/models/r2").exists()


def test_nothing_private_is_in_the_files_of_others(federation):
    """Neither rows nor, in logs, names of clients."""
    cells = {
        site: set(
            re.findall(r"-?\d+\.\d{4}", (federation.folder / f"tables/{site}.csv").read_text())
        )
        for site in federation.sites
    }
    assert all(len(found) > 40 for found in cells.values())
    for name in ("server", *federation.sites):
        others = set().union(*(found for site, found in cells.items() if site != name))
        others -= cells.get(name, set())
        places = [*(federation.kits / name).rglob("*"), federation.folder / f"{name}.out"]
        texts = [f for f in places if f.is_file() and f.suffix in {".txt", ".log", ".json", ".out"}]
        assert len(texts) > 3
        for file in texts:
            text = file.read_text(encoding="utf-8", errors="replace")
            assert not others & set(re.findall(r"-?\d+\.\d{4}\b", text)), file
            if file.suffix in {".log", ".out"} or file.name == "log.txt":
                assert not re.search(r"\bp[0-2]\b", text), file
