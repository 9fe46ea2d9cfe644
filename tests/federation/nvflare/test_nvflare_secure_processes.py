"""Secure aggregation between real processes: the run, sites that end, and a server that attacks."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("nvflare", reason="NVFLARE is an extra: pip install 'pmtl[federation]'")

from certificates import Authority
from loopback import loopback, wait_until
from misbehaviour import PHASES, words_of
from secure_runs import Spy, hidden, run, secure
from three_sites import SITES, write_tables

from pmtl import storage as files
from pmtl.privacy.grid import Grid
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.privacy.plan import PrivacyPlan
from pmtl.runs.result import load_run
from pmtl.secure_aggregation import protocol
from pmtl.secure_aggregation.protocol import unmasked

#: `tests/federation/test_demo.py` hides uploads between real processes, and
#: test_federation_secure_attacks.py there attacks in one; here both come together, at length.
pytestmark = pytest.mark.thorough

ROUNDS = 60
SETTINGS = ("--algorithm", "pmtl:lam=0.3", "--epsilon", 8, "--steps", 2, "--batch", 4, "--hardened",
            "--seed", 3, "--secure-aggregation", "--round-seconds", 60)  # fmt: skip


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """A server and three sites, started by our commands, with other parties' code in them."""
    folder = tmp_path_factory.mktemp("federation")
    (folder / "limits.toml").write_text("[limits]\nepsilon = 100\nsecure = true\ncolluders = 1\n")
    path = os.pathsep.join(
        [str(Path(__file__).with_name("hooks")), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    reading = ("--client-column", "client", "--target", "target", "--limits")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        patch.setenv("PMTL_TEST_FOLDER", str(folder))
        with loopback(folder) as made:
            made.start("server")
            for site, table in write_tables(folder / "tables").items():
                made.start(
                    site, "--data", f"{table}:validation=0", *reading, folder / "limits.toml"
                )
            made.connected()
            yield made


def _seen(federation, run):
    """What the server recorded of each attempt."""
    found = [np.load(file) for file in sorted((federation.folder / "seen" / run).iterdir())]
    return [{site: sent[site] for site in sent.files} for sent in found]


def _public(federation, run):
    return federation.kits / "server/federation/runs" / run / "public"


@pytest.fixture(scope="module")
def finished(federation):
    outcome = federation.job("run", "--name", "seen", "--rounds", ROUNDS, *SETTINGS)
    assert outcome["state"] == "finished"
    return federation


def test_the_same_bits_as_the_same_shares_added_in_the_clear(finished, tmp_path, monkeypatch):
    """The same run in one process, with the same shares and without masks."""
    nothing = lambda site, secret, keys, attempt, size: np.zeros(size, np.uint64)  # noqa: E731
    monkeypatch.setattr(protocol, "mask", nothing)
    tables = write_tables(tmp_path / "tables")
    sites = hidden(tables, tmp_path / "sites", Authority(), words_of)
    privacy = {"epsilon": 8.0, "rounds": ROUNDS, "hardened": True}
    run(secure(algorithm="pmtl:lam=0.3", privacy=privacy), Spy(sites), tmp_path / "one")
    here, there = tmp_path / "one/runs/r1/public", _public(finished, "seen")
    found, wanted = (
        files.read_tensors(folder / "shared.safetensors")[0]["weights"].numpy()
        for folder in (there, here)
    )
    assert np.array_equal(found, wanted)
    for site in SITES:
        mine = load_run(finished.kits / site / "models/seen")
        same = load_run(tmp_path / "sites" / site / "r1")
        everybody = np.arange(len(mine.clients))
        models = mine.views()["personal"](everybody), same.views()["personal"](everybody)
        assert np.array_equal(models[0].numpy(), models[1].numpy())


def test_what_the_server_recorded_tells_nothing_about_one_site(finished):
    """Over all rounds: bytes of each site and of each pair of sites are uniform, and the numbers of
    a site have nothing to do with its numbers of the next round."""
    sent = _seen(finished, "seen")
    assert len(sent) == ROUNDS
    views = {site: np.stack([numbers[site] for numbers in sent]) for site in SITES}
    for a, b in itertools.combinations(SITES, 2):
        views[f"{a} and {b}"] = views[a] + views[b]
    for site in SITES:
        views[f"{site} and its next"] = views[site][1:] - views[site][:-1]
        numbers = views[site].view(np.int64).astype(np.float64).ravel()
        later = np.roll(numbers, -len(sent[0][site]))
        assert stats.spearmanr(numbers, later).pvalue > 1e-5
    for name, numbers in views.items():
        counts = np.bincount(numbers.view(np.uint8).ravel(), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-5, name


def test_the_statement_of_the_server_and_of_a_site(finished):
    words = " ".join((_public(finished, "seen") / "privacy.txt").read_text().split())
    assert "a curious or active server together with up to 1 of the 3 sites" in words
    assert load_run(finished.kits / "a/models/seen").privacy.hidden["variance"] == 1.5


def test_a_server_that_attacks_is_refused_by_the_sites(federation):
    """It charges six attempts, and asks each site for more answers in between."""
    outcome = federation.job("run", "--name", "attacked", "--rounds", 6, *SETTINGS, check=False)
    assert outcome["state"] == "finished", outcome
    said = json.loads((federation.folder / "attacks.json").read_text())
    expected = {
        "swapped key": "The key of site 'b' is refused: it was not signed by this site",
        "own key as b": "The key of site 'b' is refused: its certificate is in another name",
        "own key as a new site": "'localhost' is not a site of this run",
        "alone": "against 1 colluding site is not possible with 1",
        "old key": "The key of site 'c' is refused: it was not signed by this site",
        "same request again": "Round 0 was answered already",
        "key again": "Round 0 was answered already",
        "in plain": "they do not leave in plain",
    }
    assert set(said) == set(expected)
    for attack, sentence in expected.items():
        assert said[attack].startswith("refused: "), attack
        assert sentence in said[attack], attack
    # Site a answered six times in all, as the plan pays for: four rounds, and two of the attacks.
    sent = _seen(federation, "attacked")
    assert sum("a" in numbers for numbers in sent) + 1 == 6
    (mixed,) = _seen(federation, "mixed")
    for count in (1, 2, 3):
        for some in itertools.combinations(SITES, count):
            part = unmasked({site: mixed[site] for site in some}, len(mixed["a"])).double()
            assert float(part.abs().median()) > 2**59, some


@pytest.mark.thorough
def test_a_site_that_is_killed_in_each_phase(federation):
    """In one process, `test_federation_secure_attacks.py` lets a site leave in each phase."""
    rounds = 8
    federation.job("run", "--name", "kills", "--rounds", rounds, *SETTINGS, "--no-wait")
    end = _public(federation, "kills") / "privacy.json"  # Each start of a process takes seconds.
    wait_until(end.exists, "the end of the run", 300)
    assert all((federation.folder / f"ended-{kind}-{round}").exists() for kind, round, _ in PHASES)
    sites = [set(numbers) for numbers in _seen(federation, "kills")]
    # Without b, which ended before it gave a key; then two attempts that it left, each made again
    # without it; then all.
    assert sites == [set("ac"), *4 * [set("ac")], *3 * [set("abc")]]
    with Ledger.open(federation.kits / "server/federation/ledger.db", write=False) as ledger:
        assert len(ledger.charged("kills")) == rounds
    plan = PrivacyPlan.from_dict(
        files.read_json(_public(federation, "kills") / "plan.json")["plan"]
    )
    reach = plan.clients * 2 ** Grid.of(plan).bits + 10 * 2 * Grid.of(plan).noise
    sums = [unmasked(sent, len(sent["a"])).double() for sent in _seen(federation, "kills")]
    small = [float(total.abs().max()) < reach for total in sums]
    assert small == [True, False, True, False, True, True, True, True]
    for site in SITES:
        assert load_run(federation.kits / site / "models/kills").clients
