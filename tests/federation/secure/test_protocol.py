"""Secure aggregation: equal to the clear, and what a curious server, or a site, can do with it."""

from __future__ import annotations

import itertools
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from certificates import Authority
from scipy import stats

sys.path.append(str(Path(__file__).parents[1]))
from three_sites import SITES, job, services, write_tables

from pmtl import storage as files
from pmtl.errors import PmtlError, PublicError
from pmtl.federation.coordinator import Coordinator
from pmtl.federation.messages import Message
from pmtl.federation.secure import shares
from pmtl.federation.secure.identity import Attempt, SignedKey
from pmtl.federation.secure.masks import mask
from pmtl.federation.secure.protocol import SiteMasking, unmasked
from pmtl.federation.server_folder import ServerFolder
from pmtl.federation.service import SiteService
from pmtl.federation.transport import InProcess
from pmtl.privacy.accounting import gaussian
from pmtl.privacy.grid import Grid
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.privacy.noise import rounded, seeded_source
from pmtl.privacy.plan import PrivacyPlan
from pmtl.runs.result import load_run

PMTL = {
    "algorithm": "pmtl",
    "local": {"steps": 2, "batch": 4},
    "privacy": {"epsilon": 8.0, "rounds": 3, "hardened": True},
}
GRID = Grid.of(PrivacyPlan(6, 6, "full", 0.5, 0.2, 3, 0.01))


class Spy(InProcess):
    """A server that records, and may change, what passes: `twist(site, message, answer)`."""

    def __init__(self, sites, twist=lambda site, message, answer: answer()):
        super().__init__({site: service.handle for site, service in sites.items()})
        self.twist = twist
        self.seen = []

    def ask(self, messages, deadline, wait_for=None):
        answers = {}
        for site, content in messages.items():
            message = Message.from_bytes(content)

            def answer(site=site, content=content):
                return self.handlers[site](content)

            if (given := self.twist(site, message, answer)) is not None:
                answers[site] = given
                self.seen.append((site, message, Message.from_bytes(given)))
        return answers


@pytest.fixture(scope="module")
def authority():
    return Authority()


@pytest.fixture
def tables(tmp_path):
    return write_tables(tmp_path / "tables")


def hidden(tables, folder, authority, source=None, **limits):
    """Services with certificates; with a `source`, shares are drawn from it."""
    made = services(tables, folder, **limits)
    more = {} if source is None else {"source": source}
    return {
        site: SiteService(
            site, service.settings, lambda site=site: authority.identity(site),
            **({k: v(site) for k, v in more.items()}),
        )
        for site, service in made.items()
    }  # fmt: skip


def run(wanted, transport, folder):
    told = []
    Coordinator(wanted, transport, ServerFolder(folder), tell=told.append).run()
    return told


def secure(**more):
    from dataclasses import replace

    return replace(job(**{**PMTL, **more}), secure=True)


def _shared(folder):
    file = ServerFolder(folder).run("r1").public / "shared.safetensors"
    return files.read_tensors(file)[0]["weights"].numpy()


def _models(tmp_path, site):
    result = load_run(tmp_path / site / "r1")
    return result.views()["personal"](np.arange(len(result.clients))).numpy()


def words_of(site):
    """The words of a site's shares, by round."""
    return lambda round: seeded_source(5, f"{site} {round}")(round)


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


def test_what_the_server_sees_of_one_site_is_uniform(authority):
    """Every bit and byte of masked uploads, over many attempts, with the same upload."""
    makers = {site: SiteMasking(authority.identity(site), words_of(site)) for site in SITES}
    total = torch.full((64,), 3, dtype=torch.int64)
    seen = []
    for attempt in range(150):
        keys = {site: maker.key("r", 0, f"t{attempt}") for site, maker in makers.items()}
        sent = {site: maker.masked(keys, total, GRID, 1) for site, maker in makers.items()}
        seen.append(sent["a"])
        # The noise is seeded, and the same each time: only the masks differ.
        assert torch.equal(unmasked(sent, 64), unmasked(sent, 64))
    numbers = np.array(seen)
    counts = np.bincount(numbers.view(np.uint8).ravel(), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-4
    bits = np.unpackbits(numbers.view(np.uint8)).mean()
    assert abs(bits - 0.5) < 5 * 0.5 / math.sqrt(numbers.size * 64)
    assert len(np.unique(numbers)) == numbers.size
    # Two sites of three, without the third: still uniform.
    pair = (np.array(seen[:-1]) - np.array(seen[1:])).view(np.uint8).ravel()
    assert stats.chisquare(np.bincount(pair, minlength=256)).pvalue > 1e-4


def test_a_subset_of_the_sum_is_hidden(authority):
    makers = {site: SiteMasking(authority.identity(site)) for site in SITES}
    total = torch.zeros(1000, dtype=torch.int64)
    keys = {site: maker.key("r", 0, "x") for site, maker in makers.items()}
    sent = {site: maker.masked(keys, total, GRID, 1) for site, maker in makers.items()}
    whole = unmasked(sent, 1000).double()
    reach = 10 * shares.scale(GRID, 3, 1) * math.sqrt(3)
    assert whole.abs().max() < reach
    for pair in itertools.combinations(SITES, 2):
        part = unmasked({site: sent[site] for site in pair}, 1000).double()
        assert (part.abs() < reach).double().mean() < 0.01, pair


def test_colluding_sites_and_server_find_the_noise_that_is_stated(authority):
    """c sites that give their keys and shares away leave the noise of the others."""
    sites = tuple("abcdef")
    colluders = shares.default_colluders(len(sites))
    assert colluders == 2
    makers = {site: SiteMasking(authority.identity(site), words_of(site)) for site in sites}
    size = 20_000
    total = torch.zeros(size, dtype=torch.int64)
    keys = {site: maker.key("r", 0, "x") for site, maker in makers.items()}
    sent = {site: maker.masked(keys, total, GRID, colluders) for site, maker in makers.items()}
    scale = shares.scale(GRID, len(sites), colluders)
    left = unmasked(sent, size)
    for site in sites[:colluders]:
        left -= rounded(words_of(site)(0), (size,), scale)
    deviation = float(left.double().std())
    assert abs(deviation / GRID.noise - 1) < 5 / math.sqrt(2 * size)
    # Outsiders: more, by √(N/(N − c)).
    whole = float(unmasked(sent, size).double().std())
    assert abs(whole / GRID.noise / math.sqrt(6 / 4) - 1) < 5 / math.sqrt(2 * size)


def test_what_shares_are_worth_by_an_independent_computation():
    """The exact distribution of a sum of few, small rounded shares against the Gaussian that the
    plan accounts for: δ at several ε is no larger, up to the distance of the proof."""
    scale, honest, sensitivity = 2.0, 4, 6
    k = np.arange(-200, 201)
    one = stats.norm.cdf((k + 0.5) / scale) - stats.norm.cdf((k - 0.5) / scale)
    total = one
    for _ in range(honest - 1):
        total = np.convolve(total, one)
    mu = sensitivity / (scale * math.sqrt(honest))
    moved = np.concatenate([np.zeros(sensitivity), total])
    total = np.concatenate([total, np.zeros(sensitivity)])
    bound = 10 ** shares.log10_distance(scale, honest, 1)
    assert bound < 1e-3
    for epsilon in (0.0, 0.5, 1.0, 2.0, 3.0):
        delta = np.maximum(moved - math.exp(epsilon) * total, 0).sum()
        assert delta <= gaussian.delta(epsilon, mu) + (1 + math.exp(epsilon)) * bound
        assert delta > 0.8 * gaussian.delta(epsilon, mu), "the comparison would notice nothing"


def test_the_distance_of_the_proof_is_nothing():
    assert shares.log10_distance(shares.LEAST, 30, 10**6) < -2000
    with pytest.raises(PmtlError, match="steps of the grid"):
        shares.scale(Grid(1.0, 4, 40.0), 10, 3)


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


def _keys(authority, attempt="x", sites=SITES, makers=None):
    makers = makers or {site: SiteMasking(authority.identity(site)) for site in sites}
    return makers, {site: maker.key("r", 0, attempt) for site, maker in makers.items()}


def _check(maker, keys, run="r", round=0, attempt="x", sites=SITES):
    given = [key.to_dict() for key in keys.values()]
    return maker.check(run, round, attempt, given, frozenset(sites))


def test_honest_keys_are_accepted(authority):
    makers, keys = _keys(authority)
    for maker in makers.values():
        assert _check(maker, keys) == keys


def test_swapped_and_foreign_keys_are_refused(authority):
    makers, keys = _keys(authority)
    maker = makers["a"]
    stranger = Authority()
    _, foreign = _keys(stranger)
    _, expired = _keys(authority, makers={"b": SiteMasking(authority.identity("b", days=(-9, -1)))})
    _, in_other_name = _keys(
        authority, makers={"b": SiteMasking(authority.identity("b", name="c"))}
    )
    _, of_other_attempt = _keys(authority, attempt="y")
    from dataclasses import replace

    cases = {
        "is not of this federation": {**keys, "b": foreign["b"]},
        "is not valid now": {**keys, "b": expired["b"]},
        "in another name": {**keys, "b": in_other_name["b"]},
        "not signed by this site for this attempt": {**keys, "b": of_other_attempt["b"]},
        "own key is not among": {**keys, "a": of_other_attempt["a"]},
        "are the same": {**keys, "b": replace(keys["b"], key=keys["c"].key)},
        "was not signed": {**keys, "b": replace(keys["b"], key=bytes(31) + b"\x09")},
        "is not a site of this run": {**keys, "d": _keys(authority, sites="d")[1]["d"]},
    }
    for said, given in cases.items():
        with pytest.raises(PublicError, match=said):
            _check(maker, given)
    for broken in (
        {},
        {"site": "b"},
        {"site": "b", "key": "zz", "signature": "", "certificate": ""},
    ):
        with pytest.raises(PublicError, match="refused"):
            SignedKey.from_dict(broken)


def test_no_key_is_used_for_another_round_attempt_or_twice(authority):
    makers, keys = _keys(authority)
    maker = makers["a"]
    for other in ({"round": 1}, {"attempt": "y"}, {"run": "s"}):
        with pytest.raises(PublicError, match="no key for this attempt"):
            _check(maker, keys, **other)
    with pytest.raises(PublicError, match="no key is made twice"):
        maker.key("r", 0, "x")
    maker.masked(keys, torch.zeros(3, dtype=torch.int64), GRID, 1)
    with pytest.raises(PublicError, match="no key for this attempt"):
        maker.masked(keys, torch.zeros(3, dtype=torch.int64), GRID, 1)
    with pytest.raises(PublicError, match="no key for this attempt"):
        _check(maker, keys)


def test_masks_differ_in_everything_that_they_are_bound_to(authority):
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    secrets = {site: X25519PrivateKey.generate() for site in SITES}
    identities = {site: authority.identity(site) for site in SITES}

    def masks(attempt, sites=SITES):
        keys = {site: identities[site].sign(attempt, secrets[site]) for site in sites}
        return mask("a", secrets["a"], keys, attempt, 50)

    first = Attempt("f", "r", 0, "x")
    made = [
        masks(first),
        masks(Attempt("g", "r", 0, "x")),
        masks(Attempt("f", "s", 0, "x")),
        masks(Attempt("f", "r", 1, "x")),
        masks(Attempt("f", "r", 0, "y")),
        masks(first, sites=("a", "b")),
    ]
    for one, other in itertools.combinations(made, 2):
        assert not (one == other).any()
    assert np.array_equal(made[0], masks(first))


def test_a_weak_key_is_refused(authority):
    makers, keys = _keys(authority)
    from dataclasses import replace

    weak = {**keys, "b": replace(keys["b"], key=bytes(32))}
    with pytest.raises(PublicError, match="weak"):
        makers["a"].masked(weak, torch.zeros(3, dtype=torch.int64), GRID, 1)


def test_limits_may_demand_it(tmp_path, tables, authority):
    plain = services(tables, tmp_path / "plain", secure=True)
    with pytest.raises(PmtlError, match="needs secure aggregation"):
        run(job(**PMTL), Spy(plain), tmp_path / "server")
    more = hidden(tables, tmp_path / "more", authority, secure=True, colluders=2)
    with pytest.raises(PmtlError, match="1 colluding sites, but needs 2"):
        run(secure(), Spy(more), tmp_path / "server2")
    without = services(tables, tmp_path / "without")
    with pytest.raises(PmtlError, match="no certificate"):
        run(secure(), Spy(without), tmp_path / "server3")


def test_the_statement_says_against_whom_it_stands(tmp_path, tables, authority):
    run(secure(), Spy(hidden(tables, tmp_path / "sites", authority)), tmp_path / "server")
    public = ServerFolder(tmp_path / "server").run("r1").public
    words = " ".join((public / "privacy.txt").read_text().split())
    plan = ServerFolder(tmp_path / "server").run("r1").read()[0].plan
    from dataclasses import replace

    outsiders = replace(plan, noise_std=plan.noise_std * math.sqrt(3 / 2)).epsilon()
    assert f"see only what was published it is ε = {outsiders:.4g}" in words
    assert "up to 1 of the sites" in words
    assert "The server is trusted with" not in words
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
        "Round 1 was abandoned. The sum of the sites is not possible: a site sent nonsense." in told
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
