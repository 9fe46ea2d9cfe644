"""A fitted run inside a pickle.

A run with a folder is pickled *by path*: the pickle names the folder, the run and the digests of
its files, and holds no weights. A run in memory is pickled with its weights. Training rows are
never part of a pickle. A production run in memory is refused: its personal models belong in a
folder that only its owner can open.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pmtl.billboard import Billboard
from pmtl.data import Scaling
from pmtl.errors import PmtlError
from pmtl.privacy.statement.statement import Statement
from pmtl.runs.facts import RunFacts, rebuild_model
from pmtl.runs.folder import RunFolder
from pmtl.runs.result import Run, load_run


@dataclass(frozen=True)
class SavedPath:
    """A run with a folder: its path, and what identifies it."""

    path: Path
    id: str
    written: dict[str, str]  #: digests of the files of the result

    def restored(self, factory: Any) -> Run:
        """The run again, from its folder; `factory` makes its model if no spec names it."""
        if not self.path.is_dir():
            raise PmtlError(
                f"This estimator was pickled by path, and its run at {self.path} is not there: put "
                "the folder back, or fit again."
            )
        run = load_run(self.path, model=factory)
        if (run.facts.id, run.facts.written) != (self.id, self.written):
            raise PmtlError(
                f"The run at {self.path} is not the one that this estimator was pickled with: put "
                "the folder back as it was, or fit again."
            )
        return run


@dataclass(frozen=True)
class SavedArrays:
    """A run in memory, with its weights."""

    facts: RunFacts
    statement: Statement
    personal: NDArray[Any]  #: [clients, weights]
    shared: NDArray[Any]  #: [blocks, weights]
    board: dict[str, NDArray[Any]]
    scaling: Scaling | None
    metrics: tuple[dict[str, Any], ...]

    def restored(self, factory: Any) -> Run:
        """The run again; `factory` makes its model if no spec names it."""
        personal, shared = torch.from_numpy(self.personal), torch.from_numpy(self.shared)
        blocks = np.asarray(self.facts.blocks, dtype=np.int64)
        board = {name: torch.from_numpy(part) for name, part in self.board.items()}
        flat = rebuild_model(self.facts, factory).to(torch.device("cpu"), shared.dtype)
        return Run(
            self.facts,
            flat,
            personal_weights=lambda clients: personal[torch.from_numpy(clients)],
            shared_weights=shared,
            privacy=self.statement,
            metrics=list(self.metrics),
            scaling=self.scaling,
            billboard=Billboard.from_tensors(blocks, board),
        )


def save(run: Run) -> SavedPath | SavedArrays:
    """The run for a pickle."""
    if run.path is not None:
        path = Path(run.path).resolve()
        facts = RunFolder.open(path).facts()
        return SavedPath(path, facts.id, facts.written)
    if run.facts.production:
        raise PmtlError(
            "A production run in memory is not pickled, because its personal models are private: "
            "give the estimator folder=…, and the pickle names the run's folder."
        )
    all_clients = np.arange(len(run.clients), dtype=np.int64)
    return SavedArrays(
        run.facts,
        run.privacy,
        _array(run.views()["personal"](all_clients)),
        _array(run.shared_weights),
        {name: _array(part) for name, part in run.billboard.tensors().items()},
        run.scaling,
        tuple(run.metrics),
    )


def _array(part: Tensor) -> NDArray[Any]:
    return np.array(part.detach().cpu().numpy())
