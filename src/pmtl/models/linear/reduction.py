"""Smaller problems with the same solution: fewer columns, fewer classes.

*Columns* that are 0 in all of a client's rows (words that it never uses) do not change its loss:
their weights stay at the centre, and only the other columns are needed.

*Classes* that a client has no rows of move together, by one common change δ; with U of them,

    f_rest = log Σ_rest exp(xᵀc_j) + xᵀδ,   penalty ½ U κ ‖δ‖²

is one class instead of U. Around centres that are the same for all of these classes (training
alone) this is exact, because the solution is unique and they can be exchanged. Otherwise it is the
solution of eq. 3 with one common change for all classes that the client has no rows of.
With v = √U δ the penalty is the same as for the other classes, and the logit's scale is 1/√U ≤ 1,
so that the bound of the curvature holds as before.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

#: Unused columns and classes are left out if there are at least MANY in all; columns only if at
#: most the share PART of them stays.
MANY, PART = 20, 0.7
#: The logit of a class that has no probability.
NEVER = -1e30


@dataclass(frozen=True)
class Columns:
    """The columns [K, A] that some row of a client uses, out of `all`."""

    index: Tensor
    all: int

    @classmethod
    def used(cls, x: Tensor) -> Columns | None:
        """The columns that are not 0 in all rows [K, n, d]; None where that saves little."""
        used = (x != 0).any(1)
        most = max(1, int(used.sum(1).max()))
        if x.shape[2] < MANY or most > PART * x.shape[2]:
            return None
        order = torch.argsort((~used).to(torch.int8), dim=1, stable=True)
        return cls(order[:, :most], x.shape[2])

    def rows(self, x: Tensor) -> Tensor:
        """[K, n, A] from [K, n, d]."""
        return torch.gather(x, 2, self.index.unsqueeze(1).expand(-1, x.shape[1], -1))

    def penalties(self, penalty: Tensor) -> Tensor:
        """[K, G, A] from [K or 1, G, d]."""
        wide = penalty.expand(len(self.index), -1, -1)
        return torch.gather(wide, 2, self.index.unsqueeze(1).expand(-1, wide.shape[1], -1))

    def weights(self, w: Tensor) -> Tensor:
        """[K, G, A, outputs] from [K or 1, G, d, outputs]."""
        wide = w.expand(len(self.index), -1, -1, -1)
        return torch.gather(wide, 2, self._place(wide))

    def restore(self, w: Tensor, centre: Tensor) -> Tensor:
        """All weights [K, G, d, outputs]: `w`, and the centre of the other columns."""
        wide = centre.expand(len(w), w.shape[1], -1, -1)
        return wide.scatter(2, self._place(w), w)

    def _place(self, w: Tensor) -> Tensor:
        return self.index[:, None, :, None].expand(-1, w.shape[1], -1, w.shape[3])


@dataclass(frozen=True)
class Classes:
    """The classes of a client's rows.

    Args:
        own: [K, outputs] whether a client has rows of a class.
        index: [K, S] its classes; where a client has fewer than S, others follow.
    """

    own: Tensor
    index: Tensor

    @classmethod
    def of(cls, y: Tensor) -> Classes | None:
        """The classes of rows [K, n, outputs]; None if there are few in all. (Whether classes move
        together must not depend on the other clients.)"""
        if y.shape[2] < MANY:
            return None
        own = (y != 0).any(1)
        order = torch.argsort((~own).to(torch.int8), dim=1, stable=True)
        return cls(own, order[:, : max(1, int(own.sum(1).max()))])

    @property
    def scale(self) -> Tensor:
        """[K, 1, 1, S + 1] what logits are multiplied by: 1, and 1/√U for the rest."""
        scale = torch.ones(len(self.own), self.index.shape[1] + 1, dtype=torch.float64)
        scale = scale.to(self.own.device)
        scale[:, -1] = 1 / (~self.own).sum(1).clamp(min=1).sqrt()
        return scale[:, None, None]

    def targets(self, y: Tensor) -> Tensor:
        """[K, n, S + 1] from [K, n, outputs]."""
        mine = torch.gather(y, 2, self.index.unsqueeze(1).expand(-1, y.shape[1], -1))
        return torch.cat([mine, torch.zeros_like(mine[..., :1])], 2)

    def offsets(self, outputs: Tensor) -> Tensor:
        """[K, G, n, S + 1] what is added to logits: log Σ exp of the rest at the centre, whose
        logits are `outputs` [K, G, n, outputs]. Other places get probability 0."""
        rest = outputs.masked_fill(self.own[:, None, None], NEVER).logsumexp(3, keepdim=True)
        places = torch.where(self._filled, 0.0, NEVER)[:, None, None].to(rest.dtype)
        return torch.cat([places.expand(*rest.shape[:3], -1), rest], 3)

    def centre(self, centre: Tensor) -> Tensor:
        """[K, G, d, S + 1] from [K or 1, G, d, outputs]: the rest begins with δ = 0."""
        mine = self._gather(centre.expand(len(self.own), -1, -1, -1))
        return torch.cat([mine, torch.zeros_like(mine[..., :1])], 3)

    def start(self, w: Tensor, centre: Tensor) -> Tensor:
        """[K, G, d, S + 1] from weights [K, G, d, outputs] that `restore` made before."""
        few = self.centre(centre)
        few[..., :-1] = torch.where(self._filled[:, None, None], self._gather(w), few[..., :-1])
        rest = torch.where(self.own[:, None, None], 0.0, w - centre).sum(3)
        few[..., -1] = rest * self.scale[..., -1]  # The mean of U changes, times √U.
        return few

    def restore(self, w: Tensor, centre: Tensor) -> Tensor:
        """All weights [K, G, d, outputs]."""
        moved = centre + (w * self.scale)[..., -1:]
        mine = torch.where(self._filled[:, None, None], w[..., :-1], self._gather(moved))
        return moved.scatter(3, self._place(moved), mine)

    @property
    def _filled(self) -> Tensor:
        """[K, S] whether a place holds a class of the client."""
        return torch.gather(self.own, 1, self.index)

    def _gather(self, w: Tensor) -> Tensor:
        return torch.gather(w, 3, self._place(w))

    def _place(self, w: Tensor) -> Tensor:
        return self.index[:, None, None].expand(-1, w.shape[1], w.shape[2], -1)
