"""Runs of a federation with secure aggregation."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from certificates import Authority
from secure_runs import PMTL, Spy, hidden, run, secure
from three_sites import SITES, job, services, write_tables

from pmtl import storage as files
from pmtl.errors import PmtlError
from pmtl.federation.messages import Message
from pmtl.federation.server_folder import ServerFolder
from pmtl.privacy.grid import Grid
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.privacy.noise import rounded, seeded_source
from pmtl.runs.result import load_run
from pmtl.secure_aggregation import shares
from pmtl.secure_aggregation.protocol import unmasked


@pytest.fixture(scope="module")
def authority():
    return Authority()


def words_of(site):
    """The words of a site's shares, by round."""
    return lambda round: seeded_source(5, f"{site} {round}")(round)


@pytest.fixture
def tables(tmp_path):
    return write_tables(tmp_path / "tables")


def _shared(folder):
    file = ServerFolder(folder).run("r1").public / "shared.safetensors"
    return files.read_tensors(file)[0]["weights"].numpy()


def _models(tmp_path, site):
    result = load_run(tmp_path / site / "r1")
    return result.views()["personal"](np.arange(len(result.clients))).numpy()


def test_an_attempt_is_charged_before_any_site_is_asked_for_its_upload(tmp_path, tables, authority):
    charged = []

    def look(site, message, answer):
        if message.kind == "masked":
            with Ledger.open(tmp_path / "server" / "ledger.db", write=False) as ledger:
                charged.append((message.header["round"], len(ledger.charged("r1"))))
        return answer()

    run(secure(), Spy(hidden(tables, tmp_path / "sites", authority), look), tmp_path / "server")
    assert charged == [(round, round + 1) for round in range(3) for _ in tables]


@pytest.mark.parametrize("config", [PMTL, {"privacy": {"epsilon": 8.0}}], ids=["pmtl", "default"])
def test_equal_to_the_same_shares_in_the_clear(tmp_path, tables, authority, config):
    made = hidden(tables, tmp_path / "sites", authority, words_of)
    twins = services(tables, tmp_path / "twins")
    clear, masked = {}, {}

    def mirror(site, message, answer):
        """Let a twin without secure aggregation do the same."""
        header = dict(message.header)
        if message.kind == "start":
            header["agreement"] = {**header["agreement"], "colluders": None}
            twins[site].handle(Message("start", header, message.arrays).to_bytes())
        if message.kind == "finish":
            twins[site].handle(message.to_bytes())
        content = answer()
        if message.kind == "masked":
            header = {k: v for k, v in header.items() if k != "keys"} | {"summed": True}
            clients = len(message.arrays["reads"])
            arrays = {**message.arrays, "drawn": np.ones(clients, dtype=np.uint8)}
            twin = Message.from_bytes(
                twins[site].handle(Message("round", header, arrays).to_bytes())
            )
            clear.setdefault(header["round"], {})[site] = twin.arrays["uploads"]
            sent = Message.from_bytes(content).arrays["masked"]
            masked.setdefault(header["round"], {})[site] = sent
        return content

    run(secure(**config), Spy(made, mirror), tmp_path / "server")
    agreement, public, _ = ServerFolder(tmp_path / "server").run("r1").read()
    assert agreement.colluders == 1
    assert len(masked) == agreement.plan.rounds
    scale = shares.scale(Grid.of(agreement.plan), 3, 1)
    for round, sums in clear.items():
        size = len(sums["a"])
        expected = sum(
            torch.from_numpy(sums[site]) + rounded(words_of(site)(round), (size,), scale)
            for site in SITES
        )
        assert torch.equal(unmasked(masked[round], size), expected)
    for site in SITES:
        # Pooling's penalties know the published noise, which is larger in shares.
        if config is PMTL:
            assert np.array_equal(
                _models(tmp_path / "sites", site), _models(tmp_path / "twins", site)
            )
    assert not np.array_equal(_shared(tmp_path / "server")[0], agreement.model(public).start())


def test_a_dropped_site_costs_an_attempt_and_is_charged(tmp_path, tables, authority):
    made = hidden(tables, tmp_path / "sites", authority)
    gone = []

    def drop(site, message, answer):
        content = answer()
        if site == "b" and message.kind == "masked" and message.header["round"] == 1 and not gone:
            gone.append(site)
            return None  # It had sent; the server pretends that it had not.
        return content

    told = run(secure(), Spy(made, drop), tmp_path / "server")
    assert any("Round 2 was abandoned, because b did not answer" in sentence for sentence in told)
    with Ledger.open(tmp_path / "server" / "ledger.db", write=False) as ledger:
        # Three charges are all that the plan pays for: the last round is lost.
        assert len(ledger.charged("r1")) == 3
    assert any("Stopped early" in sentence for sentence in told)


def test_a_site_never_answers_more_often_than_the_plan_pays_for(tmp_path, tables, authority):
    made = hidden(tables, tmp_path / "sites", authority)
    refused = []

    def again(site, message, answer):
        """A server that does not charge what it asks for."""
        content = answer()
        if message.kind == "masked" and site == "a" and message.header["round"] == 2:
            attempt = {**message.header, "attempt": "another"}
            key = Message("key", {k: v for k, v in attempt.items() if k != "keys"})
            keys = [
                Message.from_bytes(made[other].handle(key.to_bytes())).header.get("signed")
                for other in SITES
            ]
            if all(keys):
                more = Message("masked", attempt | {"keys": keys}, message.arrays)
                refused.append(Message.from_bytes(made["a"].handle(more.to_bytes())))
        return content

    run(secure(), Spy(made, again), tmp_path / "server")
    assert len(refused) == 1
    assert refused[0].kind == "refused"
    assert "all that the plan pays for" in refused[0].header["sentence"]


def test_limits_may_demand_it(tmp_path, tables, authority):
    plain = services(tables, tmp_path / "plain", secure=True)
    with pytest.raises(PmtlError, match="needs secure aggregation"):
        run(job(**PMTL), Spy(plain), tmp_path / "server")
    more = hidden(tables, tmp_path / "more", authority, secure=True, colluders=2)
    with pytest.raises(PmtlError, match="1 colluding site, but needs 2"):
        run(secure(), Spy(more), tmp_path / "server2")
    without = services(tables, tmp_path / "without")
    with pytest.raises(PmtlError, match="no certificate"):
        run(secure(), Spy(without), tmp_path / "server3")


def test_the_statement_says_against_whom_it_stands(tmp_path, tables, authority):
    run(secure(), Spy(hidden(tables, tmp_path / "sites", authority)), tmp_path / "server")
    public = ServerFolder(tmp_path / "server").run("r1").public
    words = " ".join((public / "privacy.txt").read_text().split())
    plan = ServerFolder(tmp_path / "server").run("r1").read()[0].plan
    outsiders = replace(plan, noise_std=plan.noise_std * math.sqrt(3 / 2)).epsilon()
    alone = replace(plan, noise_std=plan.noise_std / math.sqrt(2)).epsilon()
    assert f"see only what was published it is ε = {outsiders:.4g}" in words
    assert f"with all other sites it is ε = {alone:.4g}" in words
    assert "Against whom: a curious or active server together with up to 1 of the 3 sites" in words
    assert "Against the server with 1 colluding site, which knows its own share, it is" in words
    assert "1.5 times the variance" in words
    assert "Kairouz, Liu & Steinke 2021) would give ε = " in words
    assert "No outside party has reviewed this protocol yet" in words
    assert "The server is trusted with" not in words
    assert "computed again from the seed" not in words
    assert files.read_json(public / "privacy.json")["hidden"]["outsiders"] == outsiders
    assert load_run(tmp_path / "sites" / "b" / "r1").privacy.epsilon == pytest.approx(8, rel=1e-3)


def test_uploads_of_such_a_run_never_leave_in_plain(tmp_path, tables, authority):
    made = hidden(tables, tmp_path / "sites", authority)
    refused = []

    def ask_plainly(site, message, answer):
        if message.kind == "key":
            header = {**message.header, "summed": False, "attempt": "p"}
            arrays = {
                "shared": np.zeros((1, 8), np.float32),
                "reads": np.zeros(2, np.int64),
                "drawn": np.ones(2, np.uint8),
            }
            plain = made[site].handle(Message("round", header, arrays).to_bytes())
            refused.append(Message.from_bytes(plain))
        return answer()

    run(secure(), Spy(made, ask_plainly), tmp_path / "server")
    assert len(refused) == 9
    assert all("do not leave in plain" in answer.header["sentence"] for answer in refused)


def test_nonsense_ends_an_attempt_with_a_sentence(tmp_path, tables, authority):
    made = hidden(tables, tmp_path / "sites", authority)

    def lie(site, message, answer):
        content = answer()
        if site != "c" or message.kind != "masked":
            return content
        read = Message.from_bytes(content)
        if message.header["round"] == 0:
            numbers = read.arrays["masked"] + np.uint64(2**61)
        else:
            numbers = np.zeros(3, dtype=np.float32)
        return Message("masked", read.header, {"masked": numbers}).to_bytes()

    told = run(secure(), Spy(made, lie), tmp_path / "server")
    assert (
        "Round 1 was abandoned. The sum of the sites is too large: a site sent wrong numbers."
        in told
    )
    assert any("Stopped early" in sentence for sentence in told)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"privacy": {"epsilon": 8.0, "cohort": 3, "rounds": 3}}, "all clients take part"),
        ({"privacy": {"epsilon": 8.0, "rounds": 3, "hardened": False}}, "hardened gate"),
    ],
)
def test_what_it_cannot_do_is_refused(tmp_path, tables, authority, change, said):
    made = hidden(tables, tmp_path / "sites", authority, epsilon=1e9)
    with pytest.raises(PmtlError, match=said):
        run(secure(**change), Spy(made), tmp_path / "server")
