"""The loop: sample, train, pass the gate, repeat.

A `Simulation` is one server (`server/`) and many sites (`sites.py`) in one process, or in the
processes of one team. Every random choice is a function of the seed and the round, so a `RunState`
is all that has to be saved: a run that is resumed from it computes the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from pmtl.algorithms import ExactAlgorithm
from pmtl.engines.base import Ints, Trained
from pmtl.errors import PmtlError
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.release import Tally
from pmtl.server import Server, ServerState
from pmtl.simulation.client_vectors.final_models import alone_weights, final_weights, no_vectors
from pmtl.simulation.client_vectors.store import Store
from pmtl.simulation.evaluation import Evaluator, Floats, Metrics, Weights
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
from pmtl.simulation.noise_key import NoiseKey
from pmtl.simulation.released_metrics import ReleasedMetrics, metric_bounds
from pmtl.simulation.round_report import RoundReport
from pmtl.simulation.sites import Sites
from pmtl.simulation.team import ALONE, Team


@dataclass
class RunState(ServerState):
    """The state of a run: the server's state and the clients' own vectors."""

    store: Store
    changed: set[int] = field(default_factory=set)  #: in a team: trained here, not yet collected


class Simulation:
    """One server and many sites, round by round; `simulate` makes one.

    In the methods:
        - state: the state of the run.
        - clients: numbers of clients.

    Args:
        server: the server.
        sites: the clients and their local training.
        noise_key: the key of the noise, which metrics are added to.
        hardened: whether the gate of metrics draws its noise exactly.
        team: the processes that share the work.
    """

    def __init__(
        self,
        server: Server,
        sites: Sites,
        noise_key: NoiseKey,
        hardened: bool = False,
        team: Team = ALONE,
    ) -> None:
        self.server = server
        self.sites = sites
        self.team = team
        self.noise_key = noise_key
        self.data, self.model, self.algorithm = sites.data, sites.model, server.algorithm
        self.plan = server.plan
        #: In production, called with sentences that only the owner of the data may see.
        self.notify_owner: Callable[[str], None] = lambda sentence: None
        self.released_metrics: ReleasedMetrics | None = None
        self._hardened = hardened
        self._production = server.production
        self._next: tuple[int, Ints] | None = None
        #: Which clients have training rows. In production, a client without counts as zero.
        self._trains = self.data.rows("train").counts > 0

    def prepare_metrics(
        self,
        plan: PrivacyPlan,
        loss_bound: float | None = None,
        charge: Callable[[int], None] | None = None,
        every: int = 0,
    ) -> None:
        """Prepare the release of average metrics; to be called before the first round.

        Args:
            plan: the privacy plan of these releases.
            loss_bound: larger losses of a client count as this.
            charge: charges a release to the clients' ledger.
            every: rounds between two releases.
        """
        if self._production and charge is None:
            raise PmtlError("In production every release is charged: give a ledger.")
        target = None if self.data.bounds is None else self.data.bounds.target
        bounds = metric_bounds(self.data.task, self.data.outputs, loss_bound, target)
        self.noise_key.add_metrics(plan.to_dict(), bounds, self.measured, every)
        source = self.noise_key.source(" metrics")
        self.released_metrics = ReleasedMetrics(
            plan, self.measured, bounds, source, self._hardened, charge
        )

    def start(self, file: Path | None = None) -> RunState:
        """The state before the first round: all clients hold the common start.

        Args:
            file: the file for the clients' vectors if they do not fit in memory; a temporary one
                unless given.
        """
        common = self.team.from_leader(self.model.start())  # In production each start is random.
        rate = self.plan.rate if self.algorithm.shares else 1.0
        expected = self.data.m * (1 - (1 - rate) ** self.plan.rounds) / self.team.size
        store = Store(self.data.m, self.algorithm.start(common), expected, file)
        server = self.server.start(common)
        return RunState(server.round, server.shared, server.memory, store)

    def rounds(self, state: RunState) -> Iterator[RoundReport]:
        """Run the remaining rounds, changing `state` in place after each."""
        while state.round < self.plan.rounds:
            yield self.advance(state)

    def advance(self, state: RunState) -> RoundReport:
        """Run one round, changing `state` in place."""
        round = state.round
        cohort = self._cohort(round)
        lr = self.sites.local.lr_at(round)
        tally = self.server.open(state, cohort)
        losses, norms = [], []
        for piece in self.sites.pieces(self.team.part(cohort)):
            # Read outside of `train`: an error of the disk is not caused by a client's data.
            owned = state.store.gather(piece)

            def train(clients: Ints, piece: Ints = piece, owned: Tensor = owned) -> Trained:
                if len(clients) < len(piece):
                    positions = torch.from_numpy(np.searchsorted(piece, clients))
                    owned = owned[positions.to(owned.device)]
                read = self._read(state.shared, clients)
                made = self.sites.train_clients(clients, owned, read, round, lr)
                size = tally.sum.shape[1] if self.algorithm.shares else None
                return checked_training(made, owned, state.shared, size)

            trains, failure = piece[self._trains[piece]], self._failed("trained", round)
            done = isolated(trains, train, failure, self._production)
            failed = left_out(piece, done)
            # A client that failed keeps its vector, but gets a row like all sampled clients.
            state.store.scatter(failed, state.store.gather(failed))
            for clients, trained in done:
                self._keep(state, clients, trained.kept)
                if not self.algorithm.exact:  # An exact algorithm has no batch losses.
                    losses.append(trained.losses)
                if self.algorithm.shares:
                    self.server.gate.add(tally, clients, trained.uploads)
                    norms.append(torch.linalg.vector_norm(trained.uploads, dim=1).double())
        if self.algorithm.shares:
            self._publish(tally, state)
        else:
            state.round += 1
        if state.round == self.plan.rounds:
            self.finish(state)
        on_gpu = self.sites.device.type == "cuda"
        if on_gpu and not self._production and state.round < self.plan.rounds:
            self._prefetch(state.round)
        used = None if self.algorithm.exact else lr
        return self._report(state.round, len(cohort), used, losses, norms)

    def finish(self, state: RunState) -> None:
        """With an exact algorithm, make every client's model from the published values, after the
        last release. Nothing leaves a client. In production a client for whom that fails has the
        shared model."""
        if not self.algorithm.exact:
            return
        all_clients = self.team.part(np.arange(self.data.m, dtype=np.int64))
        for piece in self.sites.pieces(all_clients):

            def solve(clients: Ints) -> Tensor:
                own = self.sites.finish_clients(clients, self._read(state.shared, clients))
                return checked(own, "vectors", state.store.start.expand(len(clients), -1))

            failure = self._failed("given a model of its own", state.round, NO_MODEL)
            done = isolated(piece, solve, failure, self._production)
            failed = left_out(piece, done)
            for clients, own in [*done, (failed, no_vectors(state.store.start, len(failed)))]:
                self._keep(state, clients, own)

    def _keep(self, state: RunState, clients: Ints, own: Tensor) -> None:
        state.store.scatter(clients, own)
        state.changed.update(clients.tolist() if self.team.size > 1 else ())

    def _read(self, shared: Tensor, clients: Ints) -> Tensor:
        return self.server.billboard.read(shared, clients, self._production)

    def _failed(self, what: str, round: int, instead: str = COUNTS_AS_ZERO) -> Failed:
        return failure_notes(self.notify_owner, self.data.clients, what, round, instead)

    def _publish(self, tally: Tally, state: RunState) -> None:
        """Sum at the leader, whose gate publishes; then broadcast the result."""
        self.team.to_leader(tally.sum)
        if self.team.leader:
            self.server.publish(tally, state)
        else:
            state.round += 1
            state.shared = torch.empty_like(state.shared)
        state.shared = self.team.from_leader(state.shared)

    def _report(
        self, round: int, cohort: int, lr: float | None, losses: list[Tensor], norms: list[Tensor]
    ) -> RoundReport:
        """Averages over the cohort, in a team over all processes."""
        empty = torch.zeros(0, dtype=torch.float64, device=self.sites.device)
        loss = torch.cat([empty, *(part.double() for part in losses)])
        norm = torch.cat([empty, *norms])
        clipped = (norm > self.plan.clip_norm).double()
        sums = torch.stack([loss.sum(), norm.sum(), clipped.sum()])
        counts = torch.tensor([len(loss), len(norm), len(norm)])
        if self.team.size > 1:
            sums = sums.cpu()
            self.team.sum(sums)
            self.team.sum(counts)
        return RoundReport(round, cohort, lr, sums, counts)

    def collect(self, state: RunState) -> None:
        """Send the clients' own vectors to the leader, which saves them."""
        self.team.collect(state.store, np.array(sorted(state.changed), dtype=np.int64))
        state.changed.clear()

    def distribute(self, state: RunState) -> None:
        """Send the leader's state to all processes."""
        state.round = int(self.team.from_leader(torch.tensor([state.round])))
        state.shared = self.team.from_leader(state.shared.contiguous())
        self.team.distribute(state.store)

    def predictors(self, state: RunState, clients: Ints) -> Tensor:
        """The weights `[K, P]` with which the `clients` predict."""
        own, shared = state.store.gather(clients), self._read(state.shared, clients)
        return self.sites.predictors(own, shared)

    def views(self, state: RunState) -> dict[str, Weights]:
        """What is evaluated: the personal models and, if there is one, the shared model."""
        views: dict[str, Weights] = {"personal": lambda clients: self.predictors(state, clients)}
        if "shared" in self.measured:
            views["shared"] = lambda clients: self._read(self.published(state), clients)
        if isinstance(self.algorithm, ExactAlgorithm):
            alone = vmap(self.algorithm.alone)
            views["alone"] = lambda clients: alone(state.store.gather(clients))
        return views

    def final_views(self, state: RunState) -> dict[str, Weights]:
        """`views` after the last round, for the run's result. In production a client for whom
        `finish` or `predict` fails has what a client that was never sampled has."""
        views = self.views(state)
        if self._production:
            views["personal"] = final_weights(
                algorithm=self.algorithm,
                predictors=self.sites.predictors,
                store=state.store,
                read=lambda clients: self._read(state.shared, clients),
                failed=self._failed("given a model of its own", state.round, NO_MODEL),
            )
        if self._production and isinstance(self.algorithm, ExactAlgorithm):
            failed = self._failed("given a model without the others", state.round)
            views["alone"] = alone_weights(self.algorithm, state.store, failed)
        return views

    def published(self, state: RunState) -> Tensor:
        """The weights `[vectors, P]` of the shared models."""
        return self.algorithm.published(state.shared)

    @property
    def measured(self) -> tuple[str, ...]:
        """The views whose metrics are released: two only if they differ."""
        if not self.algorithm.shares or not self.algorithm.shows_model:
            return ("personal",)
        return ("personal", "shared") if self.algorithm.personal else ("shared",)

    def measure(self, state: RunState) -> dict[str, Metrics]:
        """Release the average metrics on validation rows; empty if this is not the leader."""
        if self.released_metrics is None:
            raise PmtlError("No plan was made for metrics: call prepare_metrics first.")
        # Clients of an exact algorithm have models after the last round only.
        views = self.final_views(state) if self.algorithm.exact else self.views(state)
        mine = self.team.part(np.arange(self.data.m, dtype=np.int64))
        evaluator = Evaluator(self.sites.tensors, self.model, "validation")
        failed = self._failed("measured", state.round)
        values = {}
        for view in self.measured:
            own = {name: np.zeros(self.data.m) for name in self.released_metrics.names}
            present = np.zeros(self.data.m)

            def measure(clients: Ints, weights: Weights = views[view]) -> dict[str, Floats]:
                return evaluator.client_metrics(weights, clients, self._production)

            for clients, part in isolated(mine, measure, failed, self._production):
                present[clients] = evaluator.rows.counts[clients] > 0
                for name, numbers in own.items():
                    if name in part:  # Clients without validation rows have no value.
                        numbers[clients] = part[name][clients]
            for numbers in (present, *own.values()):
                self.team.sum(torch.from_numpy(numbers))
            values[view] = own, present > 0
        return self.released_metrics.release(state.round, values) if self.team.leader else {}

    def dry_run(self) -> None:
        """Train clients on rows of zeros, so that an error that affects all clients (a model that
        cannot be trained, too little memory) occurs before anything is charged."""
        state = self.start()
        self.server.dry_run(state)
        self.sites.dry_run(state.store.start, state.shared[:1])

    def _cohort(self, round: int) -> Ints:
        if self._next is not None and self._next[0] == round:
            return self._next[1]
        cohort = self.server.draw(round)
        # A seed draws the same cohort in every process; in production the leader draws.
        return self.team.draw(cohort) if self._production and self.algorithm.shares else cohort

    def _prefetch(self, round: int) -> None:
        """Draw the next round's batches while the GPU computes this one. Not in production, where a
        cohort is drawn only when its round is allowed."""
        self._next = round, self._cohort(round)
        self.sites.prefetch(self.team.part(self._next[1]), round)
