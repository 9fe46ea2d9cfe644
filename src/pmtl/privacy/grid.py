"""The hardened gate's arithmetic: whole numbers only, between the clip and the release.

With floating-point numbers "the sum plus Gaussian noise" is not quite what the theorem is about:
the noise has holes, sums are rounded, and which numbers can come out at all depends on what went in
(Mironov 2012). On a grid of whole numbers nothing is rounded. With steps of length h = γ/2ᵇ:

- a clipped upload is cut, coordinate by coordinate and towards zero, to multiples n·h. Cutting
  never lengthens a vector, and ‖n‖² ≤ 4ᵇ is checked in integers: the sensitivity is a fact;
- sums of integers are exact;
- the noise is N(0, (zh)²) rounded to the grid, drawn exactly (`noise.rounded`). For an integer s,
  s + round(x) = round(s + x): what is published is a true Gaussian mechanism on the sum, rounded
  afterwards. So ε is the Gaussian's own, for every way of sampling.

b is as large as keeps the noise within 2²⁶ steps, at most 24: what cutting loses is then a few
millionths of the noise.
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
    """Whole steps of one length; uploads are at most 2ᵇ of them long."""

    step: float  #: h, what one step stands for
    bits: int  #: b
    noise: float  #: the noise's standard deviation on the sum, in steps

    @classmethod
    def of(cls, plan: PrivacyPlan) -> Grid:
        """The grid for a plan; it depends on nothing else."""
        if not plan.private:
            raise PmtlError(
                "Hardened noise needs noise and a finite clip norm, and this plan is not private: "
                "leave hardened out."
            )
        z = plan.noise_multiplier
        bits = min(_MOST_BITS, _MOST_NOISE_BITS - math.ceil(math.log2(z)))
        if bits < 1:
            raise PmtlError(
                f"With a noise multiplier of {z:.3g} no grid has room for both the noise and an "
                "upload: nothing would be learned. Use less noise."
            )
        return cls(plan.clip_norm * 2.0**-bits, bits, z * 2.0**bits)

    def snap(self, clipped: Tensor) -> Tensor:
        """Clipped rows `[K, P]` as whole steps; a row that is too long all the same counts as
        zero."""
        lengths = clipped / self.step
        # Roughly first, and not-a-number never passes: else the integers below might overflow.
        sound = lengths.square().sum(dim=1, keepdim=True) < 2 * 4**self.bits
        steps = torch.where(sound, lengths, 0.0).trunc().to(torch.int64)
        squares = steps.square().sum(dim=1, keepdim=True)
        return torch.where(squares <= 4**self.bits, steps, 0)


@dataclass(frozen=True)
class GridNoise:
    """Noise for a hardened gate: exact, in whole steps of a plan's grid."""

    grid: Grid
    source: Source
    device: torch.device = CPU  #: where it is wanted

    def __call__(self, round: int, shape: tuple[int, ...]) -> Tensor:
        return rounded(self.source(round), shape, self.grid.noise, self.device)
