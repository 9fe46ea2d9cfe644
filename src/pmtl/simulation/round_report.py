"""What a round says of itself."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor


class RoundReport:
    """What happened in a round. Exact, and therefore private: for experiments only.

    On a graphics card the averages are on their way when a round returns, and only who reads them
    waits for them: the next round can be sent off first.
    """

    def __init__(self, round: int, cohort: int, lr: float, sums: Tensor, counts: Tensor) -> None:
        """`sums` of losses, norms and clips, each over so many clients."""
        self.round = round
        self.cohort = cohort
        self.lr = lr
        self._counts = counts
        self._sums = sums.to("cpu", non_blocking=True)
        self._arrival: torch.cuda.Event | None = None
        if sums.is_cuda:
            self._arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrival.record(torch.cuda.current_stream(sums.device))

    @property
    def on_its_way(self) -> bool:
        """Whether to read it now would mean to wait."""
        return self._arrival is not None and not self._arrival.query()  # type: ignore[no-untyped-call]

    @cached_property
    def _means(self) -> list[float | None]:
        if self._arrival is not None:
            self._arrival.synchronize()
        pairs = zip(self._sums.tolist(), self._counts.tolist(), strict=True)
        return [total / count if count else None for total, count in pairs]

    @property
    def train_loss(self) -> float | None:
        """The mean over clients of their mean batch loss."""
        return self._means[0]

    @property
    def upload_norm(self) -> float | None:
        """The mean length of uploads before clipping."""
        return self._means[1]

    @property
    def clipped(self) -> float | None:
        """The share of uploads that were too long."""
        return self._means[2]

    def to_dict(self) -> dict[str, Any]:
        """All of it, as a run's files have it."""
        names = ("round", "cohort", "lr", "train_loss", "upload_norm", "clipped")
        return {name: getattr(self, name) for name in names}
