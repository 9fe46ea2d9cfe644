"""The folder of a run at a site: as `pmtl train` writes it, with the site's own clients only.

`pmtl predict`, `evaluate`, `finetune` and `export` work on it without the server.
"""

from __future__ import annotations

import secrets
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import Tensor

from pmtl.algorithms import Algorithm
from pmtl.billboard import Billboard
from pmtl.data import FederatedData
from pmtl.errors import PublicError
from pmtl.federation.agreement import Agreement
from pmtl.federation.training import Ints, Training
from pmtl.federation.transport import AT_THE_SERVER
from pmtl.models import FlatModel
from pmtl.privacy.ledger.events import GaussianEvent
from pmtl.runs.config import IN_MEMORY
from pmtl.runs.folder import KEY_BYTES, RunFolder
from pmtl.runs.personal_file import personal_models
from pmtl.runs.preparation import facts_of
from pmtl.runs.result import statement_of
from pmtl.sharing import PublicInputs
from pmtl.storage import disk_errors


@dataclass(frozen=True)
class RunResult:
    """Writes the folder of one run at a site."""

    path: Path
    agreement: Agreement
    data: FederatedData  #: the rows as they are trained on, with the site's own names of clients
    model: FlatModel  #: with the common start
    public: PublicInputs  #: the public start or basis

    def create(self, algorithm: Algorithm) -> None:
        """Make the folder, unless it exists."""
        if self.path.exists():
            return
        agreement, data = self.agreement, self.data
        ledger = AT_THE_SERVER if agreement.config.mode == "production" else None
        config = replace(
            agreement.config, data=data.source or IN_MEMORY, ledger=ledger, device="cpu"
        )
        key = secrets.token_bytes(KEY_BYTES) if config.mode == "production" else b""
        billboard = Billboard(np.zeros(data.m, dtype=np.int64))
        facts = facts_of(
            config=config,
            data=data,
            model=self.model,
            algorithm=algorithm,
            billboard=billboard,
            plan=agreement.plan,
            metrics=None,
            key=key,
            id=agreement.run,
            initialisation=agreement.initialisation,
            public_files=dict(self.public.about),
            start_digest=self.public.digest(),
            secure=agreement.secure,
            at_site=True,
        )
        RunFolder.create(self.path, config, facts, key, self.public)
        for sentence in data.for_owner:
            self.note(sentence)

    @staticmethod
    def remove_unfinished(path: Path) -> None:
        """Remove the folder of a run that has no models yet, if there is one."""
        if not path.exists():
            return
        if RunFolder.open(path).facts().complete:
            raise PublicError("This site has models of a run of this name.")
        with disk_errors(path, "removed"):
            shutil.rmtree(path)

    def note(self, sentence: str) -> None:
        """Add a sentence for the owner of the site's data only."""
        folder = RunFolder.open(self.path)
        if folder.divided:
            folder.note(sentence)

    def write(
        self, training: Training, shared: Tensor, vectors: Tensor, blocks: Ints, rounds: int
    ) -> None:
        """Write the personal models, what was published, and the statement. `shared` [m, P] is what
        clients read at the end, `vectors` [V, P] what was published of it, and `blocks` [m] which
        of these each client reads."""
        folder, algorithm = RunFolder.open(self.path), training.algorithm
        models = personal_models(
            algorithm=algorithm,
            store=training.store,
            shared=vectors,
            weights=training.weights(shared),
            alone=training.alone(),
        )
        facts = folder.facts()
        events = {GaussianEvent.of(facts.plan): rounds} if facts.shares else None
        billboard = Billboard(blocks)
        facts = replace(
            facts,
            state="complete",
            blocks=tuple(blocks.tolist()),
            board=billboard.digest(),
            charged=events,
        )
        published = {"weights": algorithm.published(vectors) if algorithm.exact else vectors}
        statement = statement_of(facts)
        folder.save_result(facts, models, published, self.data.scaling, statement, None)
