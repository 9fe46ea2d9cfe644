"""Pooling: the default method for linear models. Few releases, exact personal models, no tuning.

The model of client k is the exact solution of the paper's equation 3 around shared weights w̃,

    W_k(w̃; κ) = argmin_W  Σ_rows loss(xᵀW, y) + ½ Σ_j κ_j ‖W_j − w̃_j‖²   (models/linear/solve.py)

with κ₀ for the intercept and κ₁ for the slopes. λ of the paper is κ/n_k: a prior that counts like κ
rows. This is partial pooling (Gelman & Hill 2007, chapter 12): κ = 0 is training alone, κ = ∞ one
model for all. w̃ and training alone begin at zero, or at a public head. Everything that is shared
passes the gate, in T releases of equal cost:

1. *Target* (numbers without public bounds, 2 releases): the clients' votes for the size of the
   target, as a power of two, and for its level.
   If there are far too many weights (words, hundreds of classes), there is one more release: how
   much clients use each column and class. Only the most used weights are then shared
   (models/linear/frequent.py). If a public head has too many weights, a map of its answers is
   shared instead (models/linear/public_answers.py).
2. *Rounds* (8 releases): w̃ ← w̃ + C · mean_k clip₁((W_k(w̃; κ) − w̃)/C) + noise. C · rounds is how
   far w̃ moves at first (`reach`); it is larger if there is less noise. While the moves of a round
   still have the direction of earlier ones, w̃ and C are doubled (models/linear/step_size.py).
3. *Vote* (3 releases of one vector, averaged): client k's mean held-out loss in nats for each of 12
   cells: penalties from "the shared weights as they are" to "almost free", and training alone.
   Each client subtracts its mean over the cells.

Client k takes the mean of its solutions in all cells with weights proportional to

    exp(−n_k · (own held-out loss) − A · (published loss))           (models/linear/candidates.py)

so the vote counts like A more rows. The known noise is taken into account: the published losses are
shrunk towards zero (James & Stein 1961), training alone is preferred if they are mostly noise, and
no penalty is stronger than the precision of w̃.

Privacy: every release is the mean over all clients of a vector of norm at most 1, with Gaussian
noise, so T releases are one `PrivacyPlan` of T rounds, also where a release depends on earlier
ones (adaptive composition of Gaussian mechanisms: Dong, Roth & Su 2022). Scales, held-out losses
and the weights of cells stay in the client. W_k depends on the client's own rows and on published
values only, which is billboard privacy (Hsu et al. 2014, lemma 1; the paper's theorem 2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pmtl.algorithms.default.pooling_base import PoolingBase
from pmtl.models import Layout
from pmtl.models.linear import candidates
from pmtl.models.linear.frequent import most_used, share_norm, use_votes
from pmtl.models.linear.public_answers import (
    answers_as_features,
    as_weights,
    directions,
    first_map,
)
from pmtl.models.linear.solve import ClientRows, solve
from pmtl.models.linear.step_size import WeightPath
from pmtl.models.linear.target import level_votes, scaled_rows, size_votes

#: The penalties in the rounds, for numbers and for classes. A client with one class only would move
#: an almost free intercept as far as it can.
NUMBERS, CLASSES = (0.3, 3.0), (1.0, 3.0)


@dataclass(frozen=True)
class Pooling(PoolingBase):
    """Partial pooling of linear models; `resolve` decides everything from public numbers.

    Args:
        rounds, votes, target, noise: see `VotingAlgorithm`.
        share, reach: see `PoolingBase`.
    """

    name: ClassVar[str] = "pooling"

    # ---- the billboard: shared weights, size and level of the target, vote ----

    def billboard_size(self, layout: Layout) -> int:
        return sum(self._sections)

    @property
    def _sections(self) -> list[int]:
        """How many numbers each part of the billboard has."""
        columns, outputs = self._sizes.columns, self._sizes.outputs
        shared_extra = {"frequent": self._used, "answers": self._shared_size}.get(self.share, 0)
        return [columns * outputs, 2 * outputs, candidates.CELLS, 2, shared_extra]

    def billboard_start(self, common: Tensor) -> Tensor:
        billboard = common.new_zeros(sum(self._sections))
        if self.begins_at_start:
            head = self.from_vector(common)
            billboard[: self._sections[0]] = head.flatten()
            if self.share == "answers":
                billboard[-self._shared_size :] = first_map(self._sizes.task, head).flatten()
        billboard[sum(self._sections[:3])] = self._first_step
        return billboard

    def _read(self, billboard: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """From [K, B]: weights [K, d, outputs], size and level [K, 2, outputs], vote [K, cells],
        C and the sum of its squares so far [K, 2]; and what is used [K, columns + outputs], or the
        map of a public head's answers [K, (outputs + 1) · outputs], or nothing."""
        columns, outputs = self._sizes.columns, self._sizes.outputs
        weights, target, vote, steps, shared_extra = torch.split(
            billboard.double(), self._sections, dim=1
        )
        target = self._target(target.reshape(-1, 2, outputs))
        return weights.reshape(-1, columns, outputs), target, vote, steps, shared_extra

    def places(self, use: Tensor) -> Tensor:
        """The places of the shared weights in [d · outputs]."""
        columns, outputs = self._sizes.columns, self._sizes.outputs
        places = torch.arange(outputs * (columns if self.share == "all" else 1), device=use.device)
        if self.share == "frequent":
            alike = self._sizes.task == "regression"
            places = torch.cat([places, most_used(use, outputs, self.frequent, alike)])
        return places

    # ---- inside clients ----

    def compute_uploads(self, rows: ClientRows, billboard: Tensor, round: int) -> Tensor:
        weights, target, _, steps, shared_extra = self._read(billboard)
        stage = self.stage(round)
        if stage == "use":
            return use_votes(rows)
        if stage == "size":
            return size_votes(rows)
        if stage == "level":
            return level_votes(rows, target[:, 0])
        scaled, _, _ = scaled_rows(rows, target[:, 0], target[:, 1], self.target != "given")
        if stage == "weights":
            if self.share == "answers":
                weights = shared_extra.reshape(len(shared_extra), -1, self._sizes.outputs)
                scaled = answers_as_features(scaled)
            penalty = self._penalties([NUMBERS if rows.task == "regression" else CLASSES], scaled)
            solved = solve(scaled, weights.unsqueeze(1), penalty, until=(100, 1e-3))
            moved = (solved[:, 0] - weights).flatten(1) / steps[:, :1]
            moved = moved if self.share == "answers" else moved[:, self.places(shared_extra)]
            return share_norm(moved, self._sizes.outputs) if self.frequent else moved
        _, losses, held = candidates.held_out(scaled, *self._grid(weights, rows, steps))
        losses, _ = candidates.own_losses(losses, held, rows)
        return self._vote_upload(losses, rows)

    def finish(self, rows: ClientRows, billboard: Tensor) -> Tensor:
        weights, target, vote, steps, _ = self._read(billboard)
        scaled, size, level = scaled_rows(rows, target[:, 0], target[:, 1], self.target != "given")
        centre, penalty = self._grid(weights, rows, steps)
        found, losses, held = candidates.held_out(scaled, centre, penalty)
        losses, alone_parts = candidates.own_losses(losses, held, rows)
        parts = candidates.choose(losses, held, vote, self._vote_noise)
        split = len(candidates.AROUND)
        parts, order = candidates.without_small(parts)
        pooled = solve(
            scaled,
            candidates.take(centre, order),
            candidates.take(penalty, order),
            start=candidates.take(found, order),
        )
        # Solved separately and from the start, so that it does not depend on published values.
        alone = candidates.mixture(
            solve(scaled, centre[:, split:], penalty[:, split:]), alone_parts
        )
        used = torch.cat([candidates.take(parts, order), parts[:, -1:]], 1)
        personal = candidates.mixture(torch.cat([pooled, alone.unsqueeze(1)], 1), used)
        models = [_unscaled(model, size, level) for model in (personal, alone)]
        return torch.cat([self.to_vector(model) for model in models], 1)

    def _grid(self, weights: Tensor, rows: ClientRows, steps: Tensor) -> tuple[Tensor, Tensor]:
        """The centres [K, cells, d, outputs] and the penalties [K or 1, cells, d] of all cells."""
        uncertainty = (self.noise**2 * steps[:, 1] / 2)[:, None, None]
        if self.share == "answers" and rows.start is not None:
            lengths = directions(rows.task, rows.start).square().sum(1)
            uncertainty = uncertainty * torch.cat([torch.ones_like(lengths[:1]), lengths])
        pooled = 1 / (1 / self._penalties(candidates.AROUND, rows) + uncertainty)
        pairs = candidates.alone_penalties(rows.task, self._sizes.outputs)
        alone = self._penalties(pairs, rows).expand(len(pooled), -1, -1)
        firsts = [torch.zeros_like(weights)]
        if self.begins_at_start and rows.start is not None:  # Zeros may suit a client better.
            firsts.append(firsts[0] + rows.start)
        centres = [weights] * len(candidates.AROUND)
        centres += [first for first in firsts for _ in pairs]
        penalty = torch.cat([pooled, *[alone] * len(firsts)], 1)
        return torch.stack(centres, 1), penalty

    def _penalties(self, pairs: list[tuple[float, float]], rows: ClientRows) -> Tensor:
        """[K or 1, cells, d]. Penalties of classes are doubled: the difference of two opposite
        classes has half of the penalty that each of them has. Between wide bounds a feature varies
        little: there, penalties are in units of each client's own deviations. Words, which most
        rows do not have, have penalties of their own."""
        table = rows.x.new_tensor(pairs)
        every = table[:, 1:].expand(-1, rows.x.shape[2]).clone()
        every[:, 0] = table[:, 0]
        every = every.unsqueeze(0) * (2.0 if self._sizes.task == "classification" else 1.0)
        units = (
            candidates.variances(rows) if self._sizes.bounded else candidates.units_of_words(rows)
        )
        return every * units.unsqueeze(1)

    def to_vector(self, weights: Tensor) -> Tensor:
        """From [K, d, outputs], intercept first, to the layer's vector [K, P]."""
        slopes = (weights[:, 1:] * self._sizes.factor).transpose(1, 2)
        return torch.cat([slopes.flatten(1), weights[:, 0]], 1)

    def from_vector(self, vector: Tensor) -> Tensor:
        """From the layer's vector [P] to [d, outputs]."""
        slopes, intercepts = vector[: -self._sizes.outputs], vector[-self._sizes.outputs :]
        slopes = slopes.reshape(self._sizes.outputs, -1).T / self._sizes.factor
        return torch.cat([intercepts.unsqueeze(0), slopes])

    # ---- at the server ----

    def server_start(self, shared: Tensor) -> dict[str, Tensor]:
        zero = torch.zeros(1, dtype=torch.float64, device=shared.device)
        memory = {"round": zero, "length": zero.clone()}
        return memory | ({"start": self._read(shared)[0]} if self.begins_at_start else {})

    def server_step(
        self, shared: Tensor, update: Tensor, memory: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        round = int(memory["round"])
        weights, target, vote, steps, shared_extra = (part.clone() for part in self._read(shared))
        target, vote = self._after_release(round, update, target, vote)
        length = memory["length"]
        if self.stage(round) == "use":
            shared_extra = update.to(shared_extra.dtype)
        if self.stage(round) == "weights":
            last = round + 1 == self._first_releases + self.rounds and self.share != "frequent"
            now, begun = self._shared_numbers(weights, shared_extra, memory)
            path = WeightPath(now - begun, steps[:, 0], steps[:, 1], memory["length"])
            path = path.advance(*self._free(update), self.noise, self._first_step, last)
            steps, length = torch.stack([path.step, path.squares], 1), path.length
            weights, shared_extra = self._placed(
                path.weights + begun, weights, shared_extra, memory
            )
        parts = [weights.flatten(1), target.flatten(1), vote, steps, shared_extra]
        return torch.cat(parts, 1), {**memory, "round": memory["round"] + 1, "length": length}

    def _shared_numbers(
        self, weights: Tensor, shared_extra: Tensor, memory: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The shared numbers [1, shared], and their first values."""
        if self.share == "answers":
            return shared_extra, first_map(self._sizes.task, memory["start"]).flatten(1)
        places = self.places(shared_extra)
        begun = memory.get("start", torch.zeros_like(weights))
        return weights.flatten(1)[:, places], begun.flatten(1)[:, places]

    def _placed(
        self, shared: Tensor, weights: Tensor, shared_extra: Tensor, memory: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The weights [1, d, outputs] with these shared numbers, and the end of the billboard."""
        if self.share == "answers":
            map = shared.reshape(len(shared), -1, self._sizes.outputs)
            return as_weights(self._sizes.task, memory["start"], map), shared
        flat = weights.flatten(1)
        flat[:, self.places(shared_extra)] = shared
        return flat.view_as(weights), shared_extra

    def _free(self, update: Tensor) -> tuple[Tensor, int]:
        """The update without its mean over classes, which has no effect on probabilities, and how
        many independent numbers are left."""
        if self._sizes.task != "classification" or self.share == "frequent":
            return update, update.shape[1]
        moved = update.reshape(len(update), -1, self._sizes.outputs)
        moved = moved - moved.mean(2, keepdim=True)
        return moved.flatten(1), update.shape[1] - moved.shape[1]

    @property
    def _first_step(self) -> float:
        """C in the first rounds: C · rounds = reach. Weights of two opposite classes move by half
        of their difference."""
        reach = self.reach / (math.sqrt(2) if self._sizes.task == "classification" else 1.0)
        return reach / self.rounds

    def published(self, shared: Tensor) -> Tensor:
        weights, target, _, _, _ = self._read(shared)
        if self._sizes.task == "regression":
            size = torch.where(target[:, 0] > 0, target[:, 0], 1.0)
            weights = _unscaled(weights, size, target[:, 0] * target[:, 1])
        return self.to_vector(weights).to(shared.dtype)


def _unscaled(weights: Tensor, size: Tensor, level: Tensor) -> Tensor:
    """Weights [K, d, outputs] in the target's own units."""
    weights = weights * size.unsqueeze(1)
    weights[:, 0] += level
    return weights
