"""A sampling scheme of the user's own: one class, used everywhere by its path."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import pmtl
from pmtl.audit.gate import one_round
from pmtl.audit.sampler import sampler
from pmtl.audit.setup import AuditSetup
from pmtl.cli.app import app
from pmtl.data import load
from pmtl.errors import PmtlError
from pmtl.privacy.accounting import accountant, colluders, composition, renyi
from pmtl.privacy.ledger.events import GaussianEvent
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.sampling import SamplingScheme
from pmtl.privacy.schemes import SCHEMES, find_scheme
from pmtl.privacy.statement.statement import Statement, make_statement
from pmtl.streams import name_keys


class OneGroup(SamplingScheme):
    """The clients stand in m/q public groups of q, and every round draws one group for all to see:
    a client is in with probability q/m, whatever was drawn before, and everybody knows when."""

    def check(self, clients, cohort):
        if clients % cohort:
            raise PmtlError(f"{clients} clients do not make groups of {cohort}.")

    def draw(self, sampler, round):
        plan = sampler.plan
        groups = np.arange(plan.clients).reshape(-1, plan.cohort)
        return groups[int(np.argmin(sampler.tickets(round)[groups[:, 0]]))]

    def chance(self, rate):
        return rate

    def in_words(self, plan, also):
        return f"one of {plan.clients // plan.cohort} public groups took part in a round"


class Certain(OneGroup):
    """A scheme whose worst client is always in, though q of m clients are drawn."""

    def chance(self, rate):
        return 1.0


class Costless(SamplingScheme):
    """A scheme that does not say what it costs."""

    def draw(self, sampler, round):
        return np.arange(sampler.plan.cohort)


class Twice(OneGroup):
    """A scheme that draws its first client twice."""

    def draw(self, sampler, round):
        return np.array([0, 0, 1])


class TooFew(OneGroup):
    """A scheme that draws one client, whatever the plan says."""

    def draw(self, sampler, round):
        return np.array([0])


OWN = f"{__name__}:OneGroup"
KEYS = name_keys(tuple(f"client-{k}" for k in range(30)))
PLAN = PrivacyPlan(30, 10, OWN, 0.5, 0.2, 6, 1e-3)


def test_it_draws_what_it_says():
    draws = PLAN.sampler(3, KEYS)
    cohorts = {tuple(draws.draw(t)) for t in range(6)}
    assert 1 < len(cohorts) <= 3
    assert all(cohort == tuple(range(cohort[0], cohort[0] + 10)) for cohort in cohorts)


def test_it_costs_what_known_participations_cost():
    event = GaussianEvent.of(PLAN)
    known = colluders.epsilon(PLAN.noise_multiplier, 1 / 3, 6, 1e-3, 2)
    assert accountant.epsilon(PLAN) == composition.epsilon({event: 6}, 1e-3) == known
    fixed = GaussianEvent("fixed", 30, 10, 0.5, 0.2)
    assert np.array_equal(renyi.curve({event: 2}), renyi.curve({fixed: 2}))
    coins = GaussianEvent("poisson", 30, 10, 0.5, 0.3)
    assert composition.epsilon({event: 4, coins: 3}, 1e-3) == pytest.approx(
        composition.epsilon({fixed: 4, coins: 3}, 1e-3), rel=1e-9
    )


def test_it_costs_by_its_own_chance_and_not_by_the_rate():
    certain = PrivacyPlan(30, 10, f"{__name__}:Certain", 0.5, 0.2, 6, 1e-3)
    full = PrivacyPlan(30, 30, "full", 0.5, 0.2 / 3, 6, 1e-3)  # The same noise multiplier.
    assert certain.noise_multiplier == pytest.approx(full.noise_multiplier)
    assert accountant.epsilon(certain) == pytest.approx(accountant.epsilon(full), rel=1e-9)
    assert accountant.delta(certain, 1.0) == pytest.approx(accountant.delta(full, 1.0), rel=1e-9)
    events = [GaussianEvent.of(plan) for plan in (certain, full)]
    assert np.allclose(*(renyi.curve({event: 2}) for event in events), rtol=1e-12)
    orders = np.array([2.0, 8.0])
    assert (Certain().renyi(3.0, 0.1, orders) == renyi.known(3.0, 1.0, orders)).all()


def test_it_is_trained_stated_and_charged(tmp_path):
    data = load("synthetic:clients=30,samples=20")
    Ledger.create(tmp_path / "ledger.db", data.clients).close()
    run = pmtl.train(
        data,
        mode="production",
        privacy={"epsilon": 3.0, "rounds": 4, "cohort": 10, "sampling": OWN},
        local={"steps": 1},
        ledger=tmp_path / "ledger.db",
        out=tmp_path / "run",
    )
    assert run.privacy.epsilon == pytest.approx(3.0, rel=2e-3)
    said = " ".join(str(run.privacy).split())
    assert "one of 3 public groups took part in a round" in said
    assert "who took part in which round" in said
    with Ledger.open(tmp_path / "ledger.db", write=False) as ledger:
        assert OWN in {event.sampling for event in ledger.events()}
        assert ledger.spent(run.privacy.delta).epsilon == pytest.approx(run.privacy.epsilon)
    assert pmtl.load_run(tmp_path / "run").privacy == run.privacy


def test_the_command_line_finds_it():
    arguments = (
        "privacy epsilon --clients 30 --cohort 10 --noise 0.2 --rounds 6 --json --delta 1e-3"
    )
    done = CliRunner().invoke(app, [*arguments.split(), "--sampling", OWN])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["epsilon"] == pytest.approx(accountant.epsilon(PLAN))


def test_its_comparisons_are_in_the_table(monkeypatch):
    monkeypatch.setattr(OneGroup, "comparisons", lambda self, plan: {"mine": 1.5, "yours": 1.25})
    monkeypatch.setattr(OneGroup, "labels", {"mine": "against my neighbours"})
    arguments = "privacy epsilon --clients 30 --cohort 10 --noise 0.2 --rounds 6 --delta 1e-3"
    done = CliRunner().invoke(app, [*arguments.split(), "--sampling", OWN])
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.stdout.splitlines()]
    assert any("neighbours" in row and "1.5" in row for row in rows)
    assert any("yours" in row and "1.25" in row for row in rows)


def test_the_audit_attacks_it():
    setup = AuditSetup(clients=30, cohort=10, sampling=OWN, trials=400)
    drawn = sampler(setup)
    assert drawn.passed
    # Everybody knows when a client takes part; that is granted, and measured.
    assert len(drawn.detail["granted_to_colluders"]) == 2
    assert one_round(setup).passed


class Favoured(SamplingScheme):
    """Client 0 is in every round; the others take turns."""

    said = 1.0

    def draw(self, sampler, round):
        plan = sampler.plan
        others = (round * (plan.cohort - 1) + np.arange(plan.cohort - 1)) % (plan.clients - 1)
        return np.sort(np.append(others + 1, 0))

    def chance(self, rate):
        return self.said


class Turns(Favoured):
    """The clients take turns: whoever knows who was drawn before knows who is drawn next."""

    def draw(self, sampler, round):
        plan = sampler.plan
        return np.sort((round * plan.cohort + np.arange(plan.cohort)) % plan.clients)


class Again(Favoured):
    """Every second round has the clients of the round before."""

    def draw(self, sampler, round):
        order = np.argsort(sampler.tickets(round - round % 2))
        return np.sort(order[: sampler.plan.cohort])


class Halves(Favoured):
    """A coin decides on client 0; the others are drawn at random."""

    said = 0.5

    def draw(self, sampler, round):
        tickets = sampler.tickets(round)
        order = np.argsort(tickets[1:]) + 1
        if tickets[0] >> np.uint64(63):
            order = np.append(0, order)
        return np.sort(order[: sampler.plan.cohort])


class Shuffled(Favoured):
    """Every client once in an epoch, in a random order: the last ones are certain to be drawn."""

    def draw(self, sampler, round):
        epoch, part = divmod(round, sampler.plan.clients // sampler.plan.cohort)
        order = np.argsort(sampler.tickets(epoch), kind="stable")
        return np.sort(order[part * sampler.plan.cohort :][: sampler.plan.cohort])


class EverySecond(Favoured):
    """A client that is drawn is drawn again two rounds later, and so on, ten times."""

    def draw(self, sampler, round):
        block, place = divmod(round, 20)
        order = np.argsort(sampler.tickets(2 * block + place % 2), kind="stable")
        return np.sort(order[: sampler.plan.cohort])


@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize("kind", [Shuffled, EverySecond])
def test_the_audit_finds_the_history_after_which_a_client_is_drawn_too_often(
    kind, varies, monkeypatch
):
    setup = AuditSetup(clients=100, cohort=10, sampling=f"{__name__}:{kind.__name__}")
    monkeypatch.setattr(kind, "size_varies", varies)
    assert sampler(setup).passed
    for too_low in (0.1, 0.15):
        monkeypatch.setattr(kind, "said", too_low)
        found = sampler(setup)
        assert not found.passed, found.detail


@pytest.mark.parametrize("kind", [Favoured, Turns, Again, Halves])
def test_the_audit_compares_with_the_chance_that_is_charged(kind, monkeypatch):
    name = f"{__name__}:{kind.__name__}"
    setup = AuditSetup(clients=30, cohort=10, sampling=name, trials=600)
    found = sampler(setup)
    assert found.passed, found.detail
    for too_low in (1 / 3, 0.35):
        monkeypatch.setattr(kind, "said", too_low)
        assert not sampler(setup).passed


def test_a_recorded_chance_is_not_kept_for_other_sizes_or_schemes():
    """The chance would be too small, and with it ε."""
    plan = PrivacyPlan(30, 10, OWN, 0.5, 0.2, 6, 1e-3)
    for copied in (copy.copy(plan), PrivacyPlan.from_dict(plan.to_dict())):
        for changes in ({"cohort": 15}, {"clients": 60}, {"sampling": f"{__name__}:Certain"}):
            with pytest.raises(PmtlError, match=r"change plan\.with_code\(\) instead"):
                replace(copied, **changes)
            twice = replace(copied, noise_std=0.1, rounds=3)
            with pytest.raises(PmtlError, match=r"change plan\.with_code\(\) instead"):
                replace(twice, **changes)
        known = replace(copied, noise_std=0.1, rounds=3)
        assert (known.own_chance, known.rounds) == (1 / 3, 3)
        assert replace(copied, sampling="poisson").own_chance is None
        larger = replace(copied.with_code(), cohort=15)
        assert larger.own_chance == 0.5
        assert larger.epsilon() == PrivacyPlan(30, 15, OWN, 0.5, 0.2, 6, 1e-3).epsilon()


def test_its_own_check_is_asked():
    with pytest.raises(PmtlError, match="do not make groups of 7"):
        PrivacyPlan(30, 7, OWN, 0.5, 0.2, 6, 1e-3)


def test_without_a_cost_nothing_can_be_charged():
    plan = PrivacyPlan(30, 10, f"{__name__}:Costless", 0.5, 0.2, 6, 1e-3)
    for ask in (
        lambda: accountant.epsilon(plan),
        lambda: accountant.delta(plan, 1.0),
        lambda: accountant.noise_for(plan, 1.0),
        lambda: GaussianEvent.of(plan),  # Without it there is nothing to compose.
    ):
        with pytest.raises(PmtlError, match="Costless does not say what it costs"):
            ask()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Twice", "not a sorted list of different clients"),
        ("TooFew", "drew 1 clients where the plan says 3"),
    ],
)
def test_a_cohort_that_the_plan_does_not_have_is_refused(name, sentence):
    plan = PrivacyPlan(30, 3, f"{__name__}:{name}", 0.5, 0.2, 6, 1e-3)
    with pytest.raises(PmtlError, match=sentence):
        plan.sampler(1, KEYS).draw(0)


@pytest.mark.parametrize("name", ["bernoulli", "no.such.module:Mine", "json:loads", 7, None, []])
def test_what_is_not_a_scheme_is_refused(name):
    with pytest.raises(PmtlError, match="sampling scheme"):
        find_scheme(name)
    values = GaussianEvent("full", 3, 3, 1.0, 1.0).to_dict() | {"sampling": name}
    with pytest.raises(PmtlError, match="sampling scheme"):
        GaussianEvent.from_dict(values)
    values = PLAN.to_dict() | {"sampling": name}
    if isinstance(name, str):
        del values["chance"]  # With it, the cost is known, and the plan can be read.
    with pytest.raises(PmtlError, match="sampling scheme"):
        PrivacyPlan.from_dict(values)


def test_a_name_that_is_no_text_is_told_what_names_are():
    with pytest.raises(
        PmtlError, match=rf"\({', '.join(SCHEMES)} or package\.module:Name\), but 7"
    ):
        find_scheme(7)


class Says(OneGroup):
    """A scheme whose chance a test sets."""

    said: object = 0.5

    def chance(self, rate):
        return self.said


class Priced(OneGroup):
    """A scheme that sets its own price."""

    def epsilon(self, z, rate, rounds, delta, sensitivity=2):
        return 0.0


class ChargedAs(OneGroup):
    """A scheme that says itself what it is charged as."""

    def charged_as(self, rate):
        return "poisson", rate


class Cheap(OneGroup):
    """A scheme of the library that sets its own price for one plan."""

    said = 1 / 3

    def chance(self, rate):
        return self.said

    def epsilon(self, z, rate, rounds, delta, sensitivity=2):
        return 0.0

    def renyi(self, z, rate, orders):
        return np.zeros_like(orders)


class Secret(OneGroup):
    """A scheme that claims Poisson's amplification."""

    coins_are_secret = True


class SecretLater(OneGroup):
    """A scheme that claims it when it is made."""

    def __init__(self):
        self.coins_are_secret = True


class PricedLater(OneGroup):
    """A scheme that sets its own price when it is made."""

    def __init__(self):
        self.epsilon = lambda *given: 0.0


class SecretLast(OneGroup):
    """A scheme that claims it when it is used."""

    def chance(self, rate):
        self.coins_are_secret = True
        return rate


@pytest.mark.parametrize("said", [float("nan"), 1.1, 0.0, 0.3, -1.0, True, "0.5", None])
def test_a_chance_that_cannot_be_is_refused_everywhere(said, monkeypatch):
    monkeypatch.setattr(Says, "said", said)
    plan = PrivacyPlan(30, 10, f"{__name__}:Says", 0.5, 0.2, 6, 1e-3)
    for ask in (
        lambda: accountant.epsilon(plan),
        lambda: accountant.delta(plan, 1.0),
        lambda: accountant.noise_for(plan, 1.0),
        lambda: GaussianEvent.of(plan),
    ):
        with pytest.raises(PmtlError, match=r"between q/m = 0\.333333 and 1"):
            ask()


def test_rounding_may_lift_a_chance_above_one(monkeypatch):
    monkeypatch.setattr(Says, "said", 1.0000000000000002)
    event = GaussianEvent(f"{__name__}:Says", 30, 10, 0.5, 0.2)
    assert event.chance == 1
    full = GaussianEvent("full", 30, 30, 0.5, 0.2 / 3)
    assert event.noise_multiplier == pytest.approx(full.noise_multiplier)
    for other in ({}, {GaussianEvent("poisson", 30, 10, 0.5, 0.4): 4}):
        ours = composition.epsilon({event: 6, **other}, 1e-3)
        assert ours == pytest.approx(composition.epsilon({full: 6, **other}, 1e-3), rel=1e-9)


@pytest.mark.parametrize("name", ["Priced", "ChargedAs", "Secret", "SecretLater", "PricedLater"])
def test_its_cost_is_its_chance_and_nothing_else(name):
    with pytest.raises(PmtlError, match="its cost follows from chance"):
        PrivacyPlan(30, 10, f"{__name__}:{name}", 0.5, 0.2, 6, 1e-3)


@pytest.mark.parametrize(("said", "secret", "same"), [
    (1 / 3, False, ("fixed", 1 / 3)), (0.5, False, ("fixed", 0.5)), (1.0, False, ("full", 1.0)),
    (1 / 3, True, ("poisson", 1 / 3)), (0.5, True, ("poisson", 0.5)),
])  # fmt: skip
def test_what_a_class_computes_for_one_plan_is_not_charged(said, secret, same, monkeypatch):
    """A scheme of the library may have another formula for one plan. A ledger adds up many plans,
    to which it does not apply: it counts the class's chance, and whether its coins are secret."""
    monkeypatch.setitem(SCHEMES, "cheap", Cheap)
    monkeypatch.setattr(Cheap, "said", said)
    monkeypatch.setattr(Cheap, "coins_are_secret", secret)
    cheap = GaussianEvent("cheap", 30, 10, 0.5, 0.2)
    assert PrivacyPlan(30, 10, "cheap", 0.5, 0.2, 6, 1e-3).epsilon() == 0
    assert cheap.cost == pytest.approx(same)
    assert cheap.cost[0] == same[0]
    coins = GaussianEvent("poisson", 30, 10, 0.5, 0.3)
    cohort = round(30 * same[1])  # With the same noise on the sum.
    library = GaussianEvent(same[0], 30, cohort, 0.5, 0.2 * 10 / cohort)
    for besides in ({}, {coins: 3}):
        found = composition.epsilon({cheap: 6, **besides}, 1e-3)
        assert found == pytest.approx(composition.epsilon({library: 6, **besides}, 1e-3), rel=1e-9)
    assert np.allclose(renyi.curve({cheap: 2}), renyi.curve({library: 2}))


@pytest.mark.parametrize("name", ["full", "poisson", "fixed"])
def test_the_library_charges_its_own_schemes_as_what_they_are(name):
    cohort = 30 if name == "full" else 10
    plan = PrivacyPlan(30, cohort, name, 0.5, 0.2, 6, 1e-3)
    assert GaussianEvent.of(plan).cost == (name, plan.rate)
    assert composition.epsilon({GaussianEvent.of(plan): 6}, 1e-3) == pytest.approx(plan.epsilon())
    everybody = PrivacyPlan(30, 30, name, 0.5, 0.2, 6, 1e-3)
    assert GaussianEvent.of(everybody).cost == ("full", 1.0)


def test_what_it_says_of_itself_later_makes_it_no_cheaper():
    fixed = PrivacyPlan(30, 10, "fixed", 0.5, 0.2, 6, 1e-3)
    plan = PrivacyPlan(30, 10, f"{__name__}:SecretLast", 0.5, 0.2, 6, 1e-3)
    assert plan.scheme.checked_chance(1 / 3) == pytest.approx(1 / 3)
    assert plan.scheme.coins_are_secret
    assert accountant.epsilon(plan) == pytest.approx(accountant.epsilon(fixed))
    both = {GaussianEvent.of(plan): 6, GaussianEvent("poisson", 30, 10, 0.5, 0.4): 4}
    known = {GaussianEvent.of(fixed): 6, GaussianEvent("poisson", 30, 10, 0.5, 0.4): 4}
    assert composition.epsilon(both, 1e-3) == pytest.approx(composition.epsilon(known, 1e-3))
    orders = np.array([2.0, 8.0])
    assert (plan.scheme.renyi(2.0, 1 / 3, orders) == fixed.scheme.renyi(2.0, 1 / 3, orders)).all()


def test_a_ledger_keeps_the_price_and_needs_no_code_to_read_it(monkeypatch):
    event = GaussianEvent.of(PLAN)
    written = event.to_dict()
    assert written["chance"] == pytest.approx(1 / 3)
    monkeypatch.setattr(OneGroup, "chance", lambda self, rate: 1.0)  # other code of the same name
    read = GaussianEvent.from_dict(written | {"sampling": "nowhere:OneGroup"})
    cheap = composition.epsilon({read: 6}, 1e-3)
    assert cheap == composition.epsilon({event: 6}, 1e-3)
    for wrong in (0.1, 2.0, "0.5", None):
        with pytest.raises(PmtlError):
            GaussianEvent.from_dict(written | {"sampling": "nowhere:OneGroup", "chance": wrong})
    with pytest.raises(PmtlError, match="cannot have a chance"):
        GaussianEvent.from_dict(
            GaussianEvent("fixed", 30, 10, 0.5, 0.2).to_dict() | {"chance": 0.5}
        )


def test_a_chance_above_the_rate_is_what_is_charged(monkeypatch):
    monkeypatch.setattr(Says, "said", 0.5)
    plan = PrivacyPlan(30, 10, f"{__name__}:Says", 0.5, 0.2, 6, 1e-3)
    event = GaussianEvent.of(plan)
    expected = colluders.epsilon(plan.noise_multiplier, 0.5, 6, 1e-3, 2)
    assert accountant.epsilon(plan) == expected
    assert composition.epsilon({event: 6}, 1e-3) == pytest.approx(expected)
    assert expected > 1.1 * colluders.epsilon(plan.noise_multiplier, plan.rate, 6, 1e-3, 2)


def test_a_plan_that_is_read_keeps_its_cost_whatever_became_of_the_code(monkeypatch):
    """ε follows from the chance, so the statement of a finished run would be wrong otherwise."""
    monkeypatch.setattr(Says, "said", 0.5)
    plan = PrivacyPlan(30, 10, f"{__name__}:Says", 0.5, 0.2, 6, 1e-3)
    written = plan.to_dict()
    assert PrivacyPlan.from_dict(written) == plan
    monkeypatch.setattr(Says, "said", 0.4)
    expected = colluders.epsilon(plan.noise_multiplier, 0.5, 6, 1e-3, 2)
    for name in (plan.sampling, "nowhere:Says"):
        read = PrivacyPlan.from_dict(written | {"sampling": name})
        assert read.epsilon() == expected
        assert read.to_dict() == written | {"sampling": name}
        assert composition.epsilon({GaussianEvent.of(read): 6}, 1e-3) == pytest.approx(expected)
        with pytest.raises(PmtlError, match=r"chance to take part in a round was 0\.5. To draw"):
            read.sampler(0, name_keys([f"c{k}" for k in range(30)])).draw(0)
    for wrong in (0.1, 2.0, "0.5", True):
        with pytest.raises(PmtlError, match="which cannot be"):
            PrivacyPlan.from_dict(written | {"chance": wrong})
    with pytest.raises(PmtlError, match="without its chance"):
        PrivacyPlan.from_dict({**written, "sampling": "nowhere:Says", "chance": None})


def test_a_plan_that_is_read_runs_no_code_before_it_draws(tmp_path, monkeypatch):
    """Somebody else may have written the file, and put the module beside it."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "theirs.py").write_text("raise SystemExit('their code runs')")
    sizes = (30, 10, "fixed", 0.5, 0.2, 6, 1e-3)
    values = PrivacyPlan(*sizes).to_dict() | {"sampling": "theirs:S", "chance": 0.5, "words": "w"}
    read = PrivacyPlan.from_dict(values)
    statement = make_statement(read, shares=True, personal=True)
    assert str(Statement.from_dict(statement.to_dict())) == str(statement)
    assert "How it was reached: 6 rounds; w; " in " ".join(str(statement).split())
    assert read.to_dict() == values
    with pytest.raises(PmtlError, match=r"cannot be imported \(SystemExit: their code runs\)"):
        read.sampler(0, name_keys([f"c{k}" for k in range(30)]))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda plan: pickle.loads(pickle.dumps(plan))])
def test_a_copy_of_a_plan_keeps_its_cost(copied, monkeypatch):
    monkeypatch.setattr(Says, "said", 0.9)
    plan = PrivacyPlan(30, 10, f"{__name__}:Says", 0.5, 0.2, 6, 1e-3)
    expected, twin = plan.epsilon(), copied(plan)
    draw = (0, name_keys([f"c{k}" for k in range(30)]))
    assert twin == plan
    assert (twin.sampler(*draw).draw(0) == plan.sampler(*draw).draw(0)).all()
    monkeypatch.setattr(Says, "said", 0.4)
    assert twin.epsilon() == expected > plan.epsilon()
    with pytest.raises(PmtlError, match=r"its chance is 0\.4 today"):
        twin.sampler(*draw)


def test_a_statement_that_is_made_again_states_the_cost_of_then(monkeypatch):
    monkeypatch.setattr(Says, "said", 0.5)
    plan = PrivacyPlan(30, 10, f"{__name__}:Says", 0.5, 0.2, 6, 1e-3)
    kinds = {"shares": True, "personal": True}
    written, before = plan.to_dict(), make_statement(plan, **kinds).epsilon
    for name in (plan.sampling, "nowhere:Says"):
        monkeypatch.setattr(Says, "said", 0.4)
        read = PrivacyPlan.from_dict(written | {"sampling": name})
        assert make_statement(read, **kinds).epsilon == before
