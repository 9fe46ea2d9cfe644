"""A server that does what ours never would: sites refuse it by themselves."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from secure_runs import PMTL, Spy, hidden, run, secure
from three_sites import job, services, write_tables

from pmtl.errors import PublicError
from pmtl.federation.agreement import Agreement
from pmtl.federation.coordinator import Coordinator
from pmtl.federation.messages import Message
from pmtl.federation.server_folder import ServerFolder
from pmtl.privacy.grid import Grid
from pmtl.privacy.plan import PrivacyPlan


@pytest.fixture
def tables(tmp_path):
    return write_tables(tmp_path / "tables")


@pytest.fixture(scope="module")
def authority():
    from certificates import Authority

    return Authority()


@pytest.fixture(scope="module")
def first_message(tmp_path_factory, authority):
    """The start message of a secure run."""
    folder, seen = tmp_path_factory.mktemp("first"), []

    def watch(site, message, answer):
        if message.kind == "start":
            seen.append(message)
        return answer()

    sites = hidden(write_tables(folder / "tables"), folder / "sites", authority)
    run(secure(), Spy(sites, watch), folder / "server")
    return seen[0].to_bytes()


@pytest.fixture
def start(tmp_path, tables, authority, first_message):
    """The start message of a secure run, and sites that have not seen it."""
    message = Message.from_bytes(first_message)
    return message, hidden(tables, tmp_path / "sites", authority)["a"]


def _told(service, message, **changes):
    agreement = {**message.header["agreement"], **changes.pop("agreement", {})}
    header = {**message.header, **changes, "agreement": agreement}
    answer = Message.from_bytes(service.handle(Message("start", header, message.arrays).to_bytes()))
    return answer.kind, answer.header.get("sentence", "")


def test_an_honest_start_is_accepted(start):
    message, service = start
    assert _told(service, message) == ("ready", "")


@pytest.mark.parametrize("run", ["../up", "../.state", "a/b", "", "..", "x" * 65, "\u212a"])
def test_the_name_of_a_run_is_no_path(start, run):
    message, service = start
    before = sorted(service.settings.folder.parent.rglob("*"))
    kind, said = _told(service, message, agreement={"run": run})
    assert kind == "refused"
    assert "is not a valid run name" in said
    assert sorted(service.settings.folder.parent.rglob("*")) == before


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("model", "os:system", "does not import code that a job names"),
        ("algorithm", "subprocess:Popen:args=id", "does not import code that a job names"),
        ("metric", "antigravity:f", "does not import code that a job names"),
        ("metric", "auc", "takes no metric"),
        ("privacy", {"sampling": "bernoulli"}, "only the library's sampling schemes"),
    ],
)
def test_settings_that_name_code_are_refused(start, setting, value, words):
    message, service = start
    config = {**message.header["agreement"]["config"], setting: value}
    kind, said = _told(service, message, agreement={"config": config})
    assert kind == "refused"
    assert words in said


def test_a_plan_that_claims_more_clients_or_sampling_is_refused(start):
    message, service = start
    plan = PrivacyPlan.from_dict(message.header["agreement"]["plan"])
    more = replace(plan, clients=10**6, cohort=10**6).to_dict()
    assert "another number of clients" in _told(service, message, agreement={"plan": more})[1]
    drawn = replace(plan, cohort=2, sampling="poisson").to_dict()
    assert "all clients take part" in _told(service, message, agreement={"plan": drawn})[1]


def test_masks_are_for_whole_steps_only(start):
    message, service = start
    assert "hardened" in _told(service, message, whole=False)[1]


def test_names_of_code_are_refused_before_they_are_imported(start):
    message, service = start
    plan = {**message.header["agreement"]["plan"], "sampling": "antigravity:Scheme"}
    kind, said = _told(service, message, agreement={"plan": plan})
    assert kind == "refused"
    assert "does not import code that a job names" in said


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"whole": "false"}, "the entry 'whole' is not valid: 'false'"),
        ({"more": 1}, "no entry of a message of the kind 'start' named 'more'"),
        ({"agreement": {"colluders": "0"}}, "the entry 'colluders' is not valid: '0'"),
        ({"agreement": {"colluders": True}}, "the entry 'colluders' is not valid: True"),
        ({"agreement": {"initialisation": "7"}}, "the entry 'initialisation' is not valid"),
        ({"agreement": {"clients": [1, 2]}}, "the entry 'clients' is not valid"),
        ({"agreement": {"colour": "red"}}, "no entry of the agreement named 'colour'"),
        ({"agreement": {"config": {"seed": "three"}}}, "What was agreed cannot be read"),
        ({"agreement": {"config": None}}, "What was agreed cannot be read"),
        ({"agreement": {"plan": {"sampling": "full"}}}, "A privacy plan lacks"),
    ],
)
def test_an_agreement_that_is_not_as_declared_is_refused(start, changes, words):
    message, service = start
    kind, said = _told(service, message, **changes)
    assert kind == "refused"
    assert words in said
    assert not service.folder.state("r1").exists


@pytest.mark.parametrize(
    "name", ["run", "config", "columns", "clients", "plan", "initialisation", "colluders"]
)
def test_an_agreement_with_a_missing_entry_is_refused(start, name):
    message, _ = start
    agreement = {k: v for k, v in message.header["agreement"].items() if k != name}
    with pytest.raises(PublicError, match=f"no entry '{name}'"):
        Agreement.from_dict(agreement)


@pytest.mark.parametrize("colluders", [-1, 3, 10**6])
def test_a_number_of_colluding_sites_that_cannot_be_is_refused(start, colluders):
    message, service = start
    kind, said = _told(service, message, agreement={"colluders": colluders})
    assert kind == "refused"
    assert "is not possible with 3" in said


def test_fewer_colluding_sites_than_a_site_wants_are_refused(start, tmp_path, tables, authority):
    """Whether or not the site also allows runs without secure aggregation."""
    message, _ = start
    wary = hidden(tables, tmp_path / "wary", authority, colluders=1)["a"]
    kind, said = _told(wary, message, agreement={"colluders": 0})
    assert kind == "refused"
    assert "0 colluding sites, but needs 1" in said


def test_a_digest_of_rows_leaves_a_site_only_for_a_plain_experiment(tmp_path, tables, authority):
    """It would let the server try out what the rows might be."""
    seen = []

    def watch(site, message, answer):
        if message.kind == "invite":
            seen.append(message)
        return answer()

    run(job(**PMTL), Spy(services(tables, tmp_path / "plain"), watch), tmp_path / "server")
    run(secure(), Spy(hidden(tables, tmp_path / "hidden", authority), watch), tmp_path / "server2")
    plain, masked = seen[0], seen[-1]
    assert (plain.header["secure"], masked.header["secure"]) == (False, True)

    def answer(message, **limits):
        service = services({"a": tables["a"]}, tmp_path / "asked", **limits)["a"]
        return Message.from_bytes(service.handle(message.to_bytes()))

    assert "fingerprint" in answer(plain).header
    assert "fingerprint" not in answer(masked).header
    assert "fingerprint" not in answer(plain, secure=True).header
    refused = answer(plain, modes=("production",))
    assert refused.kind == "refused"
    assert "its mode is experiment, and the site allows production" in refused.header["sentence"]


def test_keys_are_bound_to_what_was_agreed(authority):
    from pmtl.secure_aggregation.protocol import SiteMasking

    makers = {site: SiteMasking(authority.identity(site)) for site in "ab"}
    keys = [makers[site].key("r", 0, "x", f"agreement of {site}") for site in "ab"]
    grid = Grid.of(PrivacyPlan(6, 6, "full", 0.5, 0.2, 3, 0.01))
    given = [key.to_dict() for key in keys]
    with pytest.raises(PublicError, match="not signed by this site for this attempt"):
        makers["a"].check("r", 0, "x", given, frozenset("ab"), grid, 0)


def test_a_finished_run_whose_result_was_moved_is_not_run_again(tmp_path, tables):
    sites = services(tables, tmp_path / "sites")
    told = []

    def begin(folder):
        place = ServerFolder(tmp_path / folder)
        Coordinator(job(**PMTL), Spy(sites), place, threading.Event(), told.append).run()

    begin("one")
    for site in sites:
        (tmp_path / "sites" / site / "r1").rename(tmp_path / f"moved-{site}")
    with pytest.raises(Exception, match="took part in a run of this name before"):
        begin("two")


def test_a_round_beyond_the_plan_is_refused(tmp_path, tables):
    sites = services(tables, tmp_path / "sites")
    asked = []

    def beyond(site, message, answer):
        content = answer()
        if site == "a" and message.kind == "round" and message.header["round"] == 2:
            header = {**message.header, "round": 3, "attempt": "more"}
            asked.append(sites["a"].handle(Message("round", header, message.arrays).to_bytes()))
        return content

    run(job(**PMTL), Spy(sites, beyond), tmp_path / "server")
    answer = Message.from_bytes(asked[0])
    assert answer.kind == "refused"
    assert "not part of the plan" in answer.header["sentence"]


def test_the_sites_statement_covers_abandoned_attempts(tmp_path, tables, authority):
    from pmtl.runs.result import load_run

    gone = []

    def drop(site, message, answer):
        content = answer()
        if site == "b" and message.kind == "masked" and not gone:
            gone.append(site)
            return None
        return content

    made = hidden(tables, tmp_path / "sites", authority)
    run(secure(), Spy(made, drop), tmp_path / "server")
    assert load_run(tmp_path / "sites" / "a" / "r1").privacy.epsilon == pytest.approx(8, rel=1e-3)


@pytest.mark.parametrize("kind", ["joined", "uploads", "done"])
def test_one_sites_nonsense_does_not_end_the_run_of_the_others(tmp_path, tables, kind):
    sites = services(tables, tmp_path / "sites", epsilon=1e9)

    def lie(site, message, answer):
        content = answer()
        read = Message.from_bytes(content)
        if site != "b" or read.kind != kind:
            return content
        if kind == "uploads":
            return Message("uploads", read.header, {"uploads": np.array(1)}).to_bytes()
        return b"nonsense" if kind == "done" else Message("joined", {"clients": 3}).to_bytes()

    config = {**PMTL, "privacy": {"noise": 0.5, "cohort": 3, "rounds": 3, "hardened": True}}
    if kind == "joined":  # Nothing has begun: the operator is told whose fault it is.
        with pytest.raises(Exception, match="'b' does not say how its rows look"):
            run(job(**config), Spy(sites, lie), tmp_path / "server")
        return
    run(job(**config), Spy(sites, lie), tmp_path / "server")
    assert (tmp_path / "server/runs/r1/public/shared.safetensors").exists()


def test_an_agreement_reads_back_and_has_a_digest(start):
    message, _ = start
    agreement = Agreement.from_dict(message.header["agreement"])
    assert Agreement.from_dict(agreement.to_dict()) == agreement
    other = replace(agreement, colluders=0)
    assert other.digest() != agreement.digest()
