"""The arithmetic of the hardened gate: whole numbers only, between the clip and the release.

In floating point, "the sum plus Gaussian noise" is rounded, and which numbers can come out depends
on the data (Mironov 2012). With whole steps of length h = γ/2ᵇ nothing is rounded:

- a clipped upload is truncated towards zero to multiples n·h. This never lengthens a vector, and
  ‖n‖² ≤ 4ᵇ is checked in integers;
- sums of integers are exact;
- the noise is N(0, (zh)²) rounded to the grid, drawn exactly (`noise.rounded`). For an integer s,
  s + round(x) = round(s + x): the release is a true Gaussian mechanism on the sum, rounded
  afterwards. So ε is the ε of the Gaussian mechanism, for every way of sampling.

b is at most 24, and the noise stays within 2²⁶ steps: truncation loses millionths of the noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pmtl.errors import PmtlError
from pmtl.privacy.noise import CPU, Source, rounded
from pmtl.privacy.plan import PrivacyPlan

_MOST_BITS, _MOST_NOISE_BITS = 24, 26


@dataclass(frozen=True)
class Grid:
    """A grid with step length h. An upload is at most 2ᵇ steps long."""

    step: float  #: h, the length of one step
    bits: int  #: b
    noise: float  #: the noise's standard deviation on the sum, in steps

    @classmethod
    def of(cls, plan: PrivacyPlan) -> Grid:
        """The grid for a plan."""
        if not plan.private:
            raise PmtlError(
                "Hardened noise needs noise and a finite clip norm, and this plan is not private: "
                "leave hardened out."
            )
        z = plan.noise_multiplier
        bits = min(_MOST_BITS, _MOST_NOISE_BITS - math.ceil(math.log2(z)))
        if bits < 1:
            raise PmtlError(
                f"With a noise multiplier of {z:.3g} no grid can hold both the noise and an "
                "upload: nothing would be learned. Use less noise."
            )
        return cls(plan.clip_norm * 2.0**-bits, bits, z * 2.0**bits)

    def snap(self, clipped: Tensor) -> Tensor:
        """Clipped rows `[K, P]` as whole steps; a row that is still too long counts as zero."""
        lengths = clipped / self.step
        # A rough check first, which NaN never passes: otherwise the integers could overflow.
        sound = lengths.square().sum(dim=1, keepdim=True) < 2 * 4**self.bits
        steps = torch.where(sound, lengths, 0.0).trunc().to(torch.int64)
        squares = steps.square().sum(dim=1, keepdim=True)
        return torch.where(squares <= 4**self.bits, steps, 0)

    def keep_short(self, steps: Tensor, uploads: int = 1) -> Tensor:
        """Rows `[K, P]` of steps. A row longer than `uploads` clipped uploads counts as zero."""
        most = uploads * 2**self.bits
        # A rough check first: otherwise the integers could overflow.
        rough = steps.double().square().sum(dim=1, keepdim=True)
        steps = torch.where(rough <= most**2 * (1 + 1e-9), steps, 0)
        if 2 * most**2 >= 2**63:  # A sum of many uploads, which is bounded only roughly.
            return steps
        squares = steps.square().sum(dim=1, keepdim=True)
        return torch.where(squares <= most**2, steps, 0)


@dataclass(frozen=True)
class GridNoise:
    """Noise for a hardened gate: exact, in whole steps of a plan's grid."""

    grid: Grid
    source: Source
    device: torch.device = CPU  #: where the noise is needed

    def __call__(self, round: int, shape: tuple[int, ...]) -> Tensor:
        return rounded(self.source(round), shape, self.grid.noise, self.device)
