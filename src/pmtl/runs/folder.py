"""A run's folder: what is in it, and how it is written so that no crash can spoil it."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pmtl._version import __version__
from pmtl.data import Scaling
from pmtl.errors import PmtlError
from pmtl.jsontext import to_json
from pmtl.privacy.statement import Statement
from pmtl.progress import progress_bar
from pmtl.runs import files
from pmtl.runs.config import TrainConfig
from pmtl.runs.personal import Personal, write_personal
from pmtl.simulation import CHECKS, Progress


class RunFolder:
    """Reads and writes the files of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.toml"
        self.facts_file = self.path / "run.json"
        self.metrics_file = self.path / "metrics.jsonl"
        self.checkpoint_file = self.path / "checkpoint.safetensors"
        self.owned_file = self.path / "owned.rows"
        self.personal_file = self.path / "personal.safetensors"
        self.shared_file = self.path / "shared.safetensors"
        self.scaling_file = self.path / "scaling.safetensors"
        self.lock_file = self.path / ".lock"

    @classmethod
    def create(cls, path: str | Path, config: TrainConfig, facts: Mapping[str, Any]) -> RunFolder:
        """Make a folder that appears with its first files in it, or not at all."""
        path = Path(path)
        cls.refuse_existing(path)
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        with files.writing(path):
            try:
                partial.mkdir(parents=True)
                new = cls(partial)
                files.write_text(new.config_file, config.to_toml())
                files.write_json(new.facts_file, {"state": "running", **versions(), **facts})
                partial.replace(path)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
        return cls(path)

    @staticmethod
    def refuse_existing(path: str | Path) -> None:
        """Say so if there is something at `path` that a new folder would cover."""
        path = Path(path)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise PmtlError(
                f"{path} exists already: choose another --out, continue it with "
                f"`pmtl resume {path}`, or delete it first."
            )

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """An existing run."""
        folder = cls(path)
        if not folder.path.is_dir():
            raise PmtlError(f"There is no run at {path}: give the folder that `pmtl train` wrote.")
        if not folder.facts_file.exists():
            raise PmtlError(f"{path} is not a run of pmtl: it has no {folder.facts_file.name}.")
        return folder

    def facts(self) -> dict[str, Any]:
        """What `run.json` says."""
        return files.read_json(self.facts_file)

    def save_round(self, line: Mapping[str, Any]) -> None:
        """Add a round's line to the metrics."""
        files.append_line(self.metrics_file, line)

    def metrics(self) -> list[dict[str, Any]]:
        """The rounds so far; a line that a crash cut short is left out."""
        if not self.metrics_file.exists():
            return []
        lines = []
        for line in self.metrics_file.read_text(encoding="utf-8").splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:
                break
        return lines

    def save_checkpoint(self, progress: Progress) -> str:
        """Replace the checkpoint; the metrics and the file of vectors that it stands for are on
        disk before it is. Returns the digest of its numbers, which covers all vectors."""
        files.flush(self.metrics_file)
        digest = files.write_tensors(
            self.checkpoint_file,
            {"shared": progress.shared, **progress.store.snapshot()},
            {"round": progress.round},
        )
        progress.store.settle()
        return digest

    def checkpoint_digest(self) -> str | None:
        """The digest of the checkpoint's numbers; None if there is no checkpoint."""
        if not self.checkpoint_file.exists():
            return None
        return files.read_digest(self.checkpoint_file)

    def load_checkpoint(self, start: Progress, show: bool = False) -> Progress:
        """The last saved progress, or `start` if there is none; later metrics are dropped."""
        progress = start
        if self.checkpoint_file.exists():
            tensors, metadata = files.read_tensors(self.checkpoint_file)
            shared = _shared_of(tensors, start, self.checkpoint_file)
            with progress_bar("checking", CHECKS, 0, show and "slots" in tensors) as bar:
                start.store.restore(tensors, bar.advance)
            progress = Progress(int(metadata["round"]), shared, start.store)
        kept = [line for line in self.metrics() if line["round"] <= progress.round]
        text = "".join(to_json(line) + "\n" for line in kept)
        files.write_text(self.metrics_file, text)
        return progress

    def save_scaling(self, scaling: Scaling | None) -> None:
        """Keep what each client does to its rows; every client's part is its own affair."""
        if scaling is not None:
            parts = {
                "means": torch.from_numpy(scaling.means),
                "widths": torch.from_numpy(scaling.widths),
            }
            files.write_tensors(self.scaling_file, parts, {})

    def load_scaling(self) -> Scaling | None:
        """What `save_scaling` kept."""
        if not self.scaling_file.exists():
            return None
        parts, _ = files.read_tensors(self.scaling_file)
        return Scaling(parts["means"].numpy(), parts["widths"].numpy())

    def save_result(
        self,
        facts: Mapping[str, Any],
        personal: Personal | None,
        shared: Tensor,
        statement: Statement,
        result: Any,
    ) -> None:
        """Write the models and the statement; the run is complete when `run.json` says so."""
        about = {"clients": facts["clients"], "model": facts["model"], "blocks": facts["blocks"]}
        if personal is not None:
            of_rows = {
                name: [facts[name][client] for client in personal.seen.tolist()]
                for name in ("clients", "blocks")
            }
            write_personal(self.personal_file, personal, about | of_rows)
        files.write_tensors(self.shared_file, {"weights": shared}, about)
        self.save_statement(statement)
        if result is not None:
            files.write_json(self.path / "result.json", result)
        files.write_json(self.facts_file, {**versions(), **facts})
        if self.owned_file.exists():  # As large as the models, and of no more use.
            self.checkpoint_file.unlink()
            self.owned_file.unlink()

    def save_statement(self, statement: Statement) -> None:
        """Write the privacy statement for people and for programs."""
        files.write_text(self.path / "privacy.txt", str(statement))
        files.write_json(self.path / "privacy.json", statement.to_dict())


def versions() -> dict[str, Any]:
    """What the run was made with."""
    return {
        "pmtl": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _shared_of(tensors: Mapping[str, Tensor], start: Progress, file: Path) -> Tensor:
    shape = tuple(start.shared.shape)
    if "clients" not in tensors or "shared" not in tensors or tensors["shared"].shape != shape:
        raise PmtlError(
            f"{file} does not fit this run: its 'shared' is not of shape {shape}. Was the model or "
            "the federation changed?"
        )
    return tensors["shared"].to(start.shared)
