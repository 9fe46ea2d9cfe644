"""Noise in shares: every site adds a part, so that no party knows the whole noise.

A share is N(0, s²) rounded to whole steps of the grid, drawn exactly (`noise.rounded`). N sites
take part, and up to c of them may collude with the server: they subtract their own shares. The
other n = N − c shares remain, with s = z·2ᵇ/√n steps, where z is the plan's noise multiplier and 2ᵇ
steps the longest upload.

*Privacy of the sum* (docs/secure-aggregation.md has the proof, step by step). Let X₁ … Xₙ be the
unrounded shares and U₁ … Uₙ independent and uniform on [−½, ½]. Rounding X gives k with the
probability that is the density of X + U at k. The sum of the rounded shares therefore has the
characteristic function (Σⱼ γ(t + 2πj))ⁿ, where γ is the characteristic function of
X + U. The rounded value of
ΣX + U₁ + … + Uₙ₋₁ has Σⱼ γ(t + 2πj)ⁿ. For |t| ≤ π the two differ only by terms with j ≠ 0, of at
most e^(−π²s²/2). So up to a total variation distance that `log10_distance` bounds, the adversary
sees S + ΣX with further independent noise, rounded: a true Gaussian mechanism with multiplier z,
processed further. ε is that of the plan. With s ≥ 32 and up to 1,000 sites the distance is below
10⁻¹⁸⁰⁰.

Outsiders, for whom all N shares are noise, see a larger multiplier of z·√(N/n).
"""

from __future__ import annotations

import math

from pmtl.errors import PublicError
from pmtl.privacy.accounting.distributed import LEAST_SHARE
from pmtl.privacy.grid import Grid

#: Noise is refused unless the proof's distance is below 10^−400 for this many numbers.
_MOST_NUMBERS, _LEAST_DIGITS = 10**9, 400


def default_colluders(sites: int) -> int:
    """A third of the sites, rounded down."""
    return sites // 3


def least_sites(colluders: int) -> int:
    """How many sites an attempt needs if `colluders` of them may collude with the server."""
    return max(2, colluders + 1)


def scale(grid: Grid, sites: int, colluders: int) -> float:
    """s, the standard deviation of one share in steps, with N `sites` of which c `colluders` may
    collude with the server."""
    if colluders < 0 or sites < least_sites(colluders):
        against = "1 colluding site" if colluders == 1 else f"{colluders} colluding sites"
        raise PublicError(
            f"Secure aggregation against {against} is not possible with {sites}: it needs two "
            "sites or more, and one that does not collude."
        )
    share = grid.noise / math.sqrt(sites - colluders)
    if share < LEAST_SHARE:
        raise PublicError(
            f"A share of the noise would be {share:.3g} steps of the grid, and {LEAST_SHARE:g} are "
            "needed: use more noise (a smaller ε) or fewer sites."
        )
    if log10_distance(share, sites, _MOST_NUMBERS) > -_LEAST_DIGITS:
        raise PublicError(f"The proof of secure aggregation does not cover {sites} sites.")
    return share


def log10_distance(scale: float, sites: int, numbers: int) -> float:
    """The logarithm (base 10) of a bound on the total variation distance in the proof above, for
    `numbers` released numbers.

    For one number: |pmf − pmf'| ≤ B = 2ⁿ⁺¹·4·e^(−π²s²/2) everywhere, since each factor
    Σⱼ γ(t + 2πj) is within 4·e^(−π²s²/2) of γ(t), and |γ| ≤ 1. Over |k| ≤ K = 8ns² that sums to at
    most (2K + 1)·B, and both have less than 2n·e^(−K²/(4ns²)) beyond.
    """
    log_b = (sites + 3) * math.log(2) - math.pi**2 * scale**2 / 2
    reach = 8 * sites * scale**2
    inside = math.log(2 * reach + 1) + log_b
    outside = math.log(4 * sites) - reach**2 / (4 * sites * scale**2)
    return (max(inside, outside) + math.log(2) + math.log(numbers)) / math.log(10)
