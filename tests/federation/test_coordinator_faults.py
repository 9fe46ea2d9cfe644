"""Sites that fail, come back, lie or ask for more; a server that stops in mid-run."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
from three_sites import SITES, Faulty, coordinate, job, services, write_tables

from pmtl import storage as files
from pmtl.errors import Interrupted, PmtlError
from pmtl.federation.coordinator import Coordinator
from pmtl.federation.messages import Message
from pmtl.federation.server_folder import ServerFolder
from pmtl.federation.service import SiteService
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.runs.result import load_run

PMTL = {
    "algorithm": "pmtl",
    "local": {"steps": 2, "batch": 4},
    "privacy": {"epsilon": 8.0, "rounds": 5, "hardened": True},
}
SECRET = {**PMTL, "mode": "production", "seed": None, "ledger": "(at the server)"}


@pytest.fixture
def tables(tmp_path):
    return write_tables(tmp_path / "tables")


@pytest.fixture
def sites(tables, tmp_path):
    return services(tables, tmp_path / "sites")


def _models(tmp_path, site, run="r1"):
    result = load_run(tmp_path / "sites" / site / run)
    return result.views()["personal"](np.arange(len(result.clients))).numpy()


def _shared(folder, run="r1"):
    path = ServerFolder(folder).run(run).public / "shared.safetensors"
    return files.read_tensors(path)[0]["weights"].numpy()


def test_a_dead_site_costs_one_deadline_and_is_counted_when_it_is_back(tmp_path, sites):
    def twist(site, message, answer):
        dead = site == "b" and message.kind == "round" and message.header["round"] in (1, 2)
        return None if dead else answer()

    transport = Faulty(sites, twist)
    _, told = coordinate(job(**PMTL), sites, tmp_path / "server", transport=transport)
    waited = [wait for _, wait in transport.asked if wait is not None]
    assert waited.count(frozenset(SITES)) == 3  # Rounds 0, 1 and 4: b is waited for.
    assert waited.count(frozenset({"a", "c"})) == 2  # Rounds 2 and 3: asked, but not waited for.
    assert "Site 'b' did not answer round 2; it counts as zero." in told
    assert "Site 'b' is back." in told
    assert sum("did not answer" in sentence for sentence in told) == 1


def test_an_update_that_was_not_counted_does_not_change_a_personal_model(tmp_path, tables):
    def lost(site, message, answer):
        content = answer()
        late = site == "b" and message.kind == "round" and message.header["round"] == 4
        return None if late else content  # The site trained, and its answer came too late.

    def absent(site, message, answer):
        dead = site == "b" and message.kind == "round" and message.header["round"] == 4
        return None if dead else answer()

    found = []
    for name, twist in (("lost", lost), ("absent", absent)):
        sites = services(tables, tmp_path / name / "sites")
        coordinate(job(**PMTL), sites, tmp_path / name, transport=Faulty(sites, twist))
        found.append(_models(tmp_path / name, "b"))
    assert np.array_equal(*found)
    whole = services(tables, tmp_path / "whole" / "sites")
    coordinate(job(**PMTL), whole, tmp_path / "whole")
    assert not np.array_equal(found[0], _models(tmp_path / "whole", "b"))


def test_a_site_that_restarts_every_round_loses_nothing(tmp_path, tables):
    sites = services(tables, tmp_path / "sites")
    coordinate(job(**PMTL), sites, tmp_path / "server")
    other = services(tables, tmp_path / "again" / "sites")

    def restart(site, message, answer):
        fresh = SiteService(site, other[site].settings)
        return fresh.handle(message.to_bytes())

    coordinate(job(**PMTL), other, tmp_path / "again", transport=Faulty(other, restart))
    assert np.array_equal(_shared(tmp_path / "server"), _shared(tmp_path / "again"))
    for site in SITES:
        assert np.array_equal(_models(tmp_path, site), _models(tmp_path / "again", site))


@pytest.mark.parametrize(
    "uploads",
    [
        np.full((3, 8), np.nan),
        np.full((3, 8), 2**31 - 1, dtype=np.int32),
        np.zeros((3, 7), dtype=np.int32),
        np.zeros((300, 8), dtype=np.int32),
        np.array(["a"]).view(np.uint32),
    ],
    ids=["nan", "huge", "short", "many", "text"],
)
def test_nonsense_counts_as_zero(tmp_path, tables, uploads):
    def lie(site, message, answer):
        content = answer()
        if site != "b" or message.kind != "round":
            return content
        header = Message.from_bytes(content).header
        return Message("uploads", header, {"uploads": uploads}).to_bytes()

    def zeros(site, message, answer):
        content = answer()
        if site != "b" or message.kind != "round":
            return content
        honest = Message.from_bytes(content)
        nothing = {"uploads": np.zeros_like(honest.arrays["uploads"])}
        return Message("uploads", honest.header, nothing).to_bytes()

    for name, twist in (("lie", lie), ("zeros", zeros)):
        sites = services(tables, tmp_path / name / "sites")
        coordinate(job(**PMTL), sites, tmp_path / name, transport=Faulty(sites, twist))
    assert np.array_equal(_shared(tmp_path / "lie"), _shared(tmp_path / "zeros"))


def test_damaged_and_replayed_answers_are_dropped(tmp_path, tables):
    old = {}

    def replay(site, message, answer):
        content = answer()
        if message.kind == "round" and site == "b":
            old.setdefault(site, content)
            return old[site] if message.header["round"] < 3 else b"\x08\0\0\0\0\0\0\0nonsense"
        return content

    sites = services(tables, tmp_path / "sites")
    _, told = coordinate(job(**PMTL), sites, tmp_path / "server", transport=Faulty(sites, replay))
    assert "Site 'b', round 2: It sent an answer that was not asked for." in told
    assert "Site 'b', round 4: It sent something that is not a message." in told


def test_a_site_answers_a_round_once_and_never_an_old_one(tmp_path, sites):
    kept = []

    def record(site, message, answer):
        if site == "a" and message.kind == "round":
            kept.append(message)
        return answer()

    coordinate(job(**PMTL), sites, tmp_path / "server", transport=Faulty(sites, record))

    # The same messages again, to a site in mid-run.
    again = services(write_tables(tmp_path / "t2"), tmp_path / "again")
    starts = []

    def stop_after_two(site, message, answer):
        if message.kind == "round" and message.header["round"] == 2:
            raise KeyboardInterrupt
        if site == "a" and message.kind == "round":
            starts.append(message)
        return answer()

    with pytest.raises(KeyboardInterrupt):
        coordinate(
            job(**PMTL), again, tmp_path / "server2", transport=Faulty(again, stop_after_two)
        )
    for message in starts:
        answer = Message.from_bytes(again["a"].handle(message.to_bytes()))
        assert answer.kind == "refused"
        assert "was answered already" in answer.header["sentence"]


def test_clients_of_another_site_are_refused(tmp_path, sites):
    def claim(site, message, answer):
        joined = Message.from_bytes(answer())
        if site != "b" or joined.kind != "joined":
            return joined.to_bytes()
        return Message("joined", {**joined.header, "clients": ["a/p0"]}).to_bytes()

    with pytest.raises(PmtlError, match="'b' names clients that are not its own"):
        coordinate(job(**PMTL), sites, tmp_path / "server", transport=Faulty(sites, claim))
    assert not (tmp_path / "server" / "ledger.db").exists()


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"epsilon": 1.0}, "ε = 8, but allows 1"),
        ({"clip": 0.1}, "a clip norm of 0.5, but allows 0.1"),
        ({"rounds": 3}, "5 rounds, but allows 3"),
        ({"models": ("linear",)}, "the model 'logistic', but allows linear"),
        ({"algorithms": ("pooling",)}, "the algorithm 'pmtl', but allows pooling"),
        ({"clients": 100}, "6 clients, but needs 100"),
        ({"version": "9"}, "this site allows 9"),
        ({"total_epsilon": 3.0}, "after runs of 0 together, but allows 3"),
    ],
)
def test_a_job_beyond_a_sites_limits_is_refused_there(tmp_path, tables, limits, said):
    sites = services(tables, tmp_path / "sites", **limits)
    with pytest.raises(PmtlError, match="The run cannot start") as error:
        coordinate(job(**PMTL), sites, tmp_path / "server")
    assert said in str(error.value)
    ledger = tmp_path / "server" / "ledger.db"
    if ledger.exists():
        with Ledger.open(ledger, write=False) as opened:
            assert opened.charged("r1") == {} or not opened.charged("r1")
    assert not (tmp_path / "sites" / "a" / "r1").exists()


class Boom(Exception):
    pass


@pytest.mark.parametrize("config", [PMTL, SECRET], ids=["experiment", "production"])
def test_a_server_that_dies_between_charge_and_publication(tmp_path, tables, config):
    sites = services(tables, tmp_path / "sites")
    drawn = []

    def crash(round):
        drawn.append(round)
        raise Boom

    with pytest.raises(Boom):
        coordinate(job(**config), sites, tmp_path / "server", source=crash)
    assert drawn == [0]
    with Ledger.open(tmp_path / "server" / "ledger.db", write=False) as ledger:
        assert len(ledger.charged("r1")) == 1
    # Again, with new processes.
    fresh = services(tables, tmp_path / "sites")
    _, told = coordinate(job(**config), fresh, tmp_path / "server")
    with Ledger.open(tmp_path / "server" / "ledger.db", write=False) as ledger:
        assert len(ledger.charged("r1")) == 5
    if config is PMTL:
        whole = services(tables, tmp_path / "whole" / "sites")
        coordinate(job(**PMTL), whole, tmp_path / "whole")
        assert np.array_equal(_shared(tmp_path / "server"), _shared(tmp_path / "whole"))
    else:  # The lost release counts: four rounds were published for five charges.
        assert any("lost to a crash" in sentence for sentence in told)


def test_production_keeps_secrets_and_its_results_work_alone(tmp_path, tables):
    sites = services(tables, tmp_path / "sites")
    coordinate(job(**SECRET), sites, tmp_path / "server")
    result = tmp_path / "sites" / "b" / "r1"
    run = load_run(result)
    assert run.clients == ("p0", "p1", "p2")
    assert math.isclose(run.privacy.epsilon, 8.0, rel_tol=1e-3)
    answers = run.predict("p1", np.zeros((4, 3), dtype=np.float32))
    assert answers.shape == (4,)
    assert set(run.evaluate()["test"]) == {"personal", "shared"}  # Its own rows, at the site.
    assert (result / "private").stat().st_mode & 0o077 == 0
    text = (tmp_path / "server" / "runs" / "r1" / "public" / "privacy.txt").read_text()
    assert "ε = 8" in text
    names = {path.name for path in (tmp_path / "server" / "runs" / "r1" / "public").iterdir()}
    assert names == {"shared.safetensors", "plan.json", "privacy.txt", "privacy.json"}
    # Resuming a finished run repeats nothing.
    before = _shared(tmp_path / "server")
    coordinate(job(**SECRET), services(tables, tmp_path / "sites"), tmp_path / "server")
    assert np.array_equal(before, _shared(tmp_path / "server"))
    with Ledger.open(tmp_path / "server" / "ledger.db", write=False) as ledger:
        assert len(ledger.charged("r1")) == 5


def test_a_stopped_run_continues_to_the_same_bits(tmp_path, tables):
    sites = services(tables, tmp_path / "sites")
    stop = threading.Event()

    def twist(site, message, answer):
        if message.kind == "round" and message.header["round"] == 2:
            stop.set()
        return answer()

    told = []
    given = job(**PMTL), Faulty(sites, twist), ServerFolder(tmp_path / "server")
    with pytest.raises(Interrupted, match="after round 3 of 5"):
        Coordinator(*given, stop, told.append).run()
    assert not (tmp_path / "sites" / "a" / "r1" / "shared.safetensors").exists()
    coordinate(job(**PMTL), services(tables, tmp_path / "sites"), tmp_path / "server")
    whole = services(tables, tmp_path / "whole" / "sites")
    coordinate(job(**PMTL), whole, tmp_path / "whole")
    assert np.array_equal(_shared(tmp_path / "server"), _shared(tmp_path / "whole"))
    for site in SITES:
        assert np.array_equal(_models(tmp_path, site), _models(tmp_path / "whole", site))


def test_messages_do_not_tell_who_was_drawn(tmp_path, tables):
    sizes = {}

    def measure(site, message, answer):
        content = answer()
        if message.kind == "round" and message.header["round"]:  # −1 was counted before the first.
            drawn = bool(message.arrays["drawn"].any())
            size = len(message.to_bytes()), len(content)
            sizes.setdefault(site, {}).setdefault(drawn, set()).add(size)
        return content

    config = {**PMTL, "privacy": {"noise": 0.5, "cohort": 2, "rounds": 9, "hardened": True}}
    sites = services(tables, tmp_path / "sites", epsilon=1e9)
    coordinate(job(**config), sites, tmp_path / "server", transport=Faulty(sites, measure))
    for site, found in sizes.items():
        assert set(found) == {True, False}, (site, "both must occur for the test to mean anything")
        assert found[True] == found[False], site


def test_one_ledger_has_one_server(tmp_path, tables, sites):
    refused = []

    def second(site, message, answer):
        if site == "a" and message.kind == "round" and message.header["round"] == 1:
            others = services(tables, tmp_path / "others")
            with pytest.raises(PmtlError) as error:
                coordinate(job("r2", **PMTL), others, tmp_path / "server")
            refused.append(str(error.value))
        return answer()

    coordinate(job(**PMTL), sites, tmp_path / "server", transport=Faulty(sites, second))
    assert len(refused) == 1
    assert "ledger" in refused[0]
