"""Averages of a round."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class RoundReport:
    """Averages of one round. They are exact and therefore private: for experiments only.

    On a GPU they are still being computed when a round returns. Reading them waits for the result,
    so the next round can be started first.
    """

    def __init__(
        self, round: int, cohort: int, lr: float | None, sums: Tensor, counts: Tensor
    ) -> None:
        """`sums` of losses, norms and clips, each over `counts` clients. `lr` is None, and no loss
        is counted, where clients take no steps."""
        self.round = round
        self.cohort = cohort
        self.lr = lr
        self._counts = counts
        self._sums = sums.to("cpu", non_blocking=True)
        self._copied: torch.cuda.Event | None = None
        if sums.is_cuda:
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record(torch.cuda.current_stream(sums.device))

    @property
    def pending(self) -> bool:
        """Whether reading it now would wait."""
        return self._copied is not None and not self._copied.query()  # type: ignore[no-untyped-call]

    @property
    def train_loss(self) -> float | None:
        """The mean over clients of their mean batch loss."""
        return self._mean(0)

    @property
    def upload_norm(self) -> float | None:
        """The mean norm of uploads before clipping."""
        return self._mean(1)

    @property
    def clipped(self) -> float | None:
        """The share of uploads that were clipped."""
        return self._mean(2)

    def _mean(self, which: int) -> float | None:
        if self._copied is not None:
            self._copied.synchronize()
        count = int(self._counts[which])
        return float(self._sums[which]) / count if count else None

    def to_dict(self) -> dict[str, Any]:
        names = ("round", "cohort", "lr", "train_loss", "upload_norm", "clipped")
        return {name: getattr(self, name) for name in names}
