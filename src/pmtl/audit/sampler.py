"""The sampler game: whether other clients can predict one client's participation.

Amplification by Poisson sampling needs independent coins. The adversary knows the participation of
all others, now and before, and guesses whether client k takes part. ε says how much its odds
change; the claim is 0, so a draw of fixed size is refuted.

If a fixed number is drawn, colluders know when k takes part. The accounting assumes that
(`privacy/accounting/colluders.py`), so it is measured, but not part of the verdict. The verdict is
always about two things: k's rounds are independent of each other, and k is not drawn too often.

A scheme of the user's own may claim less: that k takes part with at most the probability `chance`,
given all earlier rounds. The verdict tests two rates: over all rounds, and after one history. A
history is, for some n: k was drawn n rounds ago; was not drawn then; or was not drawn in the last n
rounds. We take the history after which k was drawn most often in the first half. If a scheme always
draws q clients, none with a probability above q/m, its rounds must also be independent.
"""

from __future__ import annotations

import math

import numpy as np

from pmtl.audit.estimators import Bits, Floats, discriminant, threshold_bound, upper_limit
from pmtl.audit.result import AuditResult, Finding, seed_of, share
from pmtl.audit.setup import AuditSetup
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.schemes import default_sampling, is_library_scheme
from pmtl.streams import name_keys

GAME = "sampler"

#: More clients would only take longer: what matters is the share that is drawn.
_MOST_CLIENTS = 100
#: The number of scores from which client k's coin is guessed.
_GUESSES = 4


def sampler(setup: AuditSetup) -> AuditResult:
    """Draw cohorts, and guess one client's participation from everything else."""
    plan = _plan(setup)
    table = play(plan, setup.noise_seed)
    # The client that was drawn most often in the first half is measured in the second half.
    victim = int(table[: len(table) // 2].sum(axis=0).argmax())
    bits, before, now = table[1:, victim], table[:-1], np.delete(table[1:], victim, axis=1)
    known = np.concatenate([now, before], axis=1).astype(np.float64)
    scores: dict[str, Floats] = {}
    halves = bits[: len(bits) // 2], bits[len(bits) // 2 :]
    # If it is always in or always out, nothing can be guessed.
    if all(0 < half.sum() < len(half) for half in halves):
        scores = {
            "how many others were drawn": -now.sum(axis=1).astype(np.float64),
            "who else was drawn, now and before": discriminant(known, bits),
            "whether it was drawn before": before[:, victim].astype(np.float64),
            "whether it was not drawn before": -before[:, victim].astype(np.float64),
        }
    scheme, own = plan.scheme, not is_library_scheme(plan.sampling)
    bounded = own and (scheme.size_varies or scheme.checked_chance(plan.rate) > plan.rate)
    known_to_colluders = 0 if scheme.coins_are_secret else 2
    granted = list(scores)[: len(scores) if bounded else known_to_colluders]
    confidence = share(setup.confidence, _GUESSES + 1)
    findings, measured = [], {}
    for name, score in scores.items():
        bound = threshold_bound(score, bits, 0.0, confidence, curve=False)
        if name in granted:
            measured[name] = bound.epsilon
        else:
            numbers = {"rounds_in": int(bits.sum()), "rate": plan.rate}
            findings.append(Finding(name, bound.epsilon, len(bits), numbers))
    first, second = table[: len(table) // 2, victim], table[len(table) // 2 :, victim]
    findings.append(_too_often("at all", second, len(second), plan, confidence))
    if own:
        longest = min(2 * math.ceil(1 / plan.rate), len(first) // 4)
        name, trials = _worst_history(first, longest, confidence)
        after = second[longest:][_histories(second, longest)[name]]
        findings.append(_too_often(name, after[:trials], trials, plan, confidence))
    detail = {"sampling": plan.sampling, "granted_to_colluders": measured}
    return AuditResult.of(GAME, setup, findings, 0.0, len(bits), claim=0.0, **detail)


def _histories(drawn: Bits, longest: int) -> dict[str, Bits]:
    """For each round but the first `longest`: whether it comes after a history, by its name."""
    found, never = {}, np.ones(len(drawn) - longest, dtype=np.bool_)
    for lag in range(1, longest + 1):
        then = drawn[longest - lag : len(drawn) - lag]
        never = never & ~then
        found[f"{lag} rounds after a round with it"] = then
        found[f"{lag} rounds after a round without it"] = ~then
        found[f"after {lag} rounds without it"] = never
    return found


def _worst_history(drawn: Bits, longest: int, confidence: float) -> tuple[str, int]:
    """The history after which k is drawn most often, and on how many rounds to test it. That number
    must not depend on the draws that are counted, so it follows from the first half: three quarters
    of its rounds after the history. If the second half has fewer such rounds, the missing ones
    count as not drawn."""
    rates, trials = {}, {}
    for name, mask in _histories(drawn, longest).items():
        rounds, present = int(mask.sum()), int(drawn[longest:][mask].sum())
        rates[name] = 1 - float(upper_limit(rounds - present, rounds, 1 - confidence))
        trials[name] = 3 * rounds // 4
    worst = max(rates, key=rates.__getitem__)
    return worst, trials[worst]


def play(plan: PrivacyPlan, seed: int | None) -> Bits:
    """Which clients take part in each round, [rounds, clients]. Without a seed the coins come from
    the operating system."""
    keys = name_keys(tuple(f"client-{k}" for k in range(plan.clients)))
    draws = plan.sampler(seed_of(seed, GAME), keys)
    table = np.zeros((plan.rounds, plan.clients), dtype=np.bool_)
    for round in range(plan.rounds):
        table[round, draws.draw(round)] = True
    return table


def _plan(setup: AuditSetup) -> PrivacyPlan:
    """The setup's sampling, with as many rounds as trials. With full participation nothing can be
    guessed: then half of the clients are sampled. (The noise does not matter.)"""
    clients = min(setup.clients, _MOST_CLIENTS)
    asked = setup.clients if setup.cohort is None else setup.cohort
    cohort = min(max(round(clients * asked / setup.clients), 1), clients - 1)
    drawn = setup.sampling
    if asked == setup.clients:
        cohort, drawn = clients // 2, None
    drawn = drawn or default_sampling(clients, cohort)
    # Enough rounds that client k is in some rounds and out of others, in each half.
    rounds = max(setup.trials, 40 * clients // cohort, 40 * clients // (clients - cohort))
    return PrivacyPlan(
        clients, cohort, drawn, clip_norm=1.0, noise_std=1.0, rounds=rounds, delta=0.5
    )


def _too_often(
    when: str, drawn: Bits, trials: int, plan: PrivacyPlan, confidence: float
) -> Finding:
    """By how much k's odds of being drawn exceed those that are charged. `drawn` has at most
    `trials` rounds; in the missing ones k counts as not drawn."""
    present, chance = int(drawn.sum()), plan.scheme.checked_chance(plan.rate)
    rate = 1 - float(upper_limit(trials - present, trials, 1 - confidence))
    odds = rate / max(1 - rate, 1e-300) * (1 - chance) / chance
    excess = max(math.log(max(odds, 1e-300)), 0.0)
    numbers = {"rounds_in": present, "rate": chance}
    return Finding(f"how often it is drawn {when}", excess, trials, numbers)
