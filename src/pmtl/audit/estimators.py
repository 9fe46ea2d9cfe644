"""From the mistakes of an attack to a lower bound on ε.

A mechanism is (ε, δ)-private only if no test distinguishes two neighbouring federations D and D′
better than (Wasserman & Zhou 2010; Kairouz, Oh & Viswanath 2015)

    1 − FNR ≤ e^ε·FPR + δ        and        1 − FPR ≤ e^ε·FNR + δ.

The rates of mistakes are replaced by exact upper confidence limits (Clopper & Pearson 1934), as in
Jagielski, Ullman & Oprea, NeurIPS 2020. The threshold of the test is chosen on one half of the
trials and measured on the other.

If the accountant claims the curve of a Gaussian mechanism (full participation), one point gives
the whole curve: μ ≥ Φ⁻¹(1 − FPR) − Φ⁻¹(FNR), and ε(δ) of that μ is the bound (Nasr et al., "Tight
Auditing of Differentially Private Machine Learning", USENIX Security 2023). It is far tighter,
because it needs no events as rare as δ. It must not be used without such a claim.

`one_run` is Steinke, Nasr & Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023:
many independent secrets in one run. `one_run_gaussian` assumes a Gaussian curve, but not that
guesses are independent: Mahloujifar, Melis & Chaudhuri, "Auditing f-Differential Privacy in One
Run" (2024).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from pmtl.errors import PmtlError
from pmtl.privacy.accounting import gaussian
from pmtl.privacy.accounting.gaussian import Floats as Floats

Bits = NDArray[np.bool_]

#: The largest ε and μ of the search; no audit has enough trials to prove them.
_MOST, _MOST_MU = 60.0, 12.0
#: Thresholds that are tried if a Gaussian curve is claimed.
_PLACES = 9


@dataclass(frozen=True)
class Bound:
    """A lower bound on ε, and the mistakes of the test that proves it."""

    epsilon: float
    false_positives: int
    of_negatives: int
    false_negatives: int
    of_positives: int


def upper_limit(count: Any, trials: Any, level: float) -> Any:
    """Clopper–Pearson: the largest probability p with P[at most `count` of `trials`] ≥ `level`."""
    count, trials = np.asarray(count, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    some = np.minimum(count, trials - 1)
    limit = special.betaincinv(some + 1, trials - some, 1 - level)
    return np.where(count < trials, limit, 1.0)


def epsilon_from_rates(fpr: Any, fnr: Any, delta: float) -> Any:
    """The least ε that allows a test with these rates of mistakes; 0 where any does."""
    fpr, fnr = np.asarray(fpr, dtype=np.float64), np.asarray(fnr, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        one = np.log(np.maximum(1 - delta - fnr, 0) / fpr)
        two = np.log(np.maximum(1 - delta - fpr, 0) / fnr)
    return np.fmax(np.fmax(one, two), 0.0)


def mu_from_rates(fpr: Any, fnr: Any) -> Any:
    """The least μ of a Gaussian mechanism that allows a test with these rates of mistakes."""
    return np.maximum(special.ndtri(1 - np.asarray(fpr)) - special.ndtri(np.asarray(fnr)), 0.0)


def threshold_bound(
    scores: Floats, bits: Bits, delta: float, confidence: float, *, curve: bool
) -> Bound:
    """The lower bound on ε that the scores of a distinguishing game prove.

    `bits` says which trials played D, whose scores are expected to be higher. `curve` says that the
    claim is a Gaussian curve. NaN counts as the highest score.
    """
    if scores.shape != bits.shape or scores.ndim != 1:
        raise PmtlError("An audit needs one score and one bit for every trial.")
    scores = np.where(np.isnan(scores), np.inf, scores)
    half = len(scores) // 2
    if min(*_sizes(bits[:half]), *_sizes(bits[half:])) < 1:
        raise PmtlError(
            "An audit needs trials of both federations in each half: play at least 8 trials."
        )
    level = (1 - confidence) / 2  # one half for each of the two rates
    threshold = _choose(scores[:half], bits[:half], delta, level, curve)
    high, truth = scores[half:] >= threshold, bits[half:]
    fp, fn = int((high & ~truth).sum()), int((~high & truth).sum())
    positives, negatives = _sizes(truth)
    fpr, fnr = upper_limit(fp, negatives, level), upper_limit(fn, positives, level)
    if curve:
        epsilon = gaussian.epsilon(float(mu_from_rates(fpr, fnr)), delta)
    else:
        epsilon = float(epsilon_from_rates(fpr, fnr, delta))
    return Bound(epsilon, fp, negatives, fn, positives)


def _sizes(bits: Bits) -> tuple[int, int]:
    positives = int(bits.sum())
    return positives, len(bits) - positives


def _choose(scores: Floats, bits: Bits, delta: float, level: float, curve: bool) -> float:
    """The threshold with the highest bound on these trials.

    With a curve any threshold will do, so a few in the middle are tried: the best of hundreds would
    mostly be lucky. Without a curve, rare events in the tails matter; of the thresholds that are
    nearly as good as the best, the one in the widest gap is the most reliable on other trials.
    """
    values = np.unique(scores)
    if curve and len(values) > 2 * _PLACES:
        values = np.quantile(scores, np.linspace(0.3, 0.7, _PLACES), method="nearest")
    with np.errstate(invalid="ignore"):  # The middle of −inf and inf is NaN; inf is used instead.
        middles, gaps = (values[1:] + values[:-1]) / 2, np.append(np.diff(values), 0.0)
    thresholds = np.append(np.where(np.isnan(middles), np.inf, middles), values[0])
    inside, outside = np.sort(scores[bits]), np.sort(scores[~bits])
    fn = np.searchsorted(inside, thresholds, side="left")
    fp = len(outside) - np.searchsorted(outside, thresholds, side="left")
    fpr, fnr = upper_limit(fp, len(outside), level), upper_limit(fn, len(inside), level)
    value = mu_from_rates(fpr, fnr) if curve else epsilon_from_rates(fpr, fnr, delta)
    if curve:
        best = np.flatnonzero(value == value.max())
        return float(thresholds[best[len(best) // 2]])
    return float(thresholds[np.where(value >= 0.9 * value.max(), gaps, -1.0).argmax()])


def discriminant(views: Floats, bits: Bits) -> Floats:
    """Fisher's linear discriminant, trained on the first half of the trials, as a score for all.

    `views` is [trials, features]. Features are standardised, and a small ridge allows for features
    that depend on each other.
    """
    # An overflow is visible: it becomes a number larger than any ordinary one.
    rows = np.clip(np.nan_to_num(views, nan=1e9, posinf=1e9, neginf=-1e9), -1e9, 1e9)
    half = len(rows) // 2
    known, truth = rows[:half], bits[:half]
    centre, scale = known.mean(axis=0), known.std(axis=0)
    rows = (rows - centre) / np.where(scale > 0, scale, 1.0)
    inside, outside = rows[:half][truth], rows[:half][~truth]
    gap = inside.mean(axis=0) - outside.mean(axis=0)
    rest = np.concatenate([inside - inside.mean(axis=0), outside - outside.mean(axis=0)])
    spread = rest.T @ rest / max(len(rest) - 2, 1)
    weights = np.linalg.solve(spread + 1e-3 * np.eye(len(spread)), gap)
    return np.asarray(rows @ weights, dtype=np.float64)


def one_run_p_value(
    secrets: int, guesses: int, correct: int, epsilon: float, delta: float
) -> float:
    """The largest probability of at least `correct` of `guesses` under (ε, δ)-privacy (Steinke et
    al., Theorem 5.2). The second term is due to δ: with probability at most 2·secrets·δ·P[…]/i, i
    wrong guesses become right."""
    chance = stats.binom(guesses, special.expit(epsilon))
    by_luck = float(chance.sf(correct - 1))
    if correct == 0 or delta == 0:
        return min(by_luck, 1.0)
    fewer = np.cumsum(chance.pmf(np.arange(correct - 1, -1, -1)))  # P[correct − i ≤ B < correct]
    by_delta = float((fewer / np.arange(1, correct + 1)).max())
    return min(by_luck + 2 * secrets * delta * by_delta, 1.0)


def one_run(secrets: int, guesses: int, correct: int, delta: float, confidence: float) -> float:
    """The largest ε that these guesses refute."""
    _check_guesses(secrets, guesses, correct)
    return _largest_refuted(
        lambda epsilon: one_run_p_value(secrets, guesses, correct, epsilon, delta) < 1 - confidence,
        _MOST,
    )


def _largest_refuted(refuted: Callable[[float], bool], most: float) -> float:
    """The largest value up to `most` that is refuted, by bisection; 0 if none is."""
    low, high = 0.0, most
    if not refuted(low):
        return 0.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def one_run_gaussian_refutes(
    secrets: int, guesses: int, correct: int, mu: float, level: float
) -> bool:
    """Whether `correct` of `guesses` right ones are rarer than `level` under every mechanism that
    has the curve of μ (Mahloujifar, Melis & Chaudhuri 2024, for two values of a secret).

    Let N be the number of right guesses, P_c = P[N ≥ c], m the secrets and k the guesses. Turning
    secret j makes a right guess about it wrong, and N smaller by one. So for every c the f-DP of
    the mechanism bounds P[j right, N ≥ c] by f̄(P[j wrong, N ≥ c − 1]) with f̄(x) = Φ(Φ⁻¹(x) + μ).
    Averaged over j (f̄ is concave),

        E[N; N ≥ c]/m ≤ f̄(E[k − N; N ≥ c − 1]/m).

    Both sides are sums of the P_i: E[N; N ≥ c] = c·P_c + Σ_{i>c} P_i, which grows with each of
    them, and E[k − N; N ≥ c − 1] = (k − c + 1)·P_{c−1} − Σ_{i≥c} P_i. Hence the least P_{c−1} that
    goes with the least P_c, P_{c+1}, …; down from P_correct = `level`. If P_0 would exceed 1, this
    many right guesses are rarer than `level`.
    """
    tail, total = level, level  # P_c, and the sum of P_i from c on
    right = correct * tail
    for count in range(correct, 0, -1):
        # Below 1: otherwise P_0 ≥ E[N]/m would exceed 1 already.
        wrong = float(special.ndtr(special.ndtri(min(right / secrets, 1.0)) - mu))
        tail = max(tail, (secrets * wrong + total) / (guesses - count + 1))
        if tail > 1 + 1e-9:
            return True
        right = (count - 1) * tail + total
        total += tail
    return False


def one_run_gaussian(
    secrets: int, guesses: int, correct: int, delta: float, confidence: float
) -> float:
    """The largest ε(δ) of a Gaussian curve that these guesses refute."""
    _check_guesses(secrets, guesses, correct)
    mu = _largest_refuted(
        lambda mu: one_run_gaussian_refutes(secrets, guesses, correct, mu, 1 - confidence), _MOST_MU
    )
    return gaussian.epsilon(mu, delta) if mu > 0 else 0.0


def _check_guesses(secrets: int, guesses: int, correct: int) -> None:
    if not 0 <= correct <= guesses <= secrets:
        raise PmtlError(
            f"{correct} right guesses of {guesses} about {secrets} secrets cannot be: each number "
            "may be at most the next."
        )
