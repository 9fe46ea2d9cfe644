"""What a site keeps on its disk: the state of its runs, and their results.

    FOLDER/RUN/            a run's folder, as `pmtl train` writes it, with this site's clients only
    FOLDER/.state/RUN/     while the run is under way: what was agreed, and what clients own
    FOLDER/.state/spent.json   the ε of every run that the site took part in

A round's result is written as *pending* before the upload is sent, and becomes what clients own
when the server says that it was counted. A crash at any time leaves one or the other.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pmtl import storage as files
from pmtl.errors import PmtlError
from pmtl.federation.messages import check_run_name
from pmtl.federation.training import Pending, Training
from pmtl.runs.folder import make_private

_AGREEMENT, _RELEASES, _OWNED = "agreement.json", "releases.json", "owned.safetensors"
_PENDING, _START = "pending.safetensors", "start.safetensors"


class SiteFolder:
    """The files of one site."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._states = path / ".state"
        with files.disk_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            if not self._states.exists():
                make_private(self._states)

    def result(self, run: str) -> Path:
        """The folder of a run's result."""
        return self.path / check_run_name(run)

    def state(self, run: str) -> RunStateFiles:
        """The files of a run that is under way."""
        return RunStateFiles(self._states / check_run_name(run))

    def knows(self, run: str) -> bool:
        """Whether the site took part in a run of this name."""
        return run in self._accounts()

    def spent(self, but: str) -> float:
        """The sum of the ε of all runs `but` one."""
        return float(sum(cost for run, cost in self._accounts().items() if run != but))

    def charge(self, run: str, epsilon: float) -> None:
        """Record that the site takes part in a run."""
        files.write_json(self._states / "spent.json", {**self._accounts(), run: epsilon})

    def _accounts(self) -> dict[str, Any]:
        file = self._states / "spent.json"
        return files.read_json(file) if file.exists() else {}


class RunStateFiles:
    """The state of one run at a site."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def exists(self) -> bool:
        return (self.path / _AGREEMENT).exists()

    def create(self, agreed: Mapping[str, Any], public: Mapping[str, Tensor]) -> None:
        """Keep what was agreed, and the public start."""
        with files.disk_errors(self.path):
            shutil.rmtree(self.path, ignore_errors=True)  # It may be half written.
            self.path.mkdir(mode=0o700)
        if public:
            files.write_tensors(self.path / _START, public, {})
        files.write_json(self.path / _AGREEMENT, agreed)

    def agreed(self) -> dict[str, Any]:
        """What `create` kept."""
        return files.read_json(self.path / _AGREEMENT)

    def public(self) -> dict[str, Tensor]:
        """The public start that `create` kept; empty if there was none."""
        file = self.path / _START
        return files.read_tensors(file)[0] if file.exists() else {}

    def save_pending(self, pending: Pending, attempt: str) -> None:
        """Write a round's result before the upload is sent."""
        parts = {"clients": torch.from_numpy(pending.clients), "kept": pending.kept}
        about = {"round": pending.round, "attempt": attempt}
        files.write_tensors(self.path / _PENDING, parts, about)

    def save_owned(self, training: Training, counted: int) -> None:
        """Write what clients own after the round that was `counted`; nothing is pending then."""
        files.write_tensors(self.path / _OWNED, training.store.snapshot(), {"round": counted})
        self.drop_pending()

    def drop_pending(self) -> None:
        """Forget what is pending."""
        with files.disk_errors(self.path):
            (self.path / _PENDING).unlink(missing_ok=True)

    def load(self, training: Training) -> tuple[int, int, str]:
        """Restore what clients own and what is pending. Returns the last counted round, the last
        answered one (−1: none), and its attempt."""
        counted = answered = -1
        attempt = ""
        if (self.path / _OWNED).exists():
            parts, about = files.read_tensors(self.path / _OWNED)
            training.store.restore(parts)
            counted = answered = int(about["round"])
        if (self.path / _PENDING).exists():
            parts, about = files.read_tensors(self.path / _PENDING)
            if int(about["round"]) > counted:
                answered, attempt = int(about["round"]), str(about["attempt"])
                if parts["kept"].shape[1:] != training.store.start.shape:
                    raise PmtlError(f"{self.path} does not fit this run: start the run again.")
                training.pending = Pending(answered, parts["clients"].numpy(), parts["kept"])
        return counted, answered, attempt

    def count_release(self) -> int:
        """Count an answer with secure aggregation, on disk before it is made; returns how many
        there were with it."""
        file, count = self.path / _RELEASES, 1 + self.releases()
        files.write_json(file, {"count": count})
        return count

    def releases(self) -> int:
        """How many answers `count_release` counted."""
        file = self.path / _RELEASES
        return int(files.read_json(file)["count"]) if file.exists() else 0

    def remove(self) -> None:
        """Remove the state of a run whose result is written."""
        with files.disk_errors(self.path, "removed"):
            (self.path / _AGREEMENT).unlink(missing_ok=True)  # First: then the run is unknown here.
        shutil.rmtree(self.path, ignore_errors=True)
