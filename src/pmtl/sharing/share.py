"""The kinds of maps between the shared numbers and a model's vector
(`algorithms/default/shared_part.py` has their interface).

Either some weights are shared and the others are personal (`Chosen`), or all weights move along a
few public directions from the common start, and p is empty (`Directions`, `Basis`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pmtl.algorithms.default.shared_part import Share as Share
from pmtl.models import Layout
from pmtl.models.layout import Parameter


@dataclass(frozen=True, eq=False)
class Chosen(Share):
    """Some weights are shared as they are; the others are personal."""

    chosen: Tensor  #: [k] the places of the shared weights
    others: Tensor  #: [personal_size] the places of the personal weights
    places: Tensor  #: [P] for each weight, its place in (s, p)
    start: Tensor  #: [personal_size] the personal weights of the common start

    @classmethod
    def of(cls, layout: Layout, mask: Tensor, start: Tensor) -> Chosen:
        """Share the parameters where `mask` [P] is true; `start` [P] is the common start."""
        chosen, others = torch.nonzero(mask)[:, 0], torch.nonzero(~mask)[:, 0]
        places = torch.argsort(torch.cat([chosen, others]))
        parts, first = [], 0
        for parameter in layout.parameters:
            if bool(mask[parameter.place].any()):
                parts.append(Parameter(parameter.name, parameter.shape, first))
                first += parameter.size
        inner = Layout(tuple(parts), (), layout.traits)
        return cls(inner, chosen, others, places, start[others])

    @property
    def personal_size(self) -> int:
        return len(self.others)

    def first(self, common: Tensor) -> Tensor:
        return common[self.chosen]

    def own(self, common: Tensor) -> Tensor:
        return common[self.others]

    def join(self, s: Tensor, p: Tensor) -> Tensor:
        # Without personal numbers there is nothing to concatenate.
        return (torch.cat([s, p]) if self.personal_size else s)[self.places]

    def pull_back(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient[self.chosen], gradient[self.others]

    def published(self, shared: Tensor) -> Tensor:
        return torch.stack([self.join(s, self.start) for s in shared])


@dataclass(frozen=True, eq=False)
class _Along(Share):
    """All weights move along k public directions: w = w⁰ + B s, from s = 0."""

    start: Tensor  #: [P] w⁰, the common start

    @property
    def personal_size(self) -> int:
        return 0

    def first(self, common: Tensor) -> Tensor:
        return common.new_zeros(self.size)

    def own(self, common: Tensor) -> Tensor:
        return common[:0]

    def published(self, shared: Tensor) -> Tensor:
        return torch.stack([self.join(s, s[:0]) for s in shared])


@dataclass(frozen=True, eq=False)
class Directions(_Along):
    """Directions that share no weight: row i of B has one number, `scale[i]`, in column
    `direction[i]`. So B needs as much memory as one vector."""

    direction: Tensor  #: [P]
    scale: Tensor  #: [P] 0 for weights that do not move
    members: tuple[Tensor, ...]  #: [n, length] the weights of n directions; P stands for none
    order: Tensor  #: [k] where each direction is, in the order of `members`

    @classmethod
    def of(cls, layout: Layout, start: Tensor, direction: Tensor, scale: Tensor) -> Directions:
        """B from its columns and numbers; a `scale` of 0 means that a weight does not move."""
        moves = torch.nonzero(scale)[:, 0]
        moves = moves[torch.argsort(direction[moves], stable=True)]
        counts = torch.bincount(direction[moves])
        # Directions of similar length are summed together, so that there is little padding.
        lengths = 2 ** torch.ceil(torch.log2(counts.double())).long()
        begins = torch.cumsum(counts, 0) - counts
        members, order = [], []
        for length in torch.unique(lengths).tolist():
            alike = torch.nonzero(lengths == length)[:, 0]
            place = torch.arange(length)
            filled = place < counts[alike, None]
            index = begins[alike, None] + torch.where(filled, place, 0)
            members.append(torch.where(filled, moves[index], len(start)))
            order.append(alike)
        return cls(
            _plain(layout, len(counts)),
            start,
            torch.where(scale == 0, 0, direction),
            scale,
            tuple(members),
            torch.argsort(torch.cat(order)),
        )

    def join(self, s: Tensor, p: Tensor) -> Tensor:
        return self.start + self.scale * s[self.direction]

    def pull_back(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        pulled = torch.cat([self.scale * gradient, gradient.new_zeros(1)])
        # Sums over rows of fixed length, whose order is repeatable on every device.
        sums = [pulled[index].sum(dim=1) for index in self.members]
        return torch.cat(sums)[self.order], gradient[:0]


@dataclass(frozen=True, eq=False)
class Basis(_Along):
    """Any orthonormal directions."""

    rows: Tensor  #: [k, P] the directions

    @classmethod
    def of(cls, layout: Layout, start: Tensor, rows: Tensor) -> Basis:
        """The span of `rows`, which are orthonormal."""
        # A copy, because the last bits of a product may depend on the address in memory.
        return cls(_plain(layout, len(rows)), start, rows.clone())

    def join(self, s: Tensor, p: Tensor) -> Tensor:
        return self.start + s @ self.rows

    def pull_back(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return self.rows @ gradient, gradient[:0]


def _plain(layout: Layout, size: int) -> Layout:
    """The layout of a vector without parts."""
    return Layout((Parameter("directions", (size,), 0),), (), layout.traits)
