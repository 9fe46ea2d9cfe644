"""The cost of trying several settings and publishing the best run.

A setting that was chosen by validation scores reveals something about the validation rows that one
run's ε does not count. Two ways to choose have a proven cost:

- **all runs are published** (or seen by the clients while they train): all of them are charged, and
  looking for the best is free (`publish_all` of a `report`);
- **only the best is published**, and the number of runs K is random and secret (Papernot & Steinke,
  ICLR 2022, after Liu & Talwar 2019). Each run has a setting drawn at random and a noisy validation
  score; the run with the best score is published, and everything about the others is deleted. If
  one run has Rényi divergence D(λ), the whole has

      D(λ) + (1+η)·[(1 − 1/λ̂)·D(λ̂) + log(1/γ)/λ̂] + log(E K)/(λ−1)          (their Theorem 2)
      D(λ) + E K·δ̂ + log(E K)/(λ−1)                                         (their Theorem 6)

  where K has a truncated negative binomial distribution of shape η and parameter γ, for any λ̂ ≥ 1,
  or a Poisson distribution, if one run is (log(1 + 1/(λ−1)), δ̂)-private.

The second is what `epsilon` computes. If the settings differ in rounds, cohort or noise, one run is
a mixture of them, and D(λ) and δ̂ are at most the largest among them. It holds if all runs take
place on one trusted machine and only the best leaves it. **Clients who receive the models of every
run have seen the others**: for them the cost is the cost of publishing all. The distribution of K
must be fixed beforehand and may be known. The cheapest of `SHAPES` depends on the plan and not on
data, so we may choose it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pmtl.errors import PmtlError
from pmtl.privacy.accounting import accountant, composition, gaussian, renyi
from pmtl.privacy.accounting.gaussian import Floats
from pmtl.privacy.accounting.libraries import load
from pmtl.privacy.accounting.validation import KIND, metrics_plan
from pmtl.privacy.ledger.events import GaussianEvent
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.request import DEFAULT_SHARE

LOGARITHMIC, POISSON = 0.0, math.inf
MOST_CANDIDATES = 1_000_000
SHAPES = {LOGARITHMIC: "logarithmic", POISSON: "Poisson"}
"""The shapes η. Logarithmic is the cheapest for many candidates, Poisson for few."""

#: The releases of one run (training and score) with each of the settings.
Mixture = Sequence[Mapping[GaussianEvent, int]]


def epsilon(mixture: Mixture, delta: float, candidates: int, shape: float) -> float:
    """ε at δ of publishing the best of K runs, E K = `candidates`, for the shape η, replace-one."""
    return _epsilons(mixture, delta, candidates, [shape])[shape]


def cheapest(mixture: Mixture, delta: float, candidates: int) -> tuple[float, float]:
    """The least ε over `SHAPES`, and the shape that has it."""
    return min((value, eta) for eta, value in _epsilons(mixture, delta, candidates, SHAPES).items())


def _epsilons(
    mixture: Mixture, delta: float, candidates: int, shapes: Iterable[float]
) -> dict[float, float]:
    """ε for each shape, at least the ε of one run: its bound may be the looser one, and a choice
    must not look cheaper than no choice."""
    _check(candidates, shapes)
    one_run = max(composition.epsilon(each, delta) for each in mixture)
    divergences = np.max([renyi.curve(each) for each in mixture], axis=0)
    if not divergences.any():
        return dict.fromkeys(shapes, 0.0)  # Nothing is published.
    mu = max(composition.largest_mu(each) for each in mixture)

    def value(shape: float) -> float:
        if candidates == 1 and shape < POISSON:
            return one_run  # K is always 1.
        chosen = after_choice(divergences, candidates, shape, mu)
        return max(renyi.epsilon(chosen, delta), one_run)

    return {shape: value(shape) for shape in shapes}


def after_choice(divergences: Floats, mean: float, shape: float, mu: float = math.inf) -> Floats:
    """The Rényi divergences, at `renyi.ORDERS`, of the best of K runs with `divergences` each. One
    run is `mu`-GDP, which only sharpens Theorem 6."""
    orders = renyi.ORDERS
    extra: Floats | float
    if shape == POISSON:
        thresholds = -np.log1p(-1 / orders)
        log_deltas = renyi.log_delta(divergences, thresholds)
        if mu < math.inf:
            log_deltas = np.minimum(log_deltas, gaussian.log_delta(thresholds, mu))
        extra = mean * np.exp(log_deltas)
    else:
        ell = _log_inverse_gamma(mean, shape)
        by_order = (1 - 1 / orders) * divergences + ell / orders
        # λ̂ = 1 is allowed; then only γ matters.
        extra = (1 + shape) * min(float(by_order.min()), ell)
    return np.asarray(divergences + extra + math.log(mean) / (orders - 1), dtype=np.float64)


def _log_inverse_gamma(mean: float, shape: float) -> float:
    """ℓ = log(1/γ) with E K = (1/γ − 1)·η/(1 − γ^η) = `mean`, for η = 0 its limit
    (1/γ − 1)/log(1/γ). With exprel(x) = (eˣ − 1)/x both are exprel(ℓ)/exprel(−ηℓ)."""
    exprel = load("scipy.special").exprel

    def excess(ell: float) -> float:
        return math.log(exprel(ell)) - math.log(exprel(-shape * ell)) - math.log(mean)

    if mean == 1:
        return 0.0
    return gaussian.root(lambda ell: -excess(ell), 0.0, 2 + 2 * math.log(mean))


def chance_of_no_choice(candidates: int, shape: float) -> float:
    """The probability that fewer than two runs are made, so that nothing is compared. The
    logarithmic distribution often gives one run, and rarely very many."""
    if shape == POISSON:
        return (1 + candidates) * math.exp(-candidates)
    exprel, ell = load("scipy.special").exprel, _log_inverse_gamma(candidates, shape)
    return float(exprel(-ell) / exprel(shape * ell))


def validation_release(plan: PrivacyPlan, epsilon: float) -> GaussianEvent:
    """The release of one run's validation score in [0, 1] through the gate. It costs the share
    `DEFAULT_SHARE` of the run's μ², in addition to the run's `epsilon`."""
    squared_mu = math.inf
    if epsilon < math.inf:
        mu = gaussian.mu_for(max(epsilon, 1e-9), plan.delta)
        squared_mu = DEFAULT_SHARE * mu * mu
    return GaussianEvent.of(metrics_plan(plan.clients, 1, 1, squared_mu, plan.delta), KIND)


def report(plans: Mapping[PrivacyPlan, int]) -> dict[str, Any]:
    """The cost of choosing between runs with these plans, all for the same clients and δ, given how
    many candidates have each plan.

    - `one_run`: the most expensive plan alone, its settings fixed beforehand;
    - `one_run_with_score`: the same with one release of its validation score;
    - `publish_best`: the best of a random number of such runs, under `protocol`;
    - `publish_all`: all of them, public.
    """
    plan, candidates = next(iter(plans)), sum(plans.values())
    _check(candidates, [])
    if any((other.clients, other.delta) != (plan.clients, plan.delta) for other in plans):
        raise PmtlError("A choice is priced for the same clients and the same δ in all its runs.")
    one_run = max(accountant.epsilon(each) for each in plans)
    mixture, score = releases(plans, one_run)
    together: Counter[GaussianEvent] = Counter()
    for each, count in zip(mixture, plans.values(), strict=True):
        together.update({event: count * times for event, times in each.items()})
    chosen, shape = cheapest(mixture, plan.delta, candidates)
    chance = chance_of_no_choice(candidates, shape)
    return {
        "delta": plan.delta,
        "adjacency": plan.adjacency,
        "sampling": plan.sampling,
        "candidates": candidates,
        "one_run": one_run,
        "one_run_with_score": max(composition.epsilon(each, plan.delta) for each in mixture),
        "publish_best": chosen,
        "publish_all": composition.epsilon(together, plan.delta),
        "runs_drawn": SHAPES[shape],
        "chance_of_no_choice": chance,
        "score_noise": score.noise_std,
        "protocol": in_words(candidates, SHAPES[shape], chance, score.noise_std),
    }


def releases(plans: Iterable[PrivacyPlan], one_run: float) -> tuple[Mixture, GaussianEvent]:
    """What one run with each of the plans releases, and the release of its score, which is the same
    for all of them; `one_run` is the largest ε of the plans."""
    plans = list(plans)
    score = validation_release(plans[0], one_run)
    return [{GaussianEvent.of(plan): plan.rounds, score: 1} for plan in plans], score


def draw_number_of_runs(candidates: int, shape: float, random: np.random.Generator) -> int:
    """K, the number of runs, with E K = `candidates`. Poisson may give 0: then nothing is
    published. `random`, where K comes from, must be independent of the data and secret."""
    _check(candidates, [shape])
    if shape == POISSON:
        return int(random.poisson(candidates))
    if shape != LOGARITHMIC:
        raise PmtlError(f"The number of runs is drawn for {SHAPES}, but {shape!r} was given.")
    stop = math.exp(-_log_inverse_gamma(candidates, LOGARITHMIC))  # γ
    return 1 if candidates == 1 else int(random.logseries(1 - stop))


def in_words(candidates: int, runs_drawn: str, chance: float, score_noise: float) -> str:
    """The protocol under which the ε of a choice holds."""
    return (
        "The ε of the best run holds if the number of runs is drawn at random beforehand "
        f"({runs_drawn}, {candidates} on average) and kept secret; each run is independent, with a "
        f"setting drawn at random from the {candidates}, and its validation score gets noise of "
        f"standard deviation {score_noise:.3g} in the gate (a client's score is in [0, 1]); and "
        "only the run with the best noisy score is published. No one, not even a client, may see "
        "anything of the other runs: if clients receive the models of every run while it trains, "
        f"the ε of publishing all holds instead. With a probability of {chance:.0%} fewer than two "
        "runs are made, and nothing is compared."
    )


def _check(candidates: int, shapes: Iterable[float]) -> None:
    if isinstance(candidates, bool) or not isinstance(candidates, int) or candidates < 1:
        raise PmtlError(
            f"A choice is between a whole number of candidates, at least 1, but {candidates!r} was "
            "given: count the settings that compete, not their seeds."
        )
    if candidates > MOST_CANDIDATES:
        raise PmtlError(
            f"A choice between more than {MOST_CANDIDATES:,} candidates is not priced, and "
            f"{candidates!r} were given: count the settings that compete."
        )
    for shape in shapes:
        if not (0 <= shape <= 1000 or shape == POISSON):
            raise PmtlError(
                f"The shape of the number of runs must lie between 0 and 1000 or be inf, but "
                f"{shape!r} was given: 0 is logarithmic, 1 geometric and inf Poisson."
            )
