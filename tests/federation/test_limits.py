"""What a site's limits keep from leaving it, and what a refused run leaves behind."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from test_coordinator_faults import Faulty
from three_sites import SITES, coordinate, job, services, write_tables

from pmtl._version import __version__
from pmtl.errors import PmtlError
from pmtl.federation.limits import read_settings
from pmtl.federation.messages import Invite, Message
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.runs.config import parse_config
from pmtl.runs.result import load_run

ASKED = {
    "algorithm": "pmtl",
    "local": {"steps": 2, "batch": 4},
    "privacy": {"epsilon": 8.0, "rounds": 3, "hardened": True},
}
LESS = {**ASKED, "privacy": {"epsilon": 2.0, "rounds": 3, "hardened": True}}


@pytest.fixture
def tables(tmp_path):
    return write_tables(tmp_path / "tables")


def test_no_digest_of_rows_leaves_a_site_that_allows_production_only(tmp_path, tables):
    config = asdict(parse_config({"seed": 3}, "the test"))
    invite = Invite(config, __version__, secure=False).message().to_bytes()
    for modes, kind in ((("experiment",), "joined"), (("production",), "refused")):
        site = services(tables, tmp_path / kind, modes=modes)["a"]
        answer = Message.from_bytes(site.handle(invite))
        assert answer.kind == kind
        assert ("fingerprint" in answer.header) == (kind == "joined")
    assert "its mode is experiment, and the site allows production" in answer.header["sentence"]


def _one_refuses(tables, folder, **others):
    """Sites of which `a` allows less than the others."""
    made = services(tables, folder, **others)
    made["a"] = services(tables, folder, epsilon=4.0)["a"]
    return made


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('one_client = "no"', "the entry 'one_client' is not valid: 'no'"),
        ('colour = "red"', "no entry of .site. named 'colour'"),
        ('[limits]\nepsilon = "2"', "the entry 'epsilon' is not valid: '2'"),
        ("[limits]\nepsilon = -1", "epsilon must be at least 0, but -1 was given"),
        ("[limits]\ndelta = nan", "delta must be a number, but nan was given"),
        ("[limits]\nclients = 1.5", "the entry 'clients' is not valid: 1.5"),
        ('[model]\nname = "mlp"', "no section 'model'"),
    ],
)
def test_a_sites_file_is_checked(tmp_path, lines, said):
    file = tmp_path / "site.toml"
    file.write_text(f'[site]\ndata = "rows.csv"\nfolder = "models"\n{lines}\n')
    with pytest.raises(PmtlError, match=said):
        read_settings(file)


def test_a_run_that_one_site_refuses_costs_the_others_nothing(tmp_path, tables):
    sites = _one_refuses(tables, tmp_path / "sites", epsilon=8.0, total_epsilon=8.0)
    with pytest.raises(PmtlError, match="a: This site's limits do not allow the run"):
        coordinate(job(**ASKED), sites, tmp_path / "server")
    assert [sites[site].folder.spent("another") for site in SITES] == [0, 0, 0]
    assert not (tmp_path / "server/runs/r1").exists()
    with Ledger.open(tmp_path / "server/ledger.db", write=False) as ledger:
        assert not ledger.charged("r1")
    # The same name again, with less, and with new processes.
    sites = _one_refuses(tables, tmp_path / "sites", epsilon=8.0, total_epsilon=8.0)
    coordinate(job(**LESS), sites, tmp_path / "server")
    for site in SITES:
        assert load_run(tmp_path / "sites" / site / "r1").privacy.epsilon == pytest.approx(2)
        assert sites[site].folder.spent("another") == pytest.approx(2)


def test_the_total_is_checked_again_when_a_run_begins(tmp_path, tables):
    """Two runs that started and did not begin; together they are too much."""
    sites = services(tables, tmp_path / "sites", epsilon=8.0, total_epsilon=9.0)
    waiting = []

    class Gone(Exception):
        pass

    def first(site, message, answer):
        if message.kind == "round":
            waiting.append((site, message))
            raise Gone
        return answer()

    with pytest.raises(Gone):
        coordinate(job(**ASKED), sites, tmp_path / "one", transport=Faulty(sites, first))
    coordinate(job("r2", **LESS), sites, tmp_path / "two")
    site, message = waiting[0]
    answer = Message.from_bytes(sites[site].handle(message.to_bytes()))
    assert answer.kind == "refused"
    assert "after runs of 2 together, but allows 9" in answer.header["sentence"]


def test_a_run_that_began_is_not_replaced_by_another_of_its_name(tmp_path, tables):
    sites = services(tables, tmp_path / "sites")
    coordinate(job(**ASKED), sites, tmp_path / "one")
    starts = []

    def keep(site, message, answer):
        if message.kind == "start":
            starts.append(message)
        return answer()

    others = services(tables, tmp_path / "others")
    coordinate(job(**LESS), others, tmp_path / "two", transport=Faulty(others, keep))
    state = sites["a"].folder.state("r1")
    state.create({"agreement": {}, "whole": True}, {})  # As if it were still under way.
    answer = Message.from_bytes(sites["a"].handle(starts[0].to_bytes()))
    assert answer.kind == "refused"
    assert "another agreement" in answer.header["sentence"]
    assert load_run(tmp_path / "sites/a/r1").privacy.epsilon == pytest.approx(8)
