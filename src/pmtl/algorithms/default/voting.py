"""The base class of the default methods: releases of shared weights, then a vote.

T releases of equal cost, each the mean over all clients of a vector of norm at most 1:

1. *Target* (numbers without public bounds, 2 releases): the clients' votes for the size of the
   target, as a power of two, and for its level (models/linear/target.py).
2. *Rounds*: the clients' moves from the shared weights.
3. *Vote* (releases of one vector, averaged): the client's mean held-out loss in nats for each
   candidate, minus the mean over the candidates.

Afterwards each client makes its personal model from its own rows and the published values. For the
verdict it also keeps the model that it would have without the other clients.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from pmtl.algorithms.default.exact import ExactAlgorithm, Sizes
from pmtl.errors import PmtlError
from pmtl.models.linear.solve import ClientRows
from pmtl.models.linear.target import BINS, read_level, read_size
from pmtl.models.linear.target import spans as spans_of

#: A vote in nats: the intended noise, and the smallest and largest norm for clipping.
VOTE_NOISE, VOTE_NORMS = 0.005, (0.05, 2.0)
#: The most noise of a release with which the target's histograms are readable.
READABLE = 0.12
TARGETS = ("auto", "given", "release", "own", "none")


@dataclass(frozen=True)
class VotingAlgorithm(ExactAlgorithm):
    """Releases of shared weights and a vote, from which clients make personal models.

    Args:
        rounds: releases for the shared weights.
        votes: releases for the vote.
        target: how a numeric target is scaled: "given" (by public bounds), "release" (2 releases),
            "own" (each client by its own rows), "none" (not at all), or "auto".
        noise: σ of one release, for uploads of norm 1; it follows from the privacy plan.
    """

    rounds: int = 8
    votes: int = 3
    target: str = "auto"
    noise: float = 0.0
    sizes: Sizes | None = field(default=None, repr=False, metadata={"derived": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of("target", TARGETS)
        if self.rounds < 1 or self.votes < 1:
            raise PmtlError(f"{self.name}: rounds and votes must be at least 1.")

    def _one_of(self, setting: str, known: tuple[str, ...]) -> None:
        if getattr(self, setting) not in known:
            raise PmtlError(
                f"{self.name}: {setting} must be one of {', '.join(known)}, but "
                f"{getattr(self, setting)!r} was given."
            )

    # ---- decided before anything is spent, from public numbers ----

    def _with_target(self, sizes: Sizes, strength: float, default: str = "auto") -> Self:
        """With the scale of the target and the noise decided; `default` replaces "auto"."""
        asked = self.target if sizes.task == "regression" else "none"
        if asked == "given" and sizes.target_range is None:
            raise PmtlError(
                f"{self.name}:target=given needs public bounds of the target (--bounds)."
            )
        asked = default if asked == "auto" else asked
        if asked == "auto" and sizes.target_range is not None:
            asked = "given"
        if asked == "auto":
            releases = self.rounds + self.votes + 2
            readable = 2 * math.sqrt(releases * sizes.outputs) <= READABLE * strength
            asked = "release" if readable else "own"
        made = replace(self, target=asked, sizes=sizes)
        return made.with_noise(2 * math.sqrt(made.releases) / strength)

    def with_noise(self, noise: float) -> Self:
        return replace(self, noise=noise)

    @property
    def _sizes(self) -> Sizes:
        if self.sizes is None:
            raise PmtlError(f"{self.name} has no sizes of a federation yet: call resolve first.")
        return self.sizes

    # ---- the releases ----

    @property
    def releases(self) -> int:
        return self._first_releases + self.rounds + self.votes

    @property
    def _first_stages(self) -> tuple[str, ...]:
        """The releases before the rounds."""
        return ("size", "level") if self.target == "release" else ()

    @property
    def _first_releases(self) -> int:
        return len(self._first_stages)

    @property
    def _target_in_words(self) -> str:
        released = self.target == "release"
        return "2 for the size and the level of the target, " if released else ""

    def stage(self, round: int) -> str:
        """What a round releases: one of the first stages, weights or vote."""
        if round < self._first_releases:
            return self._first_stages[round]
        return "weights" if round < self._first_releases + self.rounds else "vote"

    def repeats(self, round: int) -> bool:
        return self.stage(round) == "vote" == self.stage(max(0, round - 1))

    @property
    def _vote_norm(self) -> float:
        """The norm in nats to which a vote is clipped: wide where the noise allows it."""
        least, largest = VOTE_NORMS
        wanted = VOTE_NOISE * math.sqrt(self.votes) / self.noise if self.noise else largest
        return min(largest, max(least, wanted))

    @property
    def _vote_noise(self) -> float:
        """The standard deviation of the noise in the published losses."""
        return self.noise * self._vote_norm / math.sqrt(self.votes)

    def _vote_upload(self, losses: Tensor, rows: ClientRows) -> Tensor:
        """The upload of the vote [K, cells]; a client with one row has no vote."""
        upload = (losses - losses.mean(1, keepdim=True)) / self._vote_norm
        return torch.where((rows.mask.sum(1) > 1).unsqueeze(1), upload, 0.0)

    def _target(self, target: Tensor) -> Tensor:
        """Size and level [K, 2, outputs] that clients use, from the published ones. If the size is
        0, every client uses its own size. The level is in units of the size."""
        if self.target == "none":
            return torch.stack([torch.ones_like(target[:, 0]), torch.zeros_like(target[:, 1])], 1)
        if self.target != "given" or self._sizes.target_range is None:
            return target
        low, high = self._sizes.target_range  # ±2 sizes around the middle
        size, level = (high - low) / 4, 2 * (high + low) / (high - low)
        return target.new_tensor([[size], [level]]).expand_as(target)

    # ---- at the server ----

    def _after_release(
        self, round: int, update: Tensor, target: Tensor, vote: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Size and level [1, 2, outputs], and the vote [1, cells], after a release."""
        stage, size, level = self.stage(round), target[:, 0], target[:, 1]
        if stage == "size":
            size = read_size(update.reshape(len(update), -1, BINS), self.noise)
        elif stage == "level":
            level, clear = read_level(update.reshape(len(update), -1, BINS), self.noise)
            size = torch.where(clear, size, 0.0)
        elif stage == "vote":
            votes = round - self._first_releases - self.rounds
            vote = (vote * votes + update * self._vote_norm) / (votes + 1)
        return torch.stack([size, level], 1), vote

    @property
    def shows_model(self) -> bool:
        return self.target != "own"  # With "own", its predictions have no common unit.

    def target_spans(self, shared: Tensor) -> list[float] | None:
        return spans_of(self._read(shared)[1][0]) if self.target == "release" else None

    @abstractmethod
    def _read(self, billboard: Tensor) -> tuple[Tensor, ...]:
        """From [K, B]: the shared numbers, then size and level [K, 2, outputs] that clients use,
        then what else is on the billboard."""

    # ---- a client's own vector: its personal model, then the model trained alone ----

    def start(self, shared: Tensor) -> Tensor:
        return torch.cat([shared, shared])

    def predict(self, own: Tensor, shared: Tensor) -> Tensor:
        return own[: own.shape[0] // 2]

    def alone(self, own: Tensor) -> Tensor:
        return own[own.shape[0] // 2 :]
