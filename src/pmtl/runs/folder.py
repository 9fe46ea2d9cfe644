"""A run's folder: what is in it, and how it is written so that no crash can spoil it."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pmtl._version import __version__
from pmtl.data import Scaling
from pmtl.errors import PmtlError
from pmtl.privacy.statement import Statement
from pmtl.progress import progress_bar
from pmtl.runs import files
from pmtl.runs.budget import Checkpoint, Published
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

    def metrics(self, known: str | None = None) -> list[dict[str, Any]]:
        """The rounds so far; where the digest of their lines is `known`, these and no others."""
        text = self._metrics_text()
        if known not in (None, files.digest_of_text(text)):
            raise self._damaged_metrics()
        try:
            return [json.loads(line) for line in text.splitlines()]
        except ValueError:
            raise self._damaged_metrics() from None

    def save_checkpoint(self, progress: Progress, history: Mapping[str, Any]) -> str:
        """Replace the checkpoint; the metrics and the file of vectors that it stands for are on
        disk before it is. Returns the digest of its numbers, which covers all vectors and the
        `history` (what it says of the ledger)."""
        files.flush(self.metrics_file)
        digest = files.write_tensors(
            self.checkpoint_file,
            {"shared": progress.shared, **progress.store.snapshot()},
            {
                "round": progress.round,
                "metrics": files.digest_of_text(self._metrics_text()),
                "history": dict(history),
            },
        )
        progress.store.settle()
        return digest

    def checkpoint(self) -> Checkpoint | None:
        """What identifies the checkpoint (`load_checkpoint` checks it); None if there is none."""
        if not self.checkpoint_file.exists():
            return None
        metadata = files.read_metadata(self.checkpoint_file)
        return Checkpoint(metadata["round"], metadata["digest"], metadata.get("history", {}))

    def published(self) -> Published:
        """What the lines of the metrics show to have been published. A line that a crash cut short
        counts as a round."""
        lines = self._metrics_text().splitlines()
        released = []
        for line in lines:
            with suppress(ValueError, TypeError, KeyError, RecursionError):
                values = json.loads(line)
                if "noise" in values:
                    released.append(int(values["round"]))
        return Published(len(lines), released)

    def load_checkpoint(self, start: Progress, show: bool = False) -> Progress:
        """The last saved progress, or `start` if there is none."""
        if not self.checkpoint_file.exists():
            return start
        tensors, metadata = files.read_tensors(self.checkpoint_file)
        shared = _shared_of(tensors, start, self.checkpoint_file)
        with progress_bar("checking", CHECKS, 0, show and "slots" in tensors) as bar:
            start.store.restore(tensors, bar.advance)
        progress = Progress(int(metadata["round"]), shared, start.store)
        # The lines that the checkpoint stands for were on disk before it was.
        if files.digest_of_text(self._metrics_text(progress.round)) != metadata["metrics"]:
            raise self._damaged_metrics()
        return progress

    def drop_later_metrics(self, round: int) -> None:
        """Keep the lines up to `round`; one that a crash cut short is later than any checkpoint."""
        files.write_text(self.metrics_file, self._metrics_text(round))

    def _metrics_text(self, rounds: int | None = None) -> str:
        """All lines, or those of the first `rounds`: every round has one."""
        try:
            lines = self.metrics_file.read_bytes().splitlines(keepends=True)
            return b"".join(lines[:rounds]).decode()
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError):
            raise self._damaged_metrics() from None

    def _damaged_metrics(self) -> PmtlError:
        return PmtlError(
            f"{self.metrics_file} is damaged or was edited: its lines are not the ones that were "
            "written. Put it back as it was."
        )

    def save_result(
        self,
        facts: Mapping[str, Any],
        personal: Personal | None,
        shared: Mapping[str, Tensor],
        scaling: Scaling | None,
        statement: Statement,
        result: Any,
    ) -> None:
        """Write the models and the statement; the run is complete when `run.json` says so, and it
        names the digest of every file that `load_run` will read."""
        about = {"clients": facts["clients"], "model": facts["model"], "blocks": facts["blocks"]}
        written = {
            "metrics": files.digest_of_text(self._metrics_text()),
            "shared": files.write_tensors(self.shared_file, shared, about),
        }
        if personal is not None:
            of_rows = {
                name: [facts[name][client] for client in personal.seen.tolist()]
                for name in ("clients", "blocks")
            }
            written["personal"] = write_personal(self.personal_file, personal, about | of_rows)
        if scaling is not None:  # Every client's part is its own affair.
            parts = {
                "means": torch.from_numpy(scaling.means),
                "widths": torch.from_numpy(scaling.widths),
            }
            written["scaling"] = files.write_tensors(self.scaling_file, parts, {})
        self.save_statement(statement)
        if result is not None:
            files.write_json(self.path / "result.json", result)
        files.write_json(self.facts_file, {**versions(), **facts, "written": written})
        if self.owned_file.exists():  # As large as the models, and of no more use.
            self.checkpoint_file.unlink()
            self.owned_file.unlink()

    def load_scaling(self, written: Mapping[str, str]) -> Scaling | None:
        """What each client does to its rows."""
        if "scaling" not in written:
            return None
        parts, _ = files.read_tensors(self.scaling_file, written["scaling"])
        return Scaling(parts["means"].numpy(), parts["widths"].numpy())

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
