"""An account for each client: clients join and leave, and nobody's spending is forgotten."""

import json
import sqlite3
import time

import pytest
from example_ledger import CLIENTS, COINS, FULL, fill, fill_format_1, head, refused
from hypothesis import given, settings
from hypothesis import strategies as st

from pmtl.errors import PmtlError
from pmtl.privacy.accounting import adaptive, composition
from pmtl.privacy.ledger.events import GaussianEvent
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.privacy.ledger.populations import Populations, contains, first_population

DELTA = 1e-5


@pytest.fixture
def path(tmp_path):
    return tmp_path / "the.ledger"


def full(clients):
    """Everybody, with the noise multiplier of FULL."""
    return GaussianEvent("full", clients, clients, 1.0, 10 / clients)


def charge(path, names, times=1, run="a"):
    with Ledger.open(path, names) as ledger:
        for round in range(times):
            ledger.charge(run, round, full(len(names)))


def spent_on(ledger, name):
    """The ε of one client."""
    charges = ledger.account(ledger.populations.spans[name]).values()
    return composition.epsilon(sum(charges, start=type(next(iter(charges)))()), DELTA)


# --- joining and leaving ---


def test_who_stays_keeps_its_account_when_others_leave_and_join(path):
    """The hole: one client leaves, and the 9 who stayed start again at ε = 0."""
    Ledger.create(path, CLIENTS).close()
    charge(path, CLIENTS, times=3)
    stayed = [*CLIENTS[1:], "new"]
    with Ledger.open(path, stayed) as ledger:
        assert ledger.changes() == (1, 1)
        assert ledger.last.sequence == 3  # opening writes nothing
        assert ledger.spent(DELTA).clients == 10
        for round in range(2):
            ledger.charge("b", round, full(10))
            assert ledger.spent(DELTA).clients == 9
        assert ledger.changes() == (0, 0)
        kinds = [entry.kind for entry in ledger.entries()]
        assert kinds == ["genesis", *["charge"] * 3, "population", *["charge"] * 2]
        left, both, new = (composition.epsilon({full(10): times}, DELTA) for times in (3, 5, 2))
        assert spent_on(ledger, CLIENTS[0]) == left
        assert spent_on(ledger, CLIENTS[1]) == both
        assert spent_on(ledger, "new") == new
        assert ledger.spent(DELTA) == ledger.filtered(DELTA) == (both, 9)
    with Ledger.open(path, ["new"], write=False) as ledger:
        assert ledger.spent(DELTA, own=True) == (new, 1)
        assert ledger.spent(DELTA) == (both, 9)


def test_a_population_that_was_there_before_is_not_written_again(path):
    Ledger.create(path, CLIENTS).close()
    for names in (CLIENTS[:5], CLIENTS, CLIENTS[:5], list(reversed(CLIENTS))):
        charge(path, names)
    with Ledger.open(path, write=False) as ledger:
        kinds = [entry.kind for entry in ledger.entries()]
        assert kinds == ["genesis", "population", *["charge"] * 4]
        assert any("earlier population" in told for told in notices(path, CLIENTS))
        assert notices(path, CLIENTS[:5]) == []
        numbers = [entry.values["population"] for entry in ledger.entries()][2:]
        assert numbers == [1, 0, 1, 0]
        assert spent_on(ledger, CLIENTS[0]) == composition.epsilon({FULL: 4}, DELTA)
        assert spent_on(ledger, CLIENTS[9]) == composition.epsilon({FULL: 2}, DELTA)


def test_a_cap_holds_for_each_client_and_says_how_many_would_pass_it(path):
    with Ledger.create(path, CLIENTS) as ledger:
        ledger.cap(composition.epsilon({FULL: 4}, DELTA), DELTA)
    charge(path, CLIENTS[:3], times=3)
    with Ledger.open(path, CLIENTS[2:]) as ledger:
        assert ledger.allows("b", {full(8): 1}) is None
        reason = ledger.allows("b", {full(8): 2})
        assert "1 of 8 clients would pass the cap" in reason
        assert not any(name in reason for name in CLIENTS)
        ledger.charge("b", 0, full(8))
        with pytest.raises(PmtlError, match="1 of 8 clients"):
            ledger.charge("b", 1, full(8))
    charge(path, CLIENTS[3:], times=3, run="c")  # without the one that has no more to spend
    with Ledger.open(path, CLIENTS[3:]) as ledger, pytest.raises(PmtlError, match="7 of 7"):
        ledger.charge("c", 3, full(7))


MANY = [f"c{k}" for k in range(6)]
GROUPS = st.sets(st.sampled_from(MANY), min_size=1).map(sorted)


@settings(max_examples=15, deadline=None)
@given(steps=st.lists(st.tuples(GROUPS, st.integers(1, 3), st.booleans()), max_size=8))
def test_accounts_against_a_plain_model(tmp_path_factory, steps):
    path = tmp_path_factory.mktemp("model") / "ledger"
    Ledger.create(path, MANY[:2]).close()
    model = {name: {} for name in MANY[:2]}
    for place, (names, times, coins) in enumerate(steps):
        event = GaussianEvent("poisson", len(names), 1, 1.0, 2.0) if coins else full(len(names))
        with Ledger.open(path, names) as ledger:
            for round in range(times):
                ledger.charge(f"run {place}", round, event)
            known = {event: times}
            assert ledger.events(f"run {place}") == known
        for name in names:
            account = model.setdefault(name, {})
            account[event] = account.get(event, 0) + times
    with Ledger.open(path, write=False) as ledger:
        assert set(ledger.populations.spans) == set(model)
        found = {}
        for name, span in ledger.populations.spans.items():
            total = {}
            for charges in ledger.account(span).values():
                for event, count in charges.items():
                    total[event] = total.get(event, 0) + count
            found[name] = total
        assert found == model
        price = composition.epsilon if all(not coins for _, _, coins in steps) else by_orders
        costs = [price(events, DELTA) for events in model.values()]
        largest = ledger.filtered(DELTA)
        assert largest.epsilon == pytest.approx(max(costs), rel=1e-9)
        assert largest.clients == sum(cost == pytest.approx(max(costs), rel=1e-9) for cost in costs)
        if price is composition.epsilon:
            assert ledger.spent(DELTA) == largest


def by_orders(events, delta):
    by_orders = adaptive.by_orders(events, delta)
    full = adaptive.all_full(events)
    return min(by_orders, composition.epsilon(events, delta)) if full else by_orders


def test_very_many_clients_are_practical(path):
    names = [f"client-{k:07d}" for k in range(200_000)]
    with Ledger.create(path, names) as ledger:
        ledger.cap(100.0, 1e-8)
        ledger.charge("a", 0, full(200_000))
    start = time.process_time()
    with Ledger.open(path, names[1:]) as ledger:
        assert ledger.changes() == (0, 1)
        opened = time.process_time() - start
        start = time.process_time()
        for round in range(10):
            ledger.charge("b", round, full(199_999))
        charged = time.process_time() - start
        assert list(ledger.spans(own=True).values()) == [199_999]
        (entry,) = (entry for entry in ledger.entries() if entry.kind == "population")
        assert (entry.values["joined"], entry.values["left"]) == ([], names[:1])
    assert charged < 10 * opened  # A charge does not read the names again.


def test_entries_that_do_not_fit_are_refused():
    for change in (
        {"joined": ["a"], "left": [], "clients": 3},  # is there already
        {"joined": [], "left": ["x"], "clients": 1},  # never was
        {"joined": ["x", "x"], "left": [], "clients": 4},
        {"joined": ["x"], "left": ["x"], "clients": 2},
        {"joined": ["x"], "left": [], "clients": 4},
        {"joined": [1], "left": [], "clients": 3},
        {"joined": [], "left": ["a", "b"], "clients": 0},
    ):
        populations = Populations()
        populations.add(0, first_population(["a", "b"]))
        with pytest.raises(ValueError, match="a "):
            populations.add(3, {"population": "0" * 64, **change})


def test_spans():
    assert [contains((2, 5, 7), number) for number in range(9)] == [
        *(False, False, True, True, True, False, False, True, True)
    ]


# --- ledgers of format 1 ---


def test_a_ledger_of_format_1_is_read_without_names(path):
    fill_format_1(path)
    with Ledger.open(path, write=False) as ledger:
        assert (ledger.format, ledger.clients, ledger.verify()) == (1, 10, 6)
        assert ledger.spent(DELTA) == (composition.epsilon({FULL: 3}, DELTA), 10)
        assert ledger.last_mark("old") == (2, "digest")
    with Ledger.open(path) as ledger:
        ledger.cap(40.0, DELTA)  # takes no names
        with pytest.raises(PmtlError, match="pmtl ledger clients"):
            ledger.charge("old", 3, FULL)
        assert ledger.verify() == 7


def test_a_ledger_of_format_1_takes_the_names_of_its_clients_with_the_first_charge(path):
    fill_format_1(path)
    with Ledger.open(path, CLIENTS) as ledger:
        assert (ledger.format, ledger.last.sequence) == (1, 5)
        assert ledger.changes() == (0, 0)
        ledger.charge("new", 0, FULL)
    with Ledger.open(path, CLIENTS[1:]) as ledger:
        assert (ledger.format, ledger.changes()) == (2, (0, 1))
        ledger.charge("new", 1, full(9))
        assert spent_on(ledger, CLIENTS[0]) == composition.epsilon({FULL: 4}, DELTA)
        assert spent_on(ledger, CLIENTS[1]) == composition.epsilon({FULL: 5}, DELTA)
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (2,)
    db.close()


def test_a_ledger_of_format_1_refuses_other_clients_and_says_what_to_do(path):
    fill_format_1(path)
    for others in (CLIENTS[1:], [*CLIENTS, "new"], ["x", *CLIENTS[1:]]):
        with pytest.raises(PmtlError, match=r"pmtl 0\.1.*pmtl ledger clients .* --data"):
            Ledger.open(path, others)
    with Ledger.open(path, CLIENTS) as ledger:
        ledger.name_clients()
    with Ledger.open(path, CLIENTS[1:]) as ledger:
        assert ledger.changes() == (0, 1)


def test_a_run_of_format_1_goes_on_as_the_one_run_it_is(path):
    """Its plan was fixed before its first charge, though the ledger did not hold plans then."""
    fill_format_1(path, event=COINS)
    limit = composition.epsilon({COINS: 5}, 1e-4)
    with Ledger.open(path, CLIENTS) as ledger:
        ledger.cap(limit * (1 + 1e-9), 1e-4)
        assert ledger.allows("old", {COINS: 2}, {COINS: 5}) is None
        ledger.declare("old", {COINS: 5})
        ledger.charge("old", 3, COINS)
        ledger.charge("old", 4, COINS)
        assert "cap" in ledger.allows("old", {COINS: 1})


def test_the_names_put_down_in_a_ledger_of_format_1_must_be_its_own():
    """An entry with other names would give them the account of those who paid."""
    first = first_population(CLIENTS)
    populations = Populations()
    populations.add(0, {"clients": first["clients"], "population": first["population"]})
    with pytest.raises(ValueError, match="names of another population"):
        populations.add(4, {**first, "joined": ["x", *CLIENTS[1:]]})


def test_a_crash_while_names_are_put_down_leaves_format_1_or_2(path):
    fill_format_1(path)
    before = head(path).read_text()
    with Ledger.open(path, CLIENTS) as ledger:
        ledger.name_clients()
    head(path).write_text(before)  # it died between the commit and the head
    with Ledger.open(path, CLIENTS) as ledger:
        assert (ledger.format, ledger.verify()) == (2, 7)
        assert json.loads(next(ledger.entries()).payload)["format"] == 1


def test_a_ledger_that_lies_about_its_format_is_refused(path):
    fill(path)
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 1")
    db.close()
    refused(path, "format")


# --- two ledgers for the same clients ---


def notices(path, names=None):
    with Ledger.open(path, names, write=False) as ledger:
        return ledger.notices()


def test_two_ledgers_for_the_same_clients_in_one_folder_are_named(path):
    fill(path)
    other = path.with_name("other.ledger")
    with Ledger.create(other, [*CLIENTS[:1], "x"]) as ledger:
        (sentence,) = ledger.notices()
    assert str(path) in sentence
    assert str(other) in sentence
    assert str(other) in notices(path)[0]
    strangers = path.with_name("strangers")
    with Ledger.create(strangers, ["y", "z"]) as ledger:
        assert ledger.notices() == []
    assert len(notices(path)) == 1
    joined, overlap = notices(strangers, ["x", "y", "z"])
    assert "1 joined and 0 left" in joined
    assert str(other) in overlap


def test_a_ledger_of_format_1_beside_it_is_known_by_its_digest(path):
    fill_format_1(path)
    with Ledger.create(path.with_name("other"), CLIENTS) as ledger:
        assert str(path) in ledger.notices()[0]


def test_what_lies_beside_a_ledger_never_stops_it(path):
    fill(path)
    whole = path.read_bytes()
    foreign = {
        "empty": b"",
        "text": b"dear diary",
        "torn": whole[: len(whole) // 2],
        "noise": whole[:2000] + bytes(2000) + whole[4000:],
    }
    for name, content in foreign.items():
        path.with_name(name).write_bytes(content)
        path.with_name(f"{name}.head").write_text("no head\n")
    path.with_name("folder").mkdir()
    path.with_name("folder.head").touch()
    path.with_name("gone.head").touch()
    path.with_name("loop").symlink_to(path.with_name("loop"))
    path.with_name("loop.head").touch()
    assert all("is a ledger of some of the same clients" in sentence for sentence in notices(path))


def test_a_ledger_that_knows_none_of_the_clients_asks_whether_it_is_theirs(path):
    fill(path)
    (sentence,) = notices(path, ["x", "y"])
    assert sentence.startswith(f"None of these 2 clients is known to {path}: is it their ledger?")
