"""What the server keeps on its disk: the ledger, and a folder for each run.

FOLDER/ledger.db               the clients' ledger
FOLDER/runs/RUN/agreement.json what the sites agreed on
FOLDER/runs/RUN/start.safetensors       a public start, if there is one
FOLDER/runs/RUN/checkpoint.safetensors  the billboard, and which sites' uploads were counted
FOLDER/runs/RUN/public/        what may be handed out: shared model, plan, statement
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from pmtl import storage as files
from pmtl.algorithms import ExactAlgorithm
from pmtl.federation.agreement import Agreement
from pmtl.federation.messages import check_run_name
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.privacy.statement.statement import make_statement
from pmtl.runs.budget import Budget, Checkpoint, Published
from pmtl.server import Server
from pmtl.server.server import ServerState
from pmtl.sharing import PublicInputs

_MEMORY = "server."


class ServerFolder:
    """The files of one server."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with files.disk_errors(path):
            (path / "runs").mkdir(parents=True, exist_ok=True)

    def ledger(self, clients: tuple[str, ...]) -> Ledger:
        """The ledger, open for writing; it is made with the first run."""
        file = self.path / "ledger.db"
        if not file.exists() and not file.with_name("ledger.db.head").exists():
            Ledger.create(file, clients).close()
        return Ledger.open(file, clients)

    def run(self, name: str) -> ServerRun:
        """The files of one run."""
        return ServerRun(self.path / "runs" / check_run_name(name))


class ServerRun:
    """The files of one run at the server."""

    def __init__(self, path: Path) -> None:
        self.path, self.public = path, path / "public"
        self._agreement = path / "agreement.json"
        self._start = path / "start.safetensors"
        self._checkpoint = path / "checkpoint.safetensors"

    @property
    def exists(self) -> bool:
        return self._agreement.exists()

    def lock(self) -> AbstractContextManager[None]:
        """Held while a run is under way: one server at a time."""
        return files.exclusive(self.path / ".lock")

    def create(self, agreement: Agreement, public: PublicInputs, key: str) -> None:
        """Keep what was agreed, before anything is spent."""
        with files.disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        if kept := public.tensors():
            files.write_tensors(self._start, kept, {})
        about = {"agreement": agreement.to_dict(), "key": key, "files": dict(public.about)}
        files.write_json(self._agreement, about)

    def remove(self) -> None:
        """Remove a run that did not start."""
        with files.disk_errors(self.path, "removed"):
            shutil.rmtree(self.path)

    def read(self) -> tuple[Agreement, PublicInputs, str]:
        """What `create` kept: the agreement, the public start, and the key of the noise."""
        kept = files.read_json(self._agreement)
        tensors = files.read_tensors(self._start)[0] if self._start.exists() else {}
        public = PublicInputs.from_tensors(tensors)
        public = PublicInputs(public.start, public.rows, kept["files"])
        return Agreement.from_dict(kept["agreement"]), public, kept["key"]

    def load(
        self, start: ServerState, sites: Iterable[str], budget: Budget | None
    ) -> tuple[ServerState, dict[str, int]]:
        """The state after the last published round, and in which round each site's upload was last
        counted (−1: in none)."""
        counted = dict.fromkeys(sites, -1)
        checkpoint = None
        if self._checkpoint.exists():
            tensors, about = files.read_tensors(self._checkpoint)
            memory = {name: tensors[f"{_MEMORY}{name}"] for name in start.memory}
            start = ServerState(int(about["round"]), tensors["shared"], memory)
            counted |= about["counted"]
            digest = files.read_metadata(self._checkpoint)["digest"]
            checkpoint = Checkpoint(start.round, digest, about["history"])
        elif budget is not None:
            self.save(start, counted, budget)  # The start is saved before anything is charged.
            return start, counted
        if budget is not None:
            budget.check_resumable(checkpoint, Published(start.round, ()))
        return start, counted

    def save(self, state: ServerState, counted: Mapping[str, int], budget: Budget | None) -> None:
        """Write the state after a round."""
        memory = {f"{_MEMORY}{name}": part for name, part in state.memory.items()}
        history = {} if budget is None else budget.history()
        about = {"round": state.round, "counted": dict(counted), "history": history}
        digest = files.write_tensors(self._checkpoint, {"shared": state.shared, **memory}, about)
        if budget is not None:
            budget.saved(state.round, digest)

    def stopped(self, reason: str) -> None:
        """Record why a run ended before its last round."""
        files.write_json(self.path / "stopped.json", {"reason": reason})

    def finish(
        self, agreement: Agreement, server: Server, state: ServerState, budget: Budget | None
    ) -> None:
        """Write what may be handed out."""
        algorithm = server.algorithm
        spent: dict[str, Any] = {} if budget is None else budget.spent(agreement.plan.delta)
        statement = make_statement(
            agreement.plan,
            shares=algorithm.shares,
            personal=algorithm.personal,
            mode=agreement.config.mode,
            hardened=agreement.hardened,
            charged=spent.get("charged"),
            population_epsilon=spent.get("population_epsilon"),
            population_filter=spent.get("population_filter"),
            relations=algorithm.relations,
            releases=algorithm.in_words if isinstance(algorithm, ExactAlgorithm) else None,
            sites=agreement.secure,
        )
        with files.disk_errors(self.public):
            self.public.mkdir(exist_ok=True)
        shown = {"weights": algorithm.published(state.shared), **server.billboard.tensors()}
        about = {"model": agreement.config.model}
        files.write_tensors(self.public / "shared.safetensors", shown, about)
        files.write_json(self.public / "plan.json", agreement.to_dict())
        files.write_text(self.public / "privacy.txt", str(statement))
        files.write_json(self.public / "privacy.json", statement.to_dict())
