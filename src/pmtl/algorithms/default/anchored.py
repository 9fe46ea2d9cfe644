"""Anchored: the default method for networks. Few releases, personal models around shared weights.

The model of client k solves the paper's equation 3 around a centre c, by steps that adapt
(models/network/train.py):

    w_k(c; κ) ≈ argmin_w  Σ_rows loss(f(x; w), y) + ½ κ ‖w − c‖²

λ of the paper is κ/n_k: the centre counts like κ rows. Everything that is shared passes the gate,
in T releases of equal cost:

1. *Target* (numbers without public bounds, 2 releases): as in pooling.
2. *Rounds* (8 releases): w̃ ← w̃ + C · mean_k clip₁((w_k(w̃; 10) − w̃)/C) + noise, from the common
   start w⁰: FedAvg (McMahan et al., AISTATS 2017) with few, adaptive local steps.
3. *Vote* (3 releases of one vector, averaged): client k's mean held-out loss in nats for each of 12
   cells: w̃ as it is, w_k(w̃; κ) for five κ, and the same six around w⁰, which is training alone.

C · rounds is how far w̃ can move: at most the norm of w⁰, or less, so that the norm of the noise in
w̃ is at most the norm of w⁰: a random start plus such noise is still a random start. With a public
start, at most a fifth of its norm is allowed. Client k takes the cell with the least n_k · (own
held-out loss) + A · (published loss), with a correction for noise like pooling's
(models/network/candidates.py). Votes are clipped, so each client multiplies the published vote by
the norm that its own vote had before clipping. Training alone is one of the cells.

Privacy: every release is the mean over all clients of a vector of norm at most 1, with Gaussian
noise: one `PrivacyPlan` of T rounds (adaptive composition of Gaussian mechanisms: Dong, Roth & Su
2022). Held-out losses, the choice of a cell and the final training stay in the client, which is
billboard privacy (Hsu et al. 2014, lemma 1; the paper's theorem 2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, cast

import torch
from torch import Tensor

from pmtl.algorithms.default.exact import Sizes
from pmtl.algorithms.default.shared_part import Share
from pmtl.algorithms.default.voting import VotingAlgorithm
from pmtl.errors import PmtlError
from pmtl.models import FlatModel, Layout
from pmtl.models.linear.solve import ClientRows
from pmtl.models.linear.target import BINS, level_votes, scaled_rows, size_votes
from pmtl.models.network.candidates import CELLS, PENALTIES, WORST, choose, in_nats, pick
from pmtl.models.network.rows import Network, NetworkRows, in_target_units
from pmtl.models.network.train import held_out, held_out_losses, train_path

#: The penalty and the steps of a round.
ROUND_PENALTY, ROUND_STEPS = 10.0, 10
#: How far the shared weights may move in all rounds, and the norm of the noise in them, both in
#: units of the start's norm: for a random start, and for a public start or a part of the weights.
REACH, NOISE, NOISE_OF_PUBLIC = 0.8, 1.0, 0.2
#: The smallest dimension of a random subspace. A subspace is used if the model has more than 4
#: times as many weights as the subspace has dimensions.
LEAST_SHARED, WEIGHTS_PER_DIMENSION = 50, 4


@dataclass(frozen=True)
class Anchored(VotingAlgorithm):
    """Personal networks around shared weights; `resolve` decides everything from public numbers.

    Args:
        rounds, votes, target, noise: see `VotingAlgorithm`. The target is also "none" if the
            last layer is not linear.
    """

    name: ClassVar[str] = "anchored"
    shares_parts: ClassVar[bool] = True
    uses_start: ClassVar[bool] = True
    uses_last_upload: ClassVar[bool] = True

    part: Share | None = field(default=None, repr=False, metadata={"derived": True})

    # ---- decided before anything is spent, from public numbers ----

    def resolve(self, sizes: Sizes, strength: float) -> Anchored:
        scaled = sizes.task == "regression" and self.target not in ("auto", "none")
        if scaled and sizes.last is None:
            raise PmtlError(
                f"anchored:target={self.target} needs a network whose last layer is linear, has a "
                "bias and is trained: use target=none."
            )
        unscaled = sizes.last is None or sizes.public_start
        return self._with_target(sizes, strength, "none" if unscaled else "auto")

    def with_part(self, part: Share) -> Anchored:
        return replace(self, part=part)

    def to(self, device: torch.device, dtype: torch.dtype) -> Anchored:
        return self if self.part is None else replace(self, part=self.part.to(device, dtype))

    def reader(self, model: FlatModel, input_shape: tuple[int, ...]) -> Network:
        return Network.of(model, input_shape)

    @property
    def in_words(self) -> str:
        return (
            f"{self._target_in_words}{self.rounds} for the shared weights, {self.votes} for a vote "
            "on how far clients go from them"
        )

    def upload_size(self, round: int) -> int:
        if self.stage(round) == "vote":
            return CELLS
        return self._shared_size if self.stage(round) == "weights" else self._sizes.outputs * BINS

    @property
    def default_share(self) -> str | None:
        """With a public start and far more weights than can be shared: a random subspace in which
        the norm of the noise is about half of the norm of a client's moves."""
        if not self._sizes.public_start or not self.noise:
            return None
        enough = max(LEAST_SHARED, int(self.releases / (2 * self.noise) ** 2))
        fewest = WEIGHTS_PER_DIMENSION * enough
        return f"subspace:k={enough}" if fewest < self._sizes.weights else None

    @property
    def _shared_size(self) -> int:
        return self._sizes.weights if self.part is None else self.part.size

    @property
    def move_limit(self) -> float:
        """C: the largest norm of a client's move in a round."""
        length = self._sizes.start_norm or 1.0
        careful = self._sizes.public_start or self.part is not None
        allowed = NOISE_OF_PUBLIC if careful else NOISE
        drift = self.noise * math.sqrt(self._shared_size * self.rounds)  # the noise in w̃, if C = 1
        return length * min(REACH / self.rounds, allowed / drift if drift else math.inf)

    # ---- the billboard: shared numbers, size and level of the target, vote ----

    def billboard_size(self, layout: Layout) -> int:
        return self._shared_size + 2 * self._sizes.outputs + CELLS

    def billboard_start(self, common: Tensor) -> Tensor:
        first = common if self.part is None else self.part.first(common)
        return torch.cat([first, common.new_zeros(2 * self._sizes.outputs + CELLS)])

    def _read(self, billboard: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """From [K, B]: the shared numbers [K, S], size and level [K, 2, outputs] that clients use,
        vote [K, cells]."""
        shared, target, vote = self._cut(billboard)
        return shared, self._target(target), vote

    def _cut(self, billboard: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        outputs = self._sizes.outputs
        shared, target, vote = torch.split(
            billboard, [self._shared_size, 2 * outputs, CELLS], dim=1
        )
        return shared, target.reshape(-1, 2, outputs).double(), vote.double()

    # ---- inside clients ----

    def compute_uploads(self, rows: ClientRows, billboard: Tensor, round: int) -> Tensor:
        shared, target, _ = self._read(billboard)
        stage = self.stage(round)
        if stage == "size":
            return size_votes(rows)
        if stage == "level":
            return level_votes(rows, target[:, 0])
        scaled, _, _ = self._scaled(rows, target)
        if stage == "weights":
            return self._moves(scaled, shared) / self.move_limit
        return self._vote_upload(self._losses(scaled, shared), rows)

    def finish_after(self, rows: ClientRows, billboard: Tensor, last: Tensor) -> Tensor:
        """The personal model and the one trained alone, [K, 2 P]; `last` is the client's vote."""
        shared, target, vote = self._read(billboard)
        scaled, size, level = self._scaled(rows, target)
        losses = last.double() * self._vote_norm  # A constant for each client does not matter.
        length = last.double().norm(dim=1, keepdim=True).clamp(min=1)  # before it was clipped to 1
        cells = choose(losses, held_out(scaled), vote, self._vote_noise, length)
        centres = torch.stack(self._centres(scaled, shared), 1)
        masks = scaled.mask.unsqueeze(1).expand(-1, 2, -1)
        found = torch.stack([centres, *train_path(scaled, masks, centres, PENALTIES)], 2)
        candidates = found.flatten(1, 2)  # [K, cells, P]
        chosen = pick(candidates, cells)
        if self._sizes.last is not None and self.target != "none":
            both = [in_target_units(one, self._sizes.last, size, level) for one in chosen.unbind(1)]
            chosen = torch.stack(both, 1)
        return chosen.flatten(1)

    def finish(self, rows: ClientRows, billboard: Tensor) -> Tensor:
        return self.finish_after(
            rows, billboard, self.compute_uploads(rows, billboard, self.releases - 1)
        )

    def _scaled(self, rows: ClientRows, target: Tensor) -> tuple[NetworkRows, Tensor, Tensor]:
        cyclic = self.target == "release"
        if self.target == "none":
            return cast(NetworkRows, rows), target[:, 0], target[:, 1]
        scaled, size, level = scaled_rows(rows, target[:, 0], target[:, 1], cyclic)
        return cast(NetworkRows, scaled), size, level

    def _moves(self, rows: NetworkRows, shared: Tensor) -> Tensor:
        """[K, S] w_k(w̃; κ) − w̃ of the shared numbers."""
        numbers, join, scales = shared, None, None
        if self.part is not None:
            own = self.part.own(rows.network.start).expand(len(shared), -1)
            numbers = torch.cat([shared, own], 1)
            join, scales = self.part.join_vector, self.part.number_scales(rows.network.scales)
        masks, penalties = rows.mask.unsqueeze(1), [ROUND_PENALTY]
        (after,) = train_path(
            rows, masks, numbers.unsqueeze(1), penalties, ROUND_STEPS, join=join, scales=scales
        )
        return after[:, 0, : self._shared_size] - shared

    def _centres(self, rows: NetworkRows, shared: Tensor) -> list[Tensor]:
        """[K, P] the shared weights, and the common start."""
        return [self._joined(shared), rows.network.start.expand(len(shared), -1)]

    def _joined(self, shared: Tensor) -> Tensor:
        return shared if self.part is None else self.part.published(shared)

    def _losses(self, rows: NetworkRows, shared: Tensor) -> Tensor:
        losses = held_out_losses(rows, self._centres(rows, shared), PENALTIES)
        losses = in_nats(rows.task, losses, self._sizes.outputs)
        return torch.minimum(losses, losses.amin(1, keepdim=True) + WORST)

    # ---- at the server ----

    def server_start(self, shared: Tensor) -> dict[str, Tensor]:
        return {"round": torch.zeros(1, dtype=torch.float64, device=shared.device)}

    def server_step(
        self, shared: Tensor, update: Tensor, memory: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        round = int(memory["round"])
        numbers, target, vote = self._cut(shared)
        target, vote = self._after_release(round, update, target, vote)
        if self.stage(round) == "weights":
            numbers = numbers + self.move_limit * update
        billboard = torch.cat([numbers.to(target.dtype), target.flatten(1), vote], 1)
        return billboard, {"round": memory["round"] + 1}

    def published(self, shared: Tensor) -> Tensor:
        numbers, target, _ = self._read(shared)
        weights = self._joined(numbers)
        if self._sizes.last is None or self.target == "none":
            return weights.to(shared.dtype)
        size = torch.where(target[:, 0] > 0, target[:, 0], 1.0)
        level = target[:, 0] * target[:, 1]
        return in_target_units(weights, self._sizes.last, size, level).to(shared.dtype)
