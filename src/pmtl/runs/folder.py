"""A run's folder: what is in it, and how it is written so that no crash can spoil it.

An experiment's folder is flat, and nothing in it is private. A production run's folder has two
parts. What is in `public/` may be handed out: it follows from public settings and from what was
published, and from nothing else. Only the owner of the run can open `private/`.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pmtl import storage as files
from pmtl.data import Scaling
from pmtl.errors import PmtlError
from pmtl.privacy.statement.statement import Statement
from pmtl.progress import progress_bar
from pmtl.runs.budget import Checkpoint, Published
from pmtl.runs.config import TrainConfig
from pmtl.runs.facts import public_facts, versions
from pmtl.runs.personal import Personal, write_personal
from pmtl.simulation import CHECKS, RunState

KEY_BYTES = 32
_NOTES = (
    "For the owner of the data alone: rows that were left out and clients that could not be "
    "trained.\nNothing of this shows in public/ or in anybody else's model.\n"
)


def new_key(mode: str) -> bytes:
    """The key of a new run's digests: a secret in production, the empty key in an experiment."""
    return secrets.token_bytes(KEY_BYTES) if mode == "production" else b""


#: What the server keeps beside the billboard begins so in a checkpoint.
_SERVER = "server."


class RunFolder:
    """Reads and writes the files of one run; knows where each of them lies."""

    def __init__(self, path: str | Path, divided: bool | None = None) -> None:
        """`divided`: whether there is a public and a private part (production); unless given, the
        folder on disk tells."""
        self.path = Path(path)
        if divided is None:
            divided = (self.path / "private").is_dir() and not (self.path / "run.json").exists()
        self.divided = divided
        self.public = self.path / "public" if self.divided else self.path
        self.private = self.path / "private" if self.divided else self.path
        self.config_file = self.private / "config.toml"
        self.facts_file = self.private / "run.json"
        self.key_file = self.private / "key"
        self.checkpoint_file = self.private / "checkpoint.safetensors"
        self.owned_file = self.private / "owned.rows"
        self.personal_file = self.private / "personal.safetensors"
        self.scaling_file = self.private / "scaling.safetensors"
        self.result_file = self.private / "result.json"
        self.finetuned = self.private / "finetuned"
        self.lock_file = self.private / ".lock"
        self.notes_file = self.private / "notes.txt"  # In production only.
        self.plan_file = self.public / "plan.json"  # In production only.
        self.metrics_file = self.public / "metrics.jsonl"
        self.shared_file = self.public / "shared.safetensors"
        self.statement_file = self.public / "privacy.txt"

    @classmethod
    def create(
        cls, path: str | Path, config: TrainConfig, facts: Mapping[str, Any], key: bytes = b""
    ) -> RunFolder:
        """Make a folder that appears with its first files in it, or not at all. In production,
        `key` is what `new_key` gave."""
        path = Path(path)
        cls.refuse_existing(path)
        divided = config.mode == "production"
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        with files.disk_errors(path):
            try:
                partial.mkdir(parents=True, mode=0o755 if divided else 0o777)
                new = cls(partial, divided)
                if divided:
                    make_private(new.private)
                    new.public.mkdir(mode=0o755)
                    files.write_bytes(new.key_file, key)
                    files.write_json(new.plan_file, {**versions(), **public_facts(config, facts)})
                    files.write_text(new.notes_file, _NOTES)
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
        if folder.divided and files.open_to_others(folder.private):
            raise PmtlError(
                f"{folder.private} holds private files, and others than its owner have access to "
                f"it: run `chmod -R go= {folder.private}`, and find out who has read it."
            )
        try:
            there = folder.facts_file.exists()
        except PermissionError as error:
            raise PmtlError(f"Only its owner can open {folder.private}.") from error
        parts = {"public": folder.plan_file.exists(), "private": there and folder.key_file.exists()}
        if not folder.divided and any(parts.values()):
            which = "private" if parts["private"] else "public"
            raise PmtlError(f"{path} is only the {which} part of a run: give the folder above it.")
        if not there:
            raise PmtlError(f"{path} is not a run of pmtl: it has no {folder.facts_file.name}.")
        return folder

    @cached_property
    def key(self) -> bytes:
        """The key of the digests of private values; in an experiment, the empty one."""
        if not self.divided:
            return b""
        try:
            key = self.key_file.read_bytes()
        except OSError as error:
            raise PmtlError(
                f"{self.key_file} cannot be read ({error.strerror}): without it nothing in the "
                "folder can be checked. Put it back."
            ) from error
        if len(key) != KEY_BYTES:
            raise PmtlError(f"{self.key_file} is damaged: it does not have {KEY_BYTES} bytes.")
        return key

    def note(self, sentence: str) -> None:
        """Add a sentence for the owner of the data alone (production)."""
        with (
            files.disk_errors(self.notes_file),
            self.notes_file.open("a", encoding="utf-8") as file,
        ):
            file.write(f"- {sentence}\n")

    def facts(self) -> dict[str, Any]:
        """What `run.json` says."""
        return files.read_json(self.facts_file)

    def save_round(self, line: Mapping[str, Any]) -> None:
        """Add a round's line to the metrics."""
        files.append_line(self.metrics_file, line)

    def metrics(self, known: str | None = None) -> list[dict[str, Any]]:
        """The rounds so far; where the digest of their lines is `known`, these and no others."""
        text = self._metrics_text()
        if known not in (None, files.digest_of_text(text, self.key)):
            raise self._damaged_metrics()
        try:
            return [json.loads(line) for line in text.splitlines()]
        except ValueError:
            raise self._damaged_metrics() from None

    def save_checkpoint(self, progress: RunState, history: Mapping[str, Any]) -> str:
        """Replace the checkpoint; the metrics and the file of vectors that it stands for are on
        disk before it is. Returns the digest of its numbers, which covers all vectors and the
        `history` (what it says of the ledger)."""
        files.flush(self.metrics_file)
        digest = files.write_tensors(
            self.checkpoint_file,
            {
                "shared": progress.shared,
                **{f"{_SERVER}{name}": part for name, part in progress.memory.items()},
                **progress.store.snapshot(),
            },
            {
                "round": progress.round,
                "metrics": self._metrics_digest(),
                "history": dict(history),
            },
            self.key,
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

    def load_checkpoint(self, start: RunState, show: bool = False) -> RunState:
        """The last saved progress, or `start` if there is none."""
        if not self.checkpoint_file.exists():
            return start
        tensors, metadata = files.read_tensors(self.checkpoint_file, key=self.key)
        shared = _fitting(tensors, "shared", start.shared, self.checkpoint_file)
        with progress_bar("checking", CHECKS, 0, show and "slots" in tensors) as bar:
            start.store.restore(tensors, bar.advance)
        memory = {
            name: _fitting(tensors, f"{_SERVER}{name}", like, self.checkpoint_file)
            for name, like in start.memory.items()
        }
        progress = RunState(int(metadata["round"]), shared, memory, start.store)
        # The lines that the checkpoint stands for were on disk before it was.
        if self._metrics_digest(progress.round) != metadata["metrics"]:
            raise self._damaged_metrics()
        return progress

    def drop_later_metrics(self, round: int) -> None:
        """Keep the lines up to `round`; one that a crash cut short is later than any checkpoint."""
        files.write_text(self.metrics_file, self._metrics_text(round))

    def _metrics_digest(self, rounds: int | None = None) -> str:
        return files.digest_of_text(self._metrics_text(rounds), self.key)

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
            "metrics": self._metrics_digest(),
            # Published, so its digest is nobody's secret: everybody can check the file.
            "shared": files.write_tensors(self.shared_file, shared, {"model": facts["model"]}),
        }
        if personal is not None:
            of_rows = {
                name: [facts[name][client] for client in personal.seen.tolist()]
                for name in ("clients", "blocks")
            }
            written["personal"] = write_personal(
                self.personal_file, personal, about | of_rows, self.key
            )
        if scaling is not None:  # Every client's part is its own affair.
            parts = {
                "means": torch.from_numpy(scaling.means),
                "widths": torch.from_numpy(scaling.widths),
            }
            written["scaling"] = files.write_tensors(self.scaling_file, parts, {}, self.key)
        save_statement(self.public, statement)
        if result is not None:
            files.write_json(self.result_file, result)
        files.write_json(self.facts_file, {**versions(), **facts, "written": written})
        if self.owned_file.exists():  # As large as the models, and of no more use.
            self.checkpoint_file.unlink()
            self.owned_file.unlink()

    def load_scaling(self, written: Mapping[str, str]) -> Scaling | None:
        """What each client does to its rows."""
        if "scaling" not in written:
            return None
        parts, _ = files.read_tensors(self.scaling_file, written["scaling"], self.key)
        return Scaling(parts["means"].numpy(), parts["widths"].numpy())


def save_statement(folder: Path, statement: Statement) -> None:
    """Write the privacy statement for people and for programs."""
    files.write_text(folder / "privacy.txt", str(statement))
    files.write_json(folder / "privacy.json", statement.to_dict())


def make_private(folder: Path) -> None:
    """Make a folder that only its owner can open; its files are then for its owner, too."""
    folder.mkdir(mode=0o700)
    if files.open_to_others(folder):
        raise PmtlError(
            f"{folder.parent} is on a file system that cannot keep files to their owner, and a "
            "production run has private ones: choose another --out."
        )


def _fitting(tensors: Mapping[str, Tensor], name: str, like: Tensor, file: Path) -> Tensor:
    """A tensor of the checkpoint, of the shape and kind that the run starts with."""
    shape = tuple(like.shape)
    if "clients" not in tensors or name not in tensors or tensors[name].shape != shape:
        raise PmtlError(
            f"{file} does not fit this run: its {name!r} is not of shape {shape}. Was the model or "
            "the federation changed?"
        )
    return tensors[name].to(like)
