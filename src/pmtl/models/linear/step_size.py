"""The step size of shared weights: it grows while the clients' moves have the same direction.

In a round, clients move by at most a step C from the weights w, and u is the noisy mean of their
moves in units of C. If the best weights are large, nearly all moves are clipped: u shows the
direction, but not the distance. If w were already near the best weights, later moves would no
longer have the direction of earlier ones. So u is compared with the path w of earlier moves:

    a = ⟨u, w⟩/‖w‖                      what u adds along the path
    e = (‖w‖² − its noise)/(‖w‖ · L)    what earlier moves added on average; L is the sum of steps

The standard deviation of the noise in a is σ, however many weights there are. If a > 2σ and
a > 0.7 e, the moves continue as before: the path and C are doubled. Why 0.7: suppose that what
moves add falls by a constant factor from round to round. Then doubling goes too far if a < e/√2
(after two rounds) or a < e ln 2 (after many rounds), and 1/√2 and ln 2 are both near 0.7. Doubling
the path, and not only the next steps, gives all rounds the same weight, and so keeps the ratio of
signal and noise. C halves, to no less than at first, if the mean of the moves, less its noise, is
shorter than ¼. All of this uses published values only and costs no privacy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from torch import Tensor, where

#: A component counts if it exceeds this many standard deviations of its noise.
CLEAR = 2.0
#: The path is doubled if moves still add this part of what they added before.
AS_BEFORE = 0.7
#: C halves after a mean move shorter than this.
SHORT = 0.25


@dataclass(frozen=True)
class WeightPath:
    """Vectors of weights, and the steps that led to them.

    Args:
        weights: [vectors, shared numbers].
        step: C of the next round, [vectors].
        squares: the sum of the squares of all steps so far, [vectors]; times σ² it is the variance
            of each weight.
        length: the sum of all steps so far, [vectors].
    """

    weights: Tensor
    step: Tensor
    squares: Tensor
    length: Tensor

    def advance(self, move: Tensor, free: int, noise: float, first: float, last: bool) -> Self:
        """The path after one more round.

        Args:
            move: u, [vectors, shared numbers].
            free: how many of its numbers are free.
            noise: σ of each of them.
            first: the least step.
            last: whether this was the last round; then nothing is doubled.
        """
        squared = self.weights.square().sum(1)
        norm = squared.sqrt().clamp(min=1e-300)
        along = (move * self.weights).sum(1) / norm
        signal = (squared - free * noise**2 * self.squares).clamp(min=0)
        before = signal / (norm * self.length.clamp(min=1e-300))
        onward = (self.length > 0) & (along > CLEAR * noise) & (along > AS_BEFORE * before)
        onward = onward & (not last)
        factor = where(onward, 2.0, 1.0)
        agreed = (move.square().sum(1) - free * noise**2).clamp(min=0).sqrt()
        shorter = where(agreed < SHORT, self.step / 2, self.step).clamp(min=first)
        return type(self)(
            (self.weights + self.step[:, None] * move) * factor[:, None],
            where(onward, 2 * self.step, shorter),
            (self.squares + self.step.square()) * factor.square(),
            (self.length + self.step) * factor,
        )
