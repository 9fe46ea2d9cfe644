"""A run's folder: its files, and how they are written so that no crash can damage them.

An experiment's folder is flat, and nothing in it is private. A production run's folder has two
parts. `public/` may be given to anyone: it depends only on public settings and on what was
published. Only the owner of the run can open `private/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import Any

import torch
from torch import Tensor

from pmtl import storage as files
from pmtl.data import Scaling, Schema
from pmtl.data.scaling import LIMIT
from pmtl.errors import PmtlError
from pmtl.jsontext import to_json
from pmtl.privacy.statement.statement import Statement
from pmtl.runs.budget import Checkpoint
from pmtl.runs.config import TrainConfig
from pmtl.runs.facts import RunFacts, public_facts
from pmtl.runs.metrics_file import MetricsFile
from pmtl.runs.personal_file import Personal, write_personal
from pmtl.sharing import PublicInputs
from pmtl.simulation import RunState
from pmtl.simulation.client_vectors.rows_on_disk import CHECKS
from pmtl.views.frames import csv_text
from pmtl.views.progress import progress_bar

KEY_BYTES = 32
_NOTES = (
    "For the owner of the data only: rows that were left out and clients that could not be "
    "trained.\nNone of this is visible in public/ or in the models of other clients.\n"
)
#: Prefix, in a checkpoint, of what the server keeps beside the billboard.
_SERVER = "server."


class RunFolder:
    """Reads and writes the files of one run. `divided` says whether there is a public and a private
    part (production); by default the folder on disk decides."""

    def __init__(self, path: str | Path, divided: bool | None = None) -> None:
        self.path = files.as_path(path, "The folder of a run")
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
        self.alone_file = self.private / "alone.safetensors"
        self.scaling_file = self.private / "scaling.safetensors"
        self.result_file = self.private / "result.json"
        self.finetuned = self.private / "finetuned"
        self.lock_file = self.private / ".lock"
        self.notes_file = self.private / "notes.txt"  # In production only.
        self.plan_file = self.public / "plan.json"  # In production only.
        self.metrics_file = self.public / "metrics.jsonl"
        self.table_file = self.public / "metrics.csv"  # The same, when the run is complete.
        self.shared_file = self.public / "shared.safetensors"
        self.start_file = self.public / "start.safetensors"  # With a public start or basis only.
        self.statement_file = self.public / "privacy.txt"

    @classmethod
    def create(
        cls,
        path: str | Path,
        config: TrainConfig,
        facts: RunFacts,
        key: bytes = b"",
        public: PublicInputs | None = None,
    ) -> RunFolder:
        """Make the folder with its first files: after a crash, the whole folder is there or none.
        `key` is the key of the digests of private values, empty in an experiment. The folder keeps
        a copy of `public`."""
        path = Path(path)
        cls.refuse_existing(path)
        divided = facts.production
        with files.new_folder(path) as partial:
            partial.mkdir(parents=True, mode=0o755 if divided else 0o777)
            new = cls(partial, divided)
            if divided:
                make_private(new.private)
                new.public.mkdir(mode=0o755)
                files.write_bytes(new.key_file, key)
                files.write_json(new.plan_file, public_facts(config, facts))
                files.write_text(new.notes_file, _NOTES)
            files.write_text(new.config_file, config.to_toml())
            if facts.schema is not None:
                schema = Schema.from_dict(facts.schema)
                files.write_text(new.public / "schema.toml", schema.to_toml())
            if public is not None and (kept := public.tensors()):
                files.write_tensors(new.start_file, kept, {})
            new.save_facts(facts)
        return cls(path)

    @staticmethod
    def refuse_existing(path: str | Path) -> None:
        """Refuse a path where there is a file or a folder that is not empty."""
        if not files.is_free(files.as_path(path, "out")):
            raise PmtlError(
                f"{path} exists already: choose another --out, continue it with "
                f"`pmtl resume {quote(str(path))}`, or delete it first."
            )

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """An existing run."""
        folder = cls(path)
        if not folder.path.is_dir():
            raise PmtlError(f"There is no run at {path}: give the folder that `pmtl train` wrote.")
        if folder.divided and files.others_have_access(folder.private):
            raise PmtlError(
                f"{folder.private} holds private files, but other users have access to it: "
                f"run `chmod -R go= {folder.private}`, and find out who has read it."
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
        """The key of the digests of private values; empty in an experiment."""
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
        """Add a sentence for the owner of the data only (production)."""
        files.append_line(self.notes_file, f"- {sentence}")

    def facts(self) -> RunFacts:
        return RunFacts.from_dict(files.read_json(self.facts_file), str(self.facts_file))

    def load_public(self, facts: RunFacts) -> PublicInputs:
        """The copy of the public start and basis."""
        if facts.start_digest is None:
            return PublicInputs()
        return PublicInputs.from_tensors(files.read_tensors(self.start_file, facts.start_digest)[0])

    def save_facts(self, facts: RunFacts) -> None:
        files.write_json(self.facts_file, facts.to_dict())

    def save_round(self, line: Mapping[str, Any]) -> None:
        files.append_line(self.metrics_file, to_json(line))

    @cached_property
    def metrics(self) -> MetricsFile:
        return MetricsFile(self.metrics_file, self.key)

    def save_checkpoint(self, progress: RunState, history: Mapping[str, Any]) -> str:
        """Replace the checkpoint, after the metrics and the file of vectors are on disk.

        Returns its digest, which covers all vectors and the `history` (`Budget.history`)."""
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
                "metrics": self.metrics.digest(),
                "history": dict(history),
            },
            self.key,
        )
        progress.store.checkpoint_saved()
        return digest

    def checkpoint(self) -> Checkpoint | None:
        """What identifies the checkpoint; None if there is none. `load_checkpoint` checks it."""
        if not self.checkpoint_file.exists():
            return None
        metadata = files.read_metadata(self.checkpoint_file)
        return Checkpoint(metadata["round"], metadata["digest"], metadata.get("history", {}))

    def load_checkpoint(self, start: RunState, show: bool = False) -> RunState:
        """The state at the last checkpoint, or `start` if there is none."""
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
        if self.metrics.digest(progress.round) != metadata["metrics"]:
            raise self.metrics.damaged()
        return progress

    def save_result(
        self,
        facts: RunFacts,
        personal: Mapping[str, Personal],
        shared: Mapping[str, Tensor],
        scaling: Scaling | None,
        statement: Statement,
        result: Any,
    ) -> None:
        """Write the models and the statement, and then `run.json`, which makes the run complete and
        has the digest of every file that `load_run` reads. `personal` are the models of each
        client: "personal", and "alone" if the run has them."""
        written = {
            "metrics": self.metrics.digest(),
            # The file is public, so its digest has no key.
            "shared": files.write_tensors(self.shared_file, shared, {"model": facts.model}),
        }
        for name, models in personal.items():
            seen = models.seen.tolist()
            about = {
                "clients": [facts.clients[client] for client in seen],
                "model": facts.model,
                "blocks": [facts.blocks[client] for client in seen],
            }
            file = self.personal_file if name == "personal" else self.alone_file
            written[name] = write_personal(file, models, about, self.key)
        if scaling is not None:
            given = vars(scaling).items()
            parts = {name: torch.from_numpy(part) for name, part in given if part is not None}
            written["scaling"] = files.write_tensors(self.scaling_file, parts, {}, self.key)
        save_statement(self.public, statement)
        files.write_text(self.table_file, csv_text(self.metrics.lines()))
        if result is not None:
            files.write_json(self.result_file, result)
        self.save_facts(replace(facts, written=written))
        if self.owned_file.exists():  # As large as the models, and no longer needed.
            self.checkpoint_file.unlink()
            self.owned_file.unlink()

    def load_scaling(self, written: Mapping[str, str]) -> Scaling | None:
        """How each client scales its rows."""
        if "scaling" not in written:
            return None
        parts, _ = files.read_tensors(self.scaling_file, written["scaling"], self.key)
        # Files of earlier versions, which knew no bounds, have no limits.
        limits = parts.get("limits", torch.full(parts["means"].shape[1:], LIMIT))
        fills = parts["fills"].numpy() if "fills" in parts else None
        return Scaling(parts["means"].numpy(), parts["widths"].numpy(), limits.numpy(), fills)


def save_statement(folder: Path, statement: Statement) -> None:
    files.write_text(folder / "privacy.txt", str(statement))
    files.write_json(folder / "privacy.json", statement.to_dict())


def make_private(folder: Path) -> None:
    """Make a folder that only its owner can open, and with it all files in it."""
    folder.mkdir(mode=0o700)
    if files.others_have_access(folder):
        raise PmtlError(
            f"{folder.parent} is on a file system without private files, which a production run "
            "needs: choose another --out."
        )


def _fitting(tensors: Mapping[str, Tensor], name: str, like: Tensor, file: Path) -> Tensor:
    """A tensor of the checkpoint; it must have the shape of `like`, and gets its type."""
    shape = tuple(like.shape)
    if "clients" not in tensors or name not in tensors or tensors[name].shape != shape:
        raise PmtlError(
            f"{file} does not fit this run: its {name!r} is not of shape {shape}. The model or the "
            "federation may have changed."
        )
    return tensors[name].to(like)
