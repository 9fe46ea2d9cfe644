"""Attacks on secure aggregation by the server and by sites, on whole runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from secure_runs import Spy, hidden, run, secure
from three_sites import SITES, write_tables

from pmtl.errors import PmtlError
from pmtl.federation.messages import Message
from pmtl.federation.server_folder import ServerFolder
from pmtl.federation.service import SiteService
from pmtl.privacy.grid import Grid
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.privacy.noise import rounded, seeded_source
from pmtl.secure_aggregation import shares
from pmtl.secure_aggregation.protocol import unmasked


@pytest.fixture
def tables(tmp_path):
    return write_tables(tmp_path / "tables")


@pytest.fixture(scope="module")
def authority():
    from certificates import Authority

    return Authority()


def _charged(folder):
    with Ledger.open(folder / "ledger.db", write=False) as ledger:
        return len(ledger.charged("r1"))


def _masked(transport):
    """What the sites sent, by attempt."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for site, message, answer in transport.seen:
        if answer.kind == "masked":
            found.setdefault(message.header["attempt"], {})[site] = answer.arrays["masked"]
    return found


def test_a_server_that_records_every_round_sees_uniform_numbers(tmp_path, tables, authority):
    """Sixty rounds of real training: bytes of each site, of every pair, and their differences
    between rounds are uniform; only the sum of all three is small."""
    made = hidden(tables, tmp_path / "sites", authority, epsilon=1e9)
    transport = Spy(made)
    privacy = {"noise": 0.5, "rounds": 60, "hardened": True}
    run(secure(privacy=privacy), transport, tmp_path / "server")
    sent = list(_masked(transport).values())
    assert len(sent) == 60
    views = {site: np.stack([numbers[site] for numbers in sent]) for site in SITES}
    views |= {f"{a}+{b}": views[a] + views[b] for a, b in ("ab", "bc", "ac")}
    views |= {f"{site}, next": views[site][1:] - views[site][:-1] for site in SITES}
    for name, numbers in views.items():
        counts = np.bincount(numbers.view(np.uint8).ravel(), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-5, name
    plan = ServerFolder(tmp_path / "server").run("r1").read()[0].plan
    reach = plan.clients * 2 ** Grid.of(plan).bits + 10 * 2 * Grid.of(plan).noise
    for numbers in sent:
        assert float(unmasked(numbers, len(numbers["a"])).double().abs().max()) < reach


@pytest.mark.parametrize("phase", ["key", "masked"])
@pytest.mark.parametrize("sends", [False, True], ids=["before", "after it has sent"])
def test_a_site_that_leaves_in_each_phase(tmp_path, tables, authority, phase, sends):
    """Only an attempt in which uploads may have been made is charged."""
    made = hidden(tables, tmp_path / "sites", authority)
    gone = []

    def leave(site, message, answer):
        if site != "b" or message.kind != phase or message.header["round"] != 1 or gone:
            return answer()
        gone.append(site)
        if sends:
            answer()
        return None

    transport = Spy(made, leave)
    told = run(secure(), transport, tmp_path / "server")
    charged = _charged(tmp_path / "server")
    answered = [set(sites) for sites in _masked(transport).values()]
    if phase == "key":  # The attempt goes on with the other two.
        assert charged == 3
        assert answered == [set("abc"), set("ac"), set("abc")]
        assert not any("abandoned" in sentence for sentence in told)
    else:  # The attempt is lost, and what it cost.
        assert answered == [set("abc"), set("ac"), set("ac")]
        assert charged == 3
        assert any("Round 2 was abandoned, because b did not answer" in said for said in told)
    if phase == "masked":
        shown = list(_masked(transport).values())[1]
        part = unmasked(shown, len(shown["a"])).double()
        assert float(part.abs().median()) > 2**60, "what was abandoned is still masked"


def test_a_site_whose_key_is_an_old_one_ends_the_attempt(tmp_path, tables, authority):
    made = hidden(tables, tmp_path / "sites", authority)
    old = []

    def replay(site, message, answer):
        content = answer()
        if site != "b" or message.kind != "key":
            return content
        read = Message.from_bytes(content)
        old.append(read.header["signed"])
        header = {**read.header, "signed": old[0]}
        return Message("key", header).to_bytes() if len(old) == 2 else content

    told = run(secure(), Spy(made, replay), tmp_path / "server")
    assert any(
        "The key of site 'b' is refused: it was not signed by this site for this attempt." in said
        for said in told
    )
    assert any("Round 2 was abandoned" in sentence for sentence in told)


def test_an_answer_for_another_round_is_not_counted(tmp_path, tables, authority):
    made = hidden(tables, tmp_path / "sites", authority)
    kept = []

    def late(site, message, answer):
        content = answer()
        if site != "c" or message.kind != "masked":
            return content
        kept.append(content)
        return kept[0]  # That of the first round, again and again.

    told = run(secure(), Spy(made, late), tmp_path / "server")
    assert any("Site 'c', round 2: It sent an answer that was not asked for." in s for s in told)
    assert any("Round 2 was abandoned, because c did not answer" in s for s in told)


def test_a_site_that_adds_a_mask_of_another_round_spoils_the_sum(tmp_path, tables, authority):
    made = hidden(tables, tmp_path / "sites", authority)
    kept = []

    def spoil(site, message, answer):
        content = answer()
        if site != "c" or message.kind != "masked":
            return content
        read = Message.from_bytes(content)
        kept.append(read.arrays["masked"])
        return Message("masked", read.header, {"masked": kept[0]}).to_bytes()

    told = run(secure(), Spy(made, spoil), tmp_path / "server")
    assert (
        "Round 2 was abandoned. The sum of the sites is too large: a site sent wrong numbers."
        in (told)
    )


def test_a_site_that_restarts_counts_on_and_makes_new_keys(tmp_path, tables, authority):
    """A server that restarts a site before each request gets no mask twice and no answer more than
    the plan pays for."""
    made = hidden(tables, tmp_path / "sites", authority)
    asked, refused = [], []

    def restart():
        old = made["a"]
        made["a"] = SiteService("a", old.settings, lambda: authority.identity("a"))

    def again(site, message, answer):
        content = made[site].handle(message.to_bytes())
        if site != "a" or message.kind != "masked":
            return content
        asked.append(message)
        for name in (message.header["attempt"], "another"):
            restart()
            header = {**message.header, "attempt": name}
            key = Message("key", {k: v for k, v in header.items() if k != "keys"})
            given = Message.from_bytes(made["a"].handle(key.to_bytes()))
            if given.kind != "refused":
                old = header["keys"]
                keys = [given.header["signed"], *(k for k in old if k["site"] != "a")]
                header = {**header, "keys": keys}
            more = Message("masked", header, message.arrays)
            refused.append(Message.from_bytes(made["a"].handle(more.to_bytes())))
        restart()
        return content

    run(secure(), Spy(made, again), tmp_path / "server")
    assert len(asked) == 3
    assert [answer.kind for answer in refused] == ["refused"] * 6
    said = {answer.header["sentence"] for answer in refused}
    assert any("was answered already" in sentence for sentence in said)
    assert any("The key of site 'b' is refused" in sentence for sentence in said)


def test_more_answers_than_the_plan_pays_for_are_refused_after_restarts(
    tmp_path, tables, authority
):
    """Even if all other sites help the server: with fresh keys of all for every attempt."""
    made = hidden(tables, tmp_path / "sites", authority)
    started = []

    def watch(site, message, answer):
        if message.kind in ("start", "masked"):
            started.append((site, message))
        return answer()

    first = hidden(tables, tmp_path / "first", authority)
    run(secure(), Spy(first, watch), tmp_path / "server")
    for site, message in started:
        if message.kind == "start":
            made[site].handle(message.to_bytes())
    template = next(
        message for site, message in started if message.kind == "masked" and site == "a"
    )
    kinds = []
    for attempt in range(5):
        made["a"] = SiteService("a", made["a"].settings, lambda: authority.identity("a"))
        header = {**template.header, "attempt": f"t{attempt}", "round": 0, "counted": -1}
        key = Message("key", {k: v for k, v in header.items() if k != "keys"}).to_bytes()
        keys = [Message.from_bytes(made[site].handle(key)).header["signed"] for site in SITES]
        asked = Message("masked", {**header, "keys": keys}, template.arrays)
        kinds.append(Message.from_bytes(made["a"].handle(asked.to_bytes())))
    assert [answer.kind for answer in kinds] == ["masked"] * 3 + ["refused"] * 2
    assert all("all that the plan pays for" in a.header["sentence"] for a in kinds[3:])


def test_the_server_cannot_invent_a_site(tmp_path, tables, authority):
    """Its own certificate is of the federation's authority, but not that of a site."""
    made = hidden(tables, tmp_path / "sites", authority)
    fake = hidden({"a": tables["a"]}, tmp_path / "fake", authority)["a"]
    made["server"] = SiteService(
        "server", fake.settings, lambda: authority.identity("server", role=None)
    )
    told = run(secure(), Spy(made), tmp_path / "server")
    refused = "The key of site 'server' is refused: its certificate is not that of a site."
    assert sum(refused in sentence for sentence in told) >= 3
    assert not any("is published" in sentence for sentence in told)


def test_all_other_sites_may_collude_at_a_price(tmp_path, tables, authority):
    """c = N − 1: every share alone is the plan's noise, and a missing site stops the run."""
    made = hidden(tables, tmp_path / "sites", authority)
    wanted = secure()
    transport = Spy(made)
    run(replace(wanted, colluders=2), transport, tmp_path / "server")
    agreement = ServerFolder(tmp_path / "server").run("r1").read()[0]
    assert agreement.noise_std == pytest.approx(agreement.plan.noise_std * 3**0.5)
    assert shares.scale(Grid.of(agreement.plan), 3, 2) == Grid.of(agreement.plan).noise
    absent = Spy(
        hidden(tables, tmp_path / "again", authority),
        lambda site, message, answer: None if (site, message.kind) == ("b", "key") else answer(),
    )
    with pytest.raises(
        PmtlError, match=r"Only 2 of 3 sites answered, .* where 2 may collude needs 3"
    ):
        run(replace(wanted, colluders=2), absent, tmp_path / "server2")
    with pytest.raises(PmtlError, match="against 3 colluding sites is not possible with 3"):
        run(replace(wanted, colluders=3), absent, tmp_path / "server3")
    assert not (tmp_path / "server3/runs/r1").exists()


def test_two_sites_with_the_server_find_no_less_noise_than_stated(tmp_path, authority):
    """Six sites, two of which tell the server their shares: what is left over 20 rounds, with the
    uploads of all subtracted, has the plan's deviation within five standard errors."""
    tables = write_tables(tmp_path / "tables")
    tables |= {f"{site}2": path for site, path in tables.items()}

    def words(site):
        return lambda round: seeded_source(7, f"{site} {round}")(round)

    made = hidden(tables, tmp_path / "sites", authority, words, epsilon=1e9)
    transport = Spy(made)
    privacy = {"noise": 0.5, "rounds": 20, "hardened": True}
    run(secure(privacy=privacy), transport, tmp_path / "server")
    agreement = ServerFolder(tmp_path / "server").run("r1").read()[0]
    assert agreement.secure == (6, 2)
    grid, colluding = Grid.of(agreement.plan), ("a", "b2")
    left = []
    for round, sent in enumerate(_masked(transport).values()):
        size = len(sent["a"])
        found = unmasked(sent, size)
        scale = shares.scale(grid, 6, 2)
        for site in colluding:
            found -= rounded(words(site)(round), (size,), scale)
        honest = sum(rounded(words(s)(round), (size,), scale) for s in tables if s not in colluding)
        uploads = found - honest  # The exact sum of all clients, which the server lacks.
        assert float(uploads.double().norm()) <= agreement.plan.clients * 2**grid.bits
        left.append(found - uploads)
    noise = torch.cat(left).double()
    assert abs(float(noise.std()) / grid.noise - 1) < 5 / (2 * len(noise)) ** 0.5
