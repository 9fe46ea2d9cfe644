"""One client after the other, and errors that say whose they are: slow, for finding mistakes.

This is the reference that the other engines are tested against.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from torch import Tensor

from pmtl.client.step import OneTrained, Rows, train_client
from pmtl.engines.base import CohortBatches, CohortTrainer, Trained, client_batches
from pmtl.engines.threads import single_threaded
from pmtl.errors import PmtlError


class DebugTrainer(CohortTrainer):
    """A plain loop over clients. An error names the client and the stage that failed."""

    def train(
        self,
        own: Tensor,
        shared: Tensor,
        batches: CohortBatches,
        lr: float,
        name_of: Callable[[int], str] = str,
    ) -> Trained:
        def one(k: int) -> OneTrained:
            stages: list[str] = []

            def rows() -> Iterator[Rows]:
                stages.append("reading its rows")
                for batch in client_batches(batches, k):
                    yield batch
                    stages.append("reading its rows")

            given = (own[k], shared[k], rows(), lr, stages.append)
            try:
                return train_client(self._algorithm, self._model, self._task, *given)
            except Exception as error:
                raise PmtlError(
                    f"Local training of the client {name_of(k)!r} failed in {stages[-1]!r} "
                    f"({_place(error)}): {type(error).__name__}: {error}"
                ) from error

        with single_threaded():
            return Trained.stacked([one(k) for k in range(len(own))])


def _place(error: Exception) -> str:
    """The file and line of an error, in the innermost code that is not PyTorch's."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if "torch" not in Path(frame.filename).parts]
    return f"{Path(outside[-1].filename).name}, line {outside[-1].lineno}"
