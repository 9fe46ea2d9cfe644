"""Extreme but legal settings end: in a number that bounds the truth, or in a sentence and status 2.

A test that computes for longer than `LIMIT` seconds is stopped by an alarm and fails: version 0.1
searched for ever with noise of 1e6 in production. The seconds are the process's own, so that a busy
machine is no reason to fail.
"""

from __future__ import annotations

import json
import math
import signal
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from at_length import at_length

from pmtl.errors import PmtlError
from pmtl.privacy import noise
from pmtl.privacy.accounting import accountant, colluders, gaussian, selection
from pmtl.privacy.grid import Grid
from pmtl.privacy.ledger.events import GaussianEvent
from pmtl.privacy.plan import PrivacyPlan

LIMIT = 60

NUMBERS = ("5e-324", "1e-300", "1e-12", "1e6", "1e300", "inf")
DELTAS = ("5e-324", "1e-300", "1e-12", "0.5", "0.999999999999")
COUNTS = ("1", "1000000", "1000000000", "1" + "0" * 400)
CLIENTS, COHORT = ["--clients", "1000"], ["--cohort", "10"]
KNOWN = {"--noise": "0.1", "--epsilon": "2", "--rounds": "20", "--candidates": "3"}
ASKS = {
    "epsilon": ("--noise", "--rounds"),
    "noise": ("--epsilon", "--rounds"),
    "rounds": ("--epsilon", "--noise"),
    "selection": ("--epsilon", "--rounds", "--candidates"),
}
EXTREMES = {
    "--noise": NUMBERS,
    "--epsilon": NUMBERS,
    "--clip": NUMBERS,
    "--delta": DELTAS,
    "--rounds": COUNTS,
    "--candidates": COUNTS,
    "--clients": COUNTS,
}


@pytest.fixture(autouse=True)
def _alarm():
    """A hang is a failure."""

    def ring(*_):
        raise TimeoutError(f"no end in sight after {LIMIT} seconds")

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)


def ended_well(done, *names):
    """Status 0 and numbers that are bounds, or status 2 and one sentence; the values of `names`."""
    if done.status == 2:
        assert done.err.startswith("error: ")
        assert len(done.err.strip().splitlines()) == 1
        assert "Traceback" not in done.err
        return None
    assert done.status == 0, done.err
    answer = json.loads(done.out)
    values = [float(answer[name]) for name in names]
    assert all(value >= 0 for value in values), answer  # and so none is NaN
    return values


@pytest.mark.parametrize("sampling", at_length(["full", "poisson", "fixed"], "poisson".__eq__))
@pytest.mark.parametrize(
    ("command", "option"),
    [
        (command, option)
        for command, asked in ASKS.items()
        for option in EXTREMES
        if option in (*asked, "--clip", "--delta", "--clients")
    ],
)
def test_every_option_of_pmtl_privacy_at_its_extremes(command, option, sampling, pmtl_command):
    names = ("one_run", "publish_best", "publish_all") if command == "selection" else ("epsilon",)
    epsilons = []
    for value in EXTREMES[option]:
        cohort = [] if sampling == "full" else COHORT
        given = {name: KNOWN[name] for name in ASKS[command]} | {"--clients": "1000"}
        given[option] = value
        words = [word for pair in given.items() for word in pair]
        done = pmtl_command("privacy", command, *words, "--sampling", sampling, *cohort, "--json")
        epsilons.append(ended_well(done, *names))
    if command == "epsilon" and option in ("--noise", "--delta"):
        # More noise or a larger δ never costs more.
        found = [values[0] for values in epsilons if values is not None]
        assert all(after <= before for before, after in pairwise(found))
    if command == "epsilon" and option == "--clip":
        found = [values[0] for values in epsilons if values is not None]
        assert all(after >= before for before, after in pairwise(found))


#: Several at once, found by trying: each hung or crashed once.
TOGETHER = (
    "selection --clients 1 --clip 5e-324 --delta 0.999999999999 --rounds 1 --candidates 1000000 "
    "--epsilon 1e6",
    "selection --clients 1000000000 --cohort 1 --clip 1e6 --delta 1e-300 --rounds 1000000 "
    "--candidates 1000000 --noise 1e-12",
    "selection --clients 2 --cohort 1 --clip 5e-324 --delta 1e-300 --rounds 1 --candidates 2 "
    "--epsilon 1e-12",
    "rounds --clients 1000000000 --cohort 1000000 --clip 1e-300 --delta 1e-300 --noise 0.1 "
    "--epsilon 1e-12",
    "selection --clients 1000000000 --cohort 500000000 --sampling fixed --clip 1e300 "
    "--delta 1e-300 --rounds 1000000 --candidates 1000000 --epsilon 1e-12",
    "noise --clients 1000000000 --sampling full --clip 1e6 --delta 1e-300 --epsilon 1e300 "
    "--rounds 1",
    "noise --clients 1000000000 --cohort 1 --sampling fixed --clip 5e-324 --delta 1e-12 "
    "--epsilon 1e-12 --rounds 1000000",
    "epsilon --clients 2 --clip 5e-324 --noise 5e-324 --rounds 1",
    "epsilon --clients 1000000000 --cohort 500000000 --sampling fixed --noise 1 --rounds 1000000000"
    " --delta 1e-300",
)


@pytest.mark.parametrize("line", TOGETHER)
def test_extremes_together(line, pmtl_command):
    one = "one_run" if line.startswith("selection") else "epsilon"
    ended_well(pmtl_command("privacy", *line.split(), "--json"), one)


#: Beside --rounds 2 --steps 1; "ok" must train, "sentence" must be refused, None may do either.
TRAIN = {
    "--noise": {"0": "ok", "1e-300": None, "1e-12": None, "1e6": None, "1e300": "sentence"},
    "--epsilon": {"1e-300": "sentence", "1e-12": None, "1e6": "ok", "1e300": "sentence"},
    "--clip": {"5e-324": None, "1e-300": None, "1e-12": None, "1e6": "ok", "1e300": None},
    "--delta": {"1e-300": "ok", "0.999999999999": "ok", "1": "sentence"},
    "--metrics": {"1e-300": None, "1e-12": None, "0.999999999999": None, "1": "sentence"},
    "--loss-bound": {"1e-300": "ok", "1e300": "ok", "inf": "sentence"},
    "--cohort": {"1": "ok", "1000000000": "sentence"},
    "--rounds": {"0": "sentence", "1" + "0" * 400: "sentence"},
    "--batch": {"1000000000": "ok"},
    "--lr": {"1e-300": "ok"},
    "--halve-every": {"1": "ok", "1000000000": "ok"},
    "--evaluate-every": {"1000000000": "ok", "0": "ok"},
    "--checkpoint-seconds": {"0": "ok", "1e300": "ok", "inf": "ok"},
}


#: Production adds the grid and the ledger, which meet noise, ε, clip and metrics.
@pytest.mark.parametrize(
    ("option", "mode"),
    [
        *((option, "experiment") for option in TRAIN),
        *(
            pytest.param(
                option,
                "production",
                marks=[]
                if option in ("--noise", "--epsilon", "--clip", "--metrics")
                else pytest.mark.thorough,
            )
            for option in TRAIN
        ),
    ],
)
def test_every_option_of_pmtl_train_at_its_extremes(
    option, mode, pmtl_command, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    data = "synthetic:clients=4,features=3,samples=12"
    ledger = tmp_path / "ledger.db"
    if mode == "production":
        assert pmtl_command("ledger", "create", ledger, "--data", data).status == 0
    for number, (value, expected) in enumerate(TRAIN[option].items()):
        given = {"--rounds": "2", "--steps": "1", option: value}
        if mode == "production":
            given |= {"--mode": mode, "--ledger": str(ledger)}
        words = [word for pair in given.items() for word in pair]
        out = tmp_path / f"{number}"
        done = pmtl_command("train", "--data", data, *words, "--out", out, "--json")
        told = f"{option} {value}: {done.err}"
        found = ended_well(pmtl_command_result(done), "epsilon")
        assert expected != "ok" or found is not None or mode == "production", told
        assert expected != "sentence" or found is None, told


def pmtl_command_result(done):
    """The outcome without warnings and the progress bar, which also go to stderr."""
    lines = [line for line in done.err.splitlines() if line.startswith("error: ")]
    done.err = "\n".join(lines)
    return done


def test_production_with_noise_of_a_million_is_refused_in_a_sentence(
    pmtl_command, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    ledger = tmp_path / "ledger.db"
    assert pmtl_command("ledger", "create", ledger, "--data", "synthetic").status == 0
    words = ["--mode", "production", "--ledger", ledger, "--noise", "1e6", "--rounds", "2"]
    done = pmtl_command("train", *words, "--out", tmp_path / "run")
    assert done.status == 2
    assert "no grid can hold" in done.err
    shown = json.loads(pmtl_command("ledger", "show", ledger, "--json").out)
    assert not shown.get("runs")


@pytest.mark.parametrize("epsilon", ["1e-300", "1e-12", "1e6", "inf"])
@pytest.mark.parametrize("delta", ["1e-300", "0.999999999999"])
def test_a_cap_at_its_extremes(epsilon, delta, pmtl_command, tmp_path):
    ledger = tmp_path / "ledger.db"
    assert pmtl_command("ledger", "create", ledger, "--data", "synthetic").status == 0
    done = pmtl_command("ledger", "cap", ledger, "--epsilon", epsilon, "--delta", delta)
    assert done.status in (0, 2), done.err
    assert pmtl_command("ledger", "show", ledger, "--json").status == 0


@pytest.mark.parametrize(
    "words",
    ["--epsilon 1e-12", "--epsilon 1e6", "--epsilon 1e300", "--delta 1e-300", "--delta 1e-12"],
)
def test_an_audit_at_its_extremes(words, pmtl_command):
    arguments = ["audit", "--game", "one-round", "--trials", "400", "--clients", "2"]
    done = pmtl_command(*arguments, *words.split(), "--json")
    if done.status == 2:
        assert done.err.startswith("error: ")
        return
    (result,) = json.loads(done.out)
    assert done.status == 0
    assert 0 <= result["lower_bound"] <= result["claim_epsilon"]


class TestSearches:
    """Each search by itself: bounded, and on the safe side of the truth."""

    @pytest.mark.parametrize("delta", [1e-300, 1e-12, 1e-3, 0.5, 1 - 1e-12])
    @pytest.mark.parametrize("epsilon", [0.0, 1e-300, 1e-12, 1e-3, 1.0, 1e3, 1e6, 1e12])
    def test_mu_is_private_enough_and_nearly_the_largest(self, epsilon, delta):
        mu = gaussian.mu_for(epsilon, delta)
        with mpmath.workdps(700 if delta < 1e-200 else 60):
            # As float64 has it: near 1 the last digit of δ is worth 10⁻¹⁶.
            assert exact_delta(epsilon, mu) <= mpmath.mpf(delta) * (1 + mpmath.mpf(10) ** -15)
            if epsilon == 0 or 1e-3 <= epsilon <= 1e3:
                assert exact_delta(epsilon, 1.001 * mu) > mpmath.mpf(delta) * (1 - 1e-9)

    @pytest.mark.parametrize("mu", [1e-300, 1e-12, 1e-3, 1.0, 40.0])
    @pytest.mark.parametrize("delta", [1e-300, 1e-12, 0.3, 1 - 1e-12])
    def test_epsilon_is_never_too_small(self, mu, delta):
        epsilon = gaussian.epsilon(mu, delta)
        with mpmath.workdps(700 if delta < 1e-200 else 60):
            assert exact_delta(epsilon, mu) <= mpmath.mpf(delta) * (1 + mpmath.mpf(10) ** -15)

    def test_a_root_that_is_not_found_is_the_safe_end(self, monkeypatch):
        monkeypatch.setattr(gaussian, "MOST_STEPS", 3)
        assert gaussian.root(lambda x: 1.0 - x * x * x, 0.0, 1e200) == 1e200

    def test_few_of_very_many_participations_are_told_apart_and_none_is_lost(self):
        times, log_weights, log_missed = colluders.participations(0.5, 10**9, 1e-300)
        assert len(times) <= 8192
        assert math.fsum(np.exp(log_weights)) + math.exp(log_missed) >= 1
        assert math.fsum(np.exp(log_weights)) <= 1 + 1e-5
        # Against all of them, where that is possible: a bound, and hardly more.
        coarse = colluders.epsilon(600.0, 0.5, 10**7, 1e-9, 2)
        fine = all_participations(600.0, 0.5, 10**7, 1e-9)
        assert fine <= coarse <= 1.001 * fine

    def test_the_ratio_of_noise_to_clip_is_a_number_or_refused(self):
        """The quotient of the smallest numbers there are is 1, and was taken for infinite."""
        with pytest.raises(PmtlError, match="too large to be computed"):
            PrivacyPlan(2, 2, "full", 5e-324, 5e-324, 1, 1e-3)

    def test_rounds_are_found_for_any_noise(self):
        for sigma in (1e-3, 1.0, 1e300):
            plan = PrivacyPlan(10, 3, "poisson", 1.0, sigma, 1, 1e-3)
            kept = accountant.rounds_for(plan, 2.0)
            assert 0 <= kept <= accountant.MOST_ROUNDS

    def test_too_many_candidates_are_refused(self):
        event = GaussianEvent("full", 10, 10, 1.0, 1.0)
        with pytest.raises(PmtlError, match="not priced"):
            selection.cheapest([{event: 1}], 1e-3, 10**9)

    def test_words_that_are_not_random_end_in_a_sentence(self):
        """All zeros are the border of the farthest tail, again and again."""
        with pytest.raises(PmtlError, match="are not random"):
            noise.rounded(lambda count: np.zeros(count, dtype=np.uint64), (1,), 3.0)

    @pytest.mark.parametrize("z", [1e-300, 1e-12, 1e6, 1e300])
    def test_a_grid_is_made_or_refused(self, z):
        plan = PrivacyPlan(1, 1, "full", 1.0, z, 1, 1e-3)
        if z > 2**25:
            with pytest.raises(PmtlError, match="no grid can hold"):
                Grid.of(plan)
            return
        grid = Grid.of(plan)
        drawn = noise.rounded(noise.seeded_source(0)(0), (1000,), grid.noise)
        assert float(drawn.double().std()) == pytest.approx(grid.noise, rel=0.1, abs=0.1)


def exact_delta(epsilon, mu):
    """Balle & Wang's formula in as many digits as mpmath was asked for."""
    epsilon, mu = mpmath.mpf(epsilon), mpmath.mpf(mu)
    first = mpmath.ncdf(mu / 2 - epsilon / mu)
    return first - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


def all_participations(z, rate, rounds, delta):
    """The colluders' ε with every number of participations by itself."""
    from scipy import optimize, stats

    binomial = stats.binom(rounds, rate)
    times = np.arange(binomial.ppf(1e-16), binomial.isf(1e-16) + 1)
    weights = binomial.pmf(times)

    def excess(epsilon):
        return weights @ np.exp(gaussian.log_delta(epsilon, 2 * np.sqrt(times) / z)) - delta

    return optimize.brentq(excess, 0, gaussian.epsilon(2 * math.sqrt(rounds) / z, delta))
