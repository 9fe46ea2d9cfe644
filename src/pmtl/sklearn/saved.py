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
from pmtl.runs.facts import RunFacts
from pmtl.runs.folder import RunFolder
from pmtl.runs.result import Run, load_run, rebuild_model


@dataclass(frozen=True)
class Saved:
    """A run as a pickle holds it; of a run with a folder, only the first two fields are there."""

    facts: RunFacts
    path: Path | None
    statement: Statement | None = None
    personal: NDArray[Any] | None = None  #: [clients, weights]
    shared: NDArray[Any] | None = None  #: [blocks, weights]
    board: dict[str, NDArray[Any]] | None = None
    scaling: Scaling | None = None
    metrics: tuple[dict[str, Any], ...] = ()

    @classmethod
    def of(cls, run: Run) -> Saved:
        """The run for a pickle."""
        if run.path is not None:
            folder = Path(run.path).resolve()
            return cls(RunFolder.open(folder).facts(), folder)
        if run.facts.production:
            raise PmtlError(
                "A production run in memory is not pickled, because its personal models are "
                "private: give the estimator folder=…, and the pickle names the run's folder."
            )
        everybody = np.arange(len(run.clients), dtype=np.int64)
        return cls(
            run.facts,
            None,
            run.privacy,
            _array(run.views()["personal"](everybody)),
            _array(run._shared),
            {name: _array(part) for name, part in run._billboard.tensors().items()},
            run._scaling,
            tuple(run.metrics),
        )

    def restored(self, model: Any) -> Run:
        """The run again.

        Args:
            model: the estimator's model, which is used if it is a factory and not a spec.
        """
        factory = None if model is None or isinstance(model, str) else model
        if self.path is not None:
            return self._from_folder(factory)
        assert self.statement is not None
        assert self.personal is not None
        assert self.shared is not None
        personal, shared = torch.from_numpy(self.personal), torch.from_numpy(self.shared)
        blocks = np.asarray(self.facts.blocks, dtype=np.int64)
        board = {name: torch.from_numpy(part) for name, part in (self.board or {}).items()}
        flat = rebuild_model(self.facts, factory).to(torch.device("cpu"), shared.dtype)
        return Run(
            self.facts,
            flat,
            lambda clients: personal[torch.from_numpy(clients)],
            shared,
            self.statement,
            list(self.metrics),
            scaling=self.scaling,
            board=Billboard.from_tensors(blocks, board),
        )

    def _from_folder(self, factory: Any) -> Run:
        assert self.path is not None
        if not self.path.is_dir():
            raise PmtlError(
                f"This estimator was pickled by path, and its run at {self.path} is not there: put "
                "the folder back, or fit again."
            )
        run = load_run(self.path, model=factory)
        if (run.facts.id, run.facts.written) != (self.facts.id, self.facts.written):
            raise PmtlError(
                f"The run at {self.path} is not the one that this estimator was pickled with: put "
                "the folder back as it was, or fit again."
            )
        return run


def _array(part: Tensor) -> NDArray[Any]:
    return np.array(part.detach().cpu().numpy())
