"""What a ledger's entries add up to, and what may still be charged."""

import math
from collections import Counter

import pytest
from example_ledger import BARE, CLIENTS, COINS, FULL, LOUD, fill
from hypothesis import given, settings
from hypothesis import strategies as st

from pmtl.errors import PmtlError
from pmtl.privacy.accounting import adaptive, composition
from pmtl.privacy.ledger.events import GaussianEvent
from pmtl.privacy.ledger.ledger import Ledger


@pytest.fixture
def path(tmp_path):
    return tmp_path / "the.ledger"


# --- keeping count ---


def test_what_is_charged_is_there_when_it_is_opened_again(path):
    with Ledger.create(path, CLIENTS) as ledger:
        assert ledger.spent(1e-5) == (0, 10)
        assert [ledger.charge("a", 0, FULL), ledger.charge("a", 1, FULL)] == [1, 2]
        ledger.mark("a", 1, "d1")
        ledger.charge("a", 1, FULL)  # after a crash a round may be charged again
        ledger.charge("b", 0, COINS)
        ledger.mark("b", 0, "d2")
    with Ledger.open(path, list(reversed(CLIENTS)), write=False) as ledger:
        assert ledger.events() == {FULL: 3, COINS: 1}
        assert (ledger.charged("a"), ledger.charged("b"), ledger.charged("c")) == (
            [0, 1, 1],
            [0],
            [],
        )
        assert ledger.last_mark("a") == (1, "d1")
        assert ledger.last_mark("c") is None
        assert ledger.runs() == ["a", "b"]
        assert ledger.spent(1e-5) == (composition.epsilon({FULL: 3, COINS: 1}, 1e-5), 10)
        assert ledger.verify() == 7
        kinds = [entry.kind for entry in ledger.entries()]
        assert kinds == ["genesis", "charge", "charge", "mark", "charge", "charge", "mark"]
        assert next(ledger.entries()).values["clients"] == ledger.clients == 10
        with pytest.raises(PmtlError, match="not open for writing"):
            ledger.charge("a", 2, FULL)


def test_a_charge_is_about_the_clients_that_the_ledger_is_open_for(path):
    fill(path)
    with Ledger.open(path) as ledger, pytest.raises(PmtlError, match="open for 10 clients"):
        ledger.charge("a", 0, GaussianEvent("full", 11, 11, 1.0, 1.0))
    for nobody in ([], ["a", "a"], "ab"):
        with pytest.raises(PmtlError, match="needs a different name"):
            Ledger.create(path.with_name("new"), nobody)


@pytest.mark.parametrize(
    ("run", "round"), [("", 0), (None, 0), ("\ud800", 0), ("a", -1), ("a", 1.0), ("a", 2**63)]
)
def test_what_cannot_be_written_is_refused(path, run, round):
    with Ledger.create(path, CLIENTS) as ledger:
        with pytest.raises(PmtlError):
            ledger.charge(run, round, FULL)
        with pytest.raises(PmtlError):
            ledger.mark(run, round, "digest")
        assert ledger.verify() == 1


def test_a_release_without_noise_costs_everything(path):
    with Ledger.create(path, CLIENTS) as ledger:
        ledger.charge("a", 0, BARE)
        assert ledger.spent(1e-5) == (math.inf, 10)
        assert ledger.filtered(1e-5) == (math.inf, 10)
        ledger.cap(100.0)
        assert "ε = inf" in ledger.allows("a", {FULL: 1})


# --- caps ---


def test_a_cap_stops_the_charge_and_leaves_the_ledger_as_it_was(path):
    limit = composition.epsilon({FULL: 7}, 1e-5)
    with Ledger.create(path, CLIENTS) as ledger:
        ledger.cap(limit, 1e-5)
        assert ledger.allows("a", {FULL: 7}) is None
        assert "10 of 10 clients would pass the cap" in ledger.allows("a", {FULL: 8})
        for round in range(7):
            ledger.charge("a", round, FULL)
        before = path.read_bytes()
        with pytest.raises(PmtlError, match=r"Round 7 of 'a' was not charged.*cap"):
            ledger.charge("a", 7, FULL)
        assert path.read_bytes() == before
        assert ledger.charged("a") == list(range(7))
        assert ledger.verify() == 9
        ledger.mark("a", 6, "still possible")
    with Ledger.open(path) as ledger, pytest.raises(PmtlError, match="cap"):
        ledger.charge("a", 7, FULL)


def test_caps_go_down_freely_and_up_only_by_force(path):
    with Ledger.create(path, CLIENTS) as ledger:
        ledger.cap(3.0)
        ledger.cap(2.0)
        ledger.cap(2.0)  # says nothing new, and is no entry
        ledger.cap(5.0, 1e-9)
        with pytest.raises(PmtlError, match="needs --force"):
            ledger.cap(2.5)
        assert ledger.caps() == {1 / 100: 2.0, 1e-9: 5.0}
        assert ledger.verify() == 4
        ledger.cap(4.0, force=True)
        ledger.cap(math.inf, 1e-9, force=True)
        assert ledger.caps() == {1 / 100: 4.0}
        raised = [entry.values["raised"] for entry in ledger.entries() if entry.kind == "cap"]
        assert raised == [False, False, False, True, True]
        for bad in (0.0, -1.0, math.nan):
            with pytest.raises(PmtlError, match="Epsilon"):
                ledger.cap(bad)
        with pytest.raises(PmtlError, match="between 0 and 1"):
            ledger.cap(1.0, 1.0)
    with Ledger.open(path, write=False) as ledger:
        assert ledger.caps() == {1 / 100: 4.0}


def test_a_plan_of_equal_releases_may_be_cut_short_by_a_cap(path):
    """The last round that fits is the one by ordinary composition."""
    with Ledger.create(path, CLIENTS) as ledger:
        ledger.declare("b", {COINS: 100})
        ledger.cap(composition.epsilon({COINS: 40}, 1e-5) * (1 + 1e-9), 1e-5)
        while ledger.allows("b", {COINS: 1}) is None:
            ledger.charge("b", 0, COINS)
        assert len(ledger.charged("b")) == 40
        assert ledger.spent(1e-5).epsilon <= ledger.caps()[1e-5] * (1 + 1e-3)


# --- a plain model ---


def price(events, delta, full):
    """What the filter says of events of several runs."""
    by_orders = adaptive.by_orders(events, delta)
    return min(by_orders, composition.epsilon(events, delta)) if full else by_orders


RUNS = st.sampled_from(["a", "b", "runs/ü 3"])
STEPS = st.one_of(
    st.tuples(
        st.just("charge"), RUNS, st.integers(0, 5), st.sampled_from([FULL, LOUD, COINS, BARE])
    ),
    st.tuples(st.just("mark"), RUNS, st.integers(0, 5), st.sampled_from(["x", "y"])),
    st.tuples(
        st.just("cap"),
        st.sampled_from([0.5, 2.0, 10.0, math.inf]),
        st.sampled_from([1e-3, 1e-5]),
        st.booleans(),
    ),
    st.tuples(st.just("reopen")),
    st.tuples(st.just("verify")),
)


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(STEPS, max_size=25))
def test_against_a_plain_model(tmp_path_factory, steps):
    path = tmp_path_factory.mktemp("model") / "ledger"
    ledger = Ledger.create(path, CLIENTS)
    events, charged, marks, caps, entries = Counter(), {}, {}, {}, 1
    for what, *details in steps:
        if what == "charge":
            run, round, event = details
            after = events + Counter({event: 1})
            # A hair's breadth either way is the accountant's to decide.
            full = adaptive.all_full(after)
            totals = [(price(after, d, full), cap) for d, cap in caps.items()]
            fits = all(total <= cap * (1 + 1e-9) for total, cap in totals)
            if fits:
                assert ledger.charge(run, round, event) == entries
                events, entries = after, entries + 1
                charged.setdefault(run, []).append(round)
            else:
                with pytest.raises(PmtlError, match="cap"):
                    ledger.charge(run, round, event)
        elif what == "mark":
            run, round, digest = details
            ledger.mark(run, round, digest)
            marks[run], entries = (round, digest), entries + 1
        elif what == "cap":
            limit, delta, force = details
            present = caps.get(delta)
            if limit > (math.inf if present is None else present) and not force:
                with pytest.raises(PmtlError, match="force"):
                    ledger.cap(limit, delta)
            else:
                ledger.cap(limit, delta, force=force)
                entries += limit != present
                caps[delta] = limit
        elif what == "reopen":
            ledger.close()
            ledger = Ledger.open(path, CLIENTS)
        else:
            assert ledger.verify() == entries
        assert ledger.events() == dict(events)
        assert ledger.caps() == {d: cap for d, cap in caps.items() if cap < math.inf}
    ledger.close()
    with Ledger.open(path, CLIENTS, write=False) as ledger:
        assert ledger.verify() == entries == len(list(ledger.entries()))
        for run in ("a", "b", "runs/ü 3"):
            assert ledger.charged(run) == charged.get(run, [])
            assert ledger.last_mark(run) == marks.get(run)
