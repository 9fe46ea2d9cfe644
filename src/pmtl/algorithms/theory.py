"""The step sizes of the paper's convergence theorems, and where they need mending.

Notation: losses are L-smooth (and μ-strongly convex in Theorem 4), so that f_k is (L+λ)-smooth;
p = q/m is the share of clients in a round.

Two slips in the printed proofs matter to anyone who takes a step size from them:

- With I_k the 0/1 indicator that client k is sampled, E[I_k²] is p; the proofs write p². For p = 1
  nothing changes. For small p and λ the printed step of Theorem 3 tends to 1/(pL), beyond the 2/L
  above which gradient descent diverges.
- Theorem 4 turns a sign. Smoothness gives f(after) − f(before) ≤ ((L+λ)η²/2 − η)·p·‖∇f‖², a
  *decrease* where the bracket is negative; the proof subtracts it. Its condition then needs c > 2,
  and so a step above 2/(L+λ).

`step_size_strongly_convex` is the same argument with both mended.
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


def step_size_strongly_convex(smoothness: float, lam: float, rate: float, c: float = 1.0) -> float:
    """η = c / (L + λ + 2λ/p²) with 0 < c < 2: Theorem 4 with its two slips mended.

    One iteration changes the excess objective Δ (summed over clients) by at most
    ((L+λ)pη²/2 + λη²/p − ηp)·Σ‖∇f_k‖² plus the noise; λη²/p is the published mean moving. The
    bracket is −ηp(2−c)/2 with this η, and strong convexity turns Σ‖∇f_k‖² into 2(μ+λ)Δ.
    """
    _check(smoothness, lam, rate)
    if not 0 < c < 2:
        raise PmtlError(f"The step contracts for 0 < c < 2 only, but c = {c} was given.")
    return c / (smoothness + lam + 2 * lam / rate**2)


def contraction_strongly_convex(
    smoothness: float, strong_convexity: float, lam: float, rate: float, c: float = 1.0
) -> float:
    """1 − ηp(2−c)(μ+λ): what one iteration with that step leaves of the excess objective."""
    eta = step_size_strongly_convex(smoothness, lam, rate, c)
    return 1 - eta * rate * (2 - c) * (strong_convexity + lam)


def _check(smoothness: float, lam: float, rate: float) -> None:
    if not (smoothness > 0 and lam >= 0 and 0 < rate <= 1):
        raise PmtlError(
            f"The theorems need L > 0, λ ≥ 0 and 0 < p ≤ 1, but L = {smoothness}, λ = {lam}, "
            f"p = {rate} were given."
        )
