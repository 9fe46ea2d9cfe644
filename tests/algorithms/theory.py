"""The step sizes of the paper's convergence theorems, and where they need mending.

Notation: losses are L-smooth (and μ-strongly convex in Theorem 4), so that f_k is (L+λ)-smooth;
p = q/m is the share of clients in a round.

Three slips in the printed proofs matter to anyone who takes a step size or a rate from them:

- With I_k the 0/1 indicator that client k is sampled, E[I_k²] is p; the proofs write p². For p = 1
  nothing changes. For small p and λ the printed step of Theorem 3 tends to 1/(pL), beyond the 2/L
  above which gradient descent diverges.
- Theorem 4 turns a sign. Smoothness gives f(after) − f(before) ≤ ((L+λ)η²/2 − η)·p·‖∇f‖², a
  *decrease* where the bracket is negative; the proof subtracts it. Its condition then needs c > 2,
  and so a step above 2/(L+λ).
- Theorem 4's rate has μ+λ, from strong convexity of f_k(·; w̃) with w̃ held still. But w̃ moves
  towards the models: in the direction in which all models move together the regulariser has no
  curvature, and μ alone drives the decay.

`step_size_strongly_convex` and `contraction_strongly_convex` are what can be proved in their place.
"""

from __future__ import annotations

from math import sqrt

from pmtl.errors import PmtlError


def step_size_theorem_3(smoothness: float, lam: float, rate: float) -> float:
    """η = 1 / (pL + (p + 1/p)λ), as printed, for L-smooth losses that need not be convex."""
    _check(smoothness, lam, rate)
    return 1 / (rate * smoothness + (rate + 1 / rate) * lam)


def step_size_theorem_4(
    smoothness: float, strong_convexity: float, lam: float, rate: float, target: float = 1.0
) -> float:
    """η = cp / (Lp² + λp² − 2λ) with c such that ηp(c−2)(μ+λ) = `target`, as printed.

    The theorem allows targets from 1/2 to 1. All need c > 2; see the note at the top before use.
    """
    _check(smoothness, lam, rate)
    denominator = (smoothness + lam) * rate**2 - 2 * lam
    if denominator <= 0 or not 0.5 <= target <= 1:
        raise PmtlError(
            "Theorem 4 as printed needs (L+λ)p² > 2λ and a target between 1/2 and 1: no step size "
            "satisfies its condition here. Use step_size_strongly_convex."
        )
    c = 1 + sqrt(1 + target * denominator / (rate**2 * (strong_convexity + lam)))
    return c * rate / denominator


def step_size_strongly_convex(smoothness: float, lam: float, c: float = 1.0) -> float:
    """η = c / (L + λ) with 0 < c < 2, for full participation, one local step and no noise.

    There w̃ is the mean of the models, and a round is a step of gradient descent on the joint
    objective F (equation 2), whose derivative by w_k is ∇loss_k(w_k) + λ(w_k − w̄). F is
    (L+λ)-smooth, so a step lowers it by at least η(1 − c/2)·‖∇F‖².
    """
    _check(smoothness, lam, rate=1)
    if not 0 < c < 2:
        raise PmtlError(f"The step contracts for 0 < c < 2 only, but c = {c} was given.")
    return c / (smoothness + lam)


def contraction_strongly_convex(
    smoothness: float, strong_convexity: float, lam: float, c: float = 1.0
) -> float:
    """1 − c(2−c)μ/(L+λ): what a round with that step leaves of F − F*, since ‖∇F‖² is at least
    2μ(F − F*) for a μ-strongly convex F."""
    eta = step_size_strongly_convex(smoothness, lam, c)
    return 1 - eta * (2 - c) * strong_convexity


def _check(smoothness: float, lam: float, rate: float) -> None:
    if not (smoothness > 0 and lam >= 0 and 0 < rate <= 1):
        raise PmtlError(
            f"The theorems need L > 0, λ ≥ 0 and 0 < p ≤ 1, but L = {smoothness}, λ = {lam}, "
            f"p = {rate} were given."
        )
