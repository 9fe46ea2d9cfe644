"""Which numbers of a linear model pooling shares (the rule is in `linear_sharing.py`)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

from pmtl.algorithms.default.exact import Sizes
from pmtl.algorithms.default.voting import VotingAlgorithm
from pmtl.errors import PmtlError, how_many
from pmtl.linear_sharing import LinearSizes
from pmtl.models.linear import candidates
from pmtl.models.linear.target import BINS

SHARES = ("auto", "all", "answers", "frequent", "intercepts")


@dataclass(frozen=True)
class PoolingBase(VotingAlgorithm):
    """Which numbers are shared, how many there are, and their description for the statement.

    Args:
        rounds, votes, target, noise: see `VotingAlgorithm`.
        share: "all" weights, a map of the "answers" of a public head, the "frequent" weights
            (intercepts, and slopes of the columns and classes that are used most), the
            "intercepts" only, or "auto".
        reach: the farthest that the shared weights can get in all rounds; 0: chosen automatically.
    """

    share: str = "auto"
    reach: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of("share", SHARES)

    def resolve(self, sizes: Sizes, strength: float) -> Self:
        if not sizes.linear:
            raise PmtlError(
                "pooling solves linear models exactly (logistic, linear, hog, or a network of "
                "which only the last linear layer is trained): name another algorithm, or freeze "
                "the other layers."
            )
        layer = _layer(sizes)
        share = layer.what_to_share(strength) if self.share == "auto" else self.share
        if share == "answers" and not sizes.begins_at_head:
            raise PmtlError(
                "pooling:share=answers needs a linear layer with public weights (init), and "
                "classes or labels: the answers for numbers have units that clients do not share."
            )
        made = replace(self, share=share)._with_target(sizes, strength)
        if share == "frequent" and made.frequent in (0, layer.slopes):
            share = "all" if made.frequent else "intercepts"
            made = replace(self, share=share)._with_target(sizes, strength)
        budget = strength * math.sqrt(self.rounds / made.releases)
        reach = made.reach or min(
            4.0, max(0.5, budget / math.sqrt(layer.free(made._shared_size)) / 10)
        )
        return replace(made, reach=reach)

    @property
    def _strength(self) -> float:
        """mμ; σ = 2√T/(mμ)."""
        return 2 * math.sqrt(self.releases) / self.noise if self.noise else math.inf

    @property
    def in_words(self) -> str:
        what, use = self.share, ""
        if self.share == "all":
            what = "weights"
        if self.share == "answers":
            what = "map of the public head's answers"
        if self.share == "frequent":
            use = "1 for how much columns and classes are used, "
            what = f"intercepts and the {self.frequent:,} slopes in most use"
        return (
            f"{self._target_in_words}{use}{self.rounds} for the shared {what}, {self.votes} for a "
            "vote on the penalties"
        )

    @property
    def frequent(self) -> int:
        """How many slopes are shared because clients use them most."""
        return _layer(self._sizes).frequent(self._strength) if self.share == "frequent" else 0

    @property
    def begins_at_start(self) -> bool:
        return self._sizes.begins_at_head

    @property
    def _first_stages(self) -> tuple[str, ...]:
        use = ("use",) if self.share == "frequent" else ()
        return super()._first_stages + use

    def upload_size(self, round: int) -> int:
        sizes = self._sizes
        if self.stage(round) == "vote":
            return candidates.CELLS
        if self.stage(round) == "weights":
            return self._shared_size
        return self._used if self.stage(round) == "use" else sizes.outputs * BINS

    @property
    def _shared_size(self) -> int:
        """How many numbers of a client's model are uploaded in a round."""
        return _layer(self._sizes).numbers(self.share, self._strength)

    @property
    def _used(self) -> int:
        """How many numbers the release of the columns and classes in use has."""
        return self._sizes.columns - 1 + self._sizes.outputs

    def warning(self, clients: int, cohort: int, rounds: int) -> str | None:
        if (
            self.share == "all"
            or self.sizes is None
            or _layer(self.sizes).all_can_be_shared(self._strength)
        ):
            return None
        only = "the intercept"
        if self.sizes.outputs > 1:
            only = f"the {self.sizes.outputs:,} intercepts"
        if self.share == "answers":
            only = f"a map of the {self.sizes.outputs:,} answers of the public head"
        if self.frequent:
            only += f", the {self.frequent:,} slopes of columns and classes in most use"
        return (
            f"{how_many(clients, 'client')} at this ε {'is' if clients == 1 else 'are'} too few "
            f"to share {self.sizes.columns:,} × "
            f"{self.sizes.outputs:,} weights: only {only} and the strength of the penalties are "
            "shared. Fewer columns, more clients or a larger ε would change that (pmtl plan)."
        )


def _layer(sizes: Sizes) -> LinearSizes:
    classes = sizes.task == "classification"
    return LinearSizes(sizes.columns, sizes.outputs, classes, sizes.begins_at_head)
