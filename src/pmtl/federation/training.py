"""A site's clients in one run: local training, what they upload, and what they own.

What a round changes is *pending* until the server says that the site's upload was counted: an
upload that was not counted does not change any personal model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pmtl.algorithms import Algorithm, ExactAlgorithm
from pmtl.data import FederatedData, load
from pmtl.data.splits import Rows
from pmtl.engines.row_tensors import RowTensors
from pmtl.errors import PublicError
from pmtl.federation.agreement import Agreement, Columns, belongs_to
from pmtl.federation.limits import SiteSettings
from pmtl.models import FlatModel
from pmtl.privacy.clipping import clip
from pmtl.privacy.grid import Grid
from pmtl.runs.config import TrainConfig
from pmtl.simulation.client_vectors.final_models import alone_weights, final_weights, no_vectors
from pmtl.simulation.client_vectors.store import Store
from pmtl.simulation.fault_isolation import (
    COUNTS_AS_ZERO,
    NO_MODEL,
    Failed,
    checked,
    checked_training,
    failure_notes,
    isolated,
    left_out,
)
from pmtl.simulation.sites import Sites

CPU = torch.device("cpu")
#: Sites with at most this many clients use threads, which give the same bits as `engine=debug`.
_FEW_CLIENTS = 256
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Pending:
    """What a round would change."""

    round: int
    clients: Ints  #: positions of the clients that were trained
    kept: Tensor  #: [K, own] what they would own


@dataclass(repr=False)
class SiteRows:
    """The rows of one site, read once for each mode."""

    name: str
    settings: SiteSettings
    _data: dict[bool, FederatedData] = field(default_factory=dict, init=False)

    def load(self, config: TrainConfig) -> FederatedData:
        """The rows, as a run of this mode reads them."""
        production = config.mode == "production"
        if production not in self._data:
            data = load(self.settings.data, production=production)
            one = self.settings.one_client
            self._data[production] = as_one_client(data, self.name) if one else data
        return self._data[production]

    def names(self, data: FederatedData) -> tuple[str, ...]:
        """The clients' names as the server knows them."""
        if self.settings.one_client:
            return (self.name,)
        return tuple(f"{self.name}/{client}" for client in data.clients)

    def check(self, agreement: Agreement) -> FederatedData:
        """The rows for a run; one that is about other clients or columns is refused."""
        data = self.load(agreement.config)
        named = tuple(client for client in agreement.clients if belongs_to(client, self.name))
        if named != self.names(data):
            raise PublicError("The run names other clients of this site than this site has.")
        if difference := Columns.of(data).difference(agreement.columns):
            raise PublicError(f"The run's columns are not this site's ({difference}).")
        return data


@dataclass(repr=False)  # It holds rows and a secret number.
class Training:
    """The clients of one site, in one run."""

    agreement: Agreement
    data: FederatedData  #: with the names that the server knows
    model: FlatModel  #: with the common start
    algorithm: Algorithm  #: with all settings
    seed: int  #: decides the batches; in production a secret random number of this site
    whole: bool  #: whether uploads are whole steps of the grid, for a hardened gate
    notify_owner: Callable[[str], None]  #: called with sentences for the owner of the data only
    pending: Pending | None = None

    def __post_init__(self) -> None:
        data, self._plan = self.data, self.agreement.plan
        self.store = Store(data.m, self.algorithm.start(self.model.start()))
        self._trains = data.rows("train").counts > 0
        self._sites = Sites(
            data,
            RowTensors(data, CPU, torch.float32),
            self.model,
            self.algorithm,
            self.agreement.config.local,
            self.seed,
            engine="threads" if data.m <= _FEW_CLIENTS else "auto",
            cohort=data.m,
            largest=None,
            rounds=self._plan.rounds,
            isolate=True,  # No client's numbers depend on other clients, to the last bit.
        )

    def train(self, round: int, drawn: Ints, shared: Tensor) -> Tensor:
        """The uploads `[K, U]` of the clients at the positions `drawn`, clipped; `shared` `[m, P]`
        is what this site's clients read. A client that fails counts as zero, and keeps what it
        has. Rounds are counted from 0."""
        shares = self.algorithm.shares
        size = (self.algorithm.upload_size(round) or shared.shape[1]) if shares else 0
        uploads = torch.zeros(len(drawn), size, dtype=torch.float64)
        own = self.store.gather(drawn)
        kept = own.clone()
        lr = self._sites.local.lr_at(round)

        def work(places: Ints) -> tuple[Tensor, Tensor]:
            chosen = torch.from_numpy(places)
            clients = drawn[places]
            read = shared[torch.from_numpy(clients)]
            made = self._sites.train_clients(clients, own[chosen], read, round, lr)
            made = checked_training(made, own[chosen], shared, size if shares else None)
            return made.kept, made.uploads

        names = [self.data.clients[client] for client in drawn]
        failed = failure_notes(self.notify_owner, names, "trained", round)
        for piece in self._sites.pieces(np.flatnonzero(self._trains[drawn])):
            for places, (after, sent) in isolated(piece, work, failed):
                chosen = torch.from_numpy(places)
                kept[chosen] = after
                if shares:
                    uploads[chosen] = clip(sent, self._plan.clip_norm, one_by_one=True)
        self.pending = Pending(round, drawn, kept)
        return Grid.of(self._plan).snap(uploads) if self.whole else uploads

    def decide(self, counted: int) -> bool:
        """Keep or drop what is pending, by the last round in which this site's upload was `counted`
        (−1: in none); returns whether anything changed."""
        pending, self.pending = self.pending, None
        if pending is None or pending.round != counted:
            return False
        self.store.scatter(pending.clients, pending.kept)
        return True

    def finish(self, shared: Tensor) -> None:
        """Let every client make its model from what was published, if the algorithm does that
        after the last release; `shared` [m, P] is what clients read. A client for whom that fails
        has the shared model."""
        if not isinstance(self.algorithm, ExactAlgorithm):
            return
        everybody = np.arange(self.data.m, dtype=np.int64)

        def solve(clients: Ints) -> Tensor:
            made = self._sites.finish_clients(clients, shared[torch.from_numpy(clients)])
            return checked(made, "vectors", self.store.start.expand(len(clients), -1))

        told = self._failed("given a model of its own", NO_MODEL)
        for piece in self._sites.pieces(everybody):
            done = isolated(piece, solve, told)
            failed = left_out(piece, done)
            for clients, own in [*done, (failed, no_vectors(self.store.start, len(failed)))]:
                self.store.scatter(clients, own)

    def weights(self, shared: Tensor) -> Callable[[Ints], Tensor]:
        """A function that gives the weights with which any clients predict; `shared` [m, P] is what
        clients read at the end."""
        return final_weights(
            algorithm=self.algorithm,
            predictors=self._sites.predictors,
            store=self.store,
            read=lambda clients: shared[torch.from_numpy(clients)],
            failed=self._failed("given a model of its own", NO_MODEL),
        )

    def alone(self) -> Callable[[Ints], Tensor] | None:
        """The same for what clients would have without the others, if the algorithm knows it."""
        if not isinstance(self.algorithm, ExactAlgorithm):
            return None
        failed = self._failed("given a model without the others")
        return alone_weights(self.algorithm, self.store, failed)

    def _failed(self, what: str, instead: str = COUNTS_AS_ZERO) -> Failed:
        """Tells the owner about a client that failed after the last round."""
        names, rounds = self.data.clients, self._plan.rounds
        return failure_notes(self.notify_owner, names, what, rounds, instead)


def as_one_client(data: FederatedData, name: str) -> FederatedData:
    """The same rows, all of one client."""
    splits = {
        split: Rows(rows.order, np.array([0, len(rows.order)]))
        for split, rows in data.splits.items()
    }
    return replace(data, clients=(name,), splits=splits, source=None)
