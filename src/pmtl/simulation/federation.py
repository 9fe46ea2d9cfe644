"""The loop: sample, train, pass the gate, again.

`Federation` holds what does not change during a run, `Progress` what does. Because every random
choice is a function of the seed and the round, (round, shared, owned) is all there is to save: a
run that continues from a saved `Progress` goes on to the same bits.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

from pmtl._version import __version__
from pmtl.algorithms import Algorithm
from pmtl.client.batches import LocalTraining
from pmtl.data import FederatedData
from pmtl.engines.base import TensorBatches, Trained
from pmtl.engines.feed import Feed
from pmtl.errors import PmtlError
from pmtl.jsontext import to_json
from pmtl.models import FlatModel
from pmtl.privacy.grid import GridNoise
from pmtl.privacy.noise import Noise, Source, Words, seeded_source, system_source
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.release import Release, Tally, noise_of
from pmtl.simulation.evaluation import Metrics, Weights, client_metrics
from pmtl.simulation.fault_isolation import isolated, together
from pmtl.simulation.identity import identity
from pmtl.simulation.local_work import LocalWork
from pmtl.simulation.released_metrics import ReleasedMetrics, metric_bounds
from pmtl.simulation.round_report import RoundReport
from pmtl.simulation.store import Store
from pmtl.simulation.team import ALONE, Team


@dataclass
class Progress:
    """Where a run stands after `round` rounds."""

    round: int
    shared: Tensor  #: [blocks, P], what the billboard shows
    store: Store  #: what the clients own
    changed: set[int] = field(default_factory=set)  #: in a team: trained here, not yet collected


class Federation(LocalWork):
    """Data, model, algorithm and plan, ready to run: local work, and a gate."""

    def __init__(
        self,
        data: FederatedData,
        model: FlatModel,
        algorithm: Algorithm,
        plan: PrivacyPlan,
        local: LocalTraining,
        seed: int | None,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        noise: Noise | GridNoise | None = None,
        charge: Callable[[int], None] | None = None,
        hardened: bool = False,
        engine: str = "auto",
        compile: bool | None = None,
        team: Team = ALONE,
    ) -> None:
        """With a `seed` this is an experiment. Without, it is production: coins and noise are the
        operating system's, every release has to be charged to a ledger, and nothing that a client
        gets depends on another client's data but through what was published. `engine` and
        `compile` say how cohorts are trained; left to themselves, they are chosen by device and
        model. In a `team` this process trains its part of the clients, and only the leader
        publishes."""
        if seed is None and algorithm.shares and charge is None:
            raise PmtlError("In production every release is charged: give a ledger.")
        if plan.clients != data.m:
            raise PmtlError(
                f"The privacy plan is for {plan.clients} clients, but the data has {data.m}: the "
                "number of clients may not change."
            )
        self._secret = seed is None
        # Batches and dropout are local work, which nobody has to be able to repeat or to guess.
        local_seed = secrets.randbits(63) if seed is None else seed
        where = torch.device(device)
        usual = plan.cohort if algorithm.shares else data.m
        varies = algorithm.shares and plan.sampling == "poisson"
        super().__init__(
            data,
            Feed(data, where, dtype),
            model.to(where, dtype),
            algorithm,
            local,
            local_seed,
            engine=engine,
            compile=compile,
            cohort=usual,
            largest=None if varies else -(-usual // team.size),
            rounds=plan.rounds,
            in_place=self._secret,
        )
        self.plan = plan
        self.team = team
        self._each = isolated if self._secret else together
        #: Told, in production, what is for the owner of the data alone.
        self.tell_owner: Callable[[str], None] = lambda sentence: None
        self.billboard = algorithm.billboard(data.clients)
        self.sampler = plan.sampler(seed, self.keys)
        self._next: tuple[int, NDArray[np.int64]] | None = None
        self._hardened = hardened
        self._metrics: list[Any] | None = None
        self._described: str | None = None
        self._key: str | None = None
        if not self._secret:
            self.description()  # Before training, which may leave something in the module.
        if noise is None:
            noise = noise_of(plan, self._source(""), hardened and algorithm.shares, self.device)
        self.gate = Release(plan, self.billboard, noise, charge, one_by_one=self._secret)
        self.released_metrics: ReleasedMetrics | None = None
        #: Who has rows to train on. In production a client may have none, and counts as zero.
        self._trains = data.rows("train").counts > 0

    def show_metrics(
        self,
        plan: PrivacyPlan,
        loss_bound: float | None = None,
        charge: Callable[[int], None] | None = None,
        every: int = 0,
    ) -> None:
        """Let average metrics be released under this plan, `every` so many rounds; to be called
        before the first round."""
        if self._secret and charge is None:
            raise PmtlError("In production every release is charged: give a ledger.")
        bounds = metric_bounds(self.data.task, self.data.outputs, loss_bound)
        if self._key is not None:
            raise PmtlError("Metrics are decided upon before the first round: noise was drawn.")
        self._metrics = [plan.to_dict(), bounds, self.measured, every]
        source = self._source(" metrics")
        self.released_metrics = ReleasedMetrics(
            plan, self.measured, bounds, source, self._hardened, charge
        )

    def _source(self, what: str) -> Source:
        """Where random words come from; in an experiment, other ones for every kind of release."""
        if self._secret:
            return system_source

        def of_round(round: int) -> Words:
            if self._key is None:  # Only now it is known which metrics are released.
                self._key = self.description()
            return seeded_source(self.seed, self._key + what)(round)

        return of_round

    def description(self) -> str:
        """Everything that decides what is published, but for the seed; the key of an experiment's
        noise.

        It does not depend on who computes: engine, device, compilation and the number of processes
        change the last bits of sums, and the noise stays the same."""
        if self._described is None:
            parts = (self.plan.to_dict(), asdict(self.local), self.billboard.description())
            self._described = identity(
                __version__,
                *parts,
                self.data.fingerprint(),
                self.algorithm,
                self.model.module,
                self.model.start(),
                self._hardened,
            )
        return to_json([self._described, self._metrics])

    def start(self, file: Path | None = None) -> Progress:
        """Before the first round: everybody holds the common start.

        Where the clients' vectors do not fit in memory they will lie in `file`, or in one without
        a name.
        """
        common = self.team.from_leader(self.model.start())  # In production its own is random.
        # Of m clients, as many as T rounds can be expected to see.
        rate = self.plan.rate if self.algorithm.shares else 1.0
        seen = self.data.m * (1 - (1 - rate) ** self.plan.rounds) / self.team.size
        store = Store.fresh(self.data.m, self.algorithm.start(common), seen, file)
        return Progress(0, self.billboard.first(common), store)

    def rounds(self, progress: Progress) -> Iterator[RoundReport]:
        """Run the rounds that are left, changing `progress` in place after each."""
        while progress.round < self.plan.rounds:
            yield self.advance(progress)

    def advance(self, progress: Progress) -> RoundReport:
        """One round of the algorithm."""
        round = progress.round
        cohort = self._cohort(round)
        lr = self.local.lr_at(round)
        tally = self.gate.open(round, progress.shared)
        losses, norms = [], []

        for piece in self.pieces(self.team.part(cohort)):
            # Read before anything is tried: a disk that fails is nobody's data.
            owned = progress.store.gather(piece)

            def train(
                clients: NDArray[np.int64],
                piece: NDArray[np.int64] = piece,
                owned: Tensor = owned,
            ) -> Trained:
                own = owned
                if len(clients) < len(piece):
                    places = torch.from_numpy(np.searchsorted(piece, clients))
                    own = owned[places.to(owned.device)]
                return self._train(clients, own, progress.shared, round, lr)

            done = self._each(piece[self._trains[piece]], train, self._failed("trained", round))
            if sum(len(some) for some, _ in done) < len(piece):
                self._keep_row(progress.store, piece, [some for some, _ in done])
            for clients, trained in done:
                progress.store.scatter(clients, trained.kept)
                progress.changed.update(clients.tolist() if self.team.size > 1 else ())
                losses.append(trained.losses)
                if self.algorithm.shares:
                    self.gate.add(tally, clients, trained.uploads)
                    norms.append(torch.linalg.vector_norm(trained.uploads, dim=1).double())
        if self.algorithm.shares:
            progress.shared = self._publish(tally, progress.shared)
        progress.round += 1
        if self.device.type == "cuda" and not self._secret and progress.round < self.plan.rounds:
            self._look_ahead(progress.round)
        return self._report(progress.round, len(cohort), lr, losses, norms)

    def _failed(self, what: str, round: int) -> Callable[[int, Exception], None]:
        def tell(client: int, error: Exception) -> None:
            self.tell_owner(
                f"Round {round}: client {self.data.clients[client]!r} could not be {what} "
                f"({type(error).__name__}: {error}). It counts as zero."
            )

        return tell

    @staticmethod
    def _keep_row(store: Store, piece: NDArray[np.int64], trained: list[NDArray[np.int64]]) -> None:
        """Those of the piece who failed keep what they have, and get a row of their own like
        everybody who was drawn."""
        failed = np.setdiff1d(piece, np.concatenate([piece[:0], *trained]))
        store.scatter(failed, store.gather(failed))

    def _publish(self, tally: Tally, shared: Tensor) -> Tensor:
        """One reduction and one broadcast; in between, the gate."""
        self.team.to_leader(tally.sum)
        if self.team.leader:
            after = self.gate.publish(tally, shared, self.algorithm.server_step())
        else:
            after = torch.empty_like(shared)
        return self.team.from_leader(after)

    def _report(
        self, round: int, cohort: int, lr: float, losses: list[Tensor], norms: list[Tensor]
    ) -> RoundReport:
        """Averages over the cohort, wherever its clients were trained."""
        nothing = torch.zeros(0, dtype=torch.float64, device=self.device)
        loss = torch.cat([nothing, *(part.double() for part in losses)])
        norm = torch.cat([nothing, *norms])
        clipped = (norm > self.plan.clip_norm).double()
        sums = torch.stack([loss.sum(), norm.sum(), clipped.sum()])
        counts = torch.tensor([len(loss), len(norm), len(norm)])
        if self.team.size > 1:
            sums = sums.cpu()
            self.team.sum(sums)
            self.team.sum(counts)
        return RoundReport(round, cohort, lr, sums, counts)

    def collect(self, progress: Progress) -> None:
        """Bring what the team's clients own to the leader, for it to save."""
        self.team.collect(progress.store, np.array(sorted(progress.changed), dtype=np.int64))
        progress.changed.clear()

    def deal(self, progress: Progress) -> None:
        """Let the whole team go on from where the leader stands."""
        progress.round = int(self.team.from_leader(torch.tensor([progress.round])))
        progress.shared = self.team.from_leader(progress.shared.contiguous())
        self.team.deal(progress.store)

    def predictors(self, progress: Progress, clients: NDArray[np.int64]) -> Tensor:
        """The weights `[K, P]` with which the clients predict."""
        own = progress.store.gather(clients)
        around = self.billboard.read(progress.shared, clients, self._secret)
        predict = vmap(self.algorithm.predict)
        if self._secret and len(clients):
            pairs = zip(torch.split(own, 1), torch.split(around, 1), strict=True)
            return torch.cat([predict(mine.clone(), read.clone()) for mine, read in pairs])
        return predict(own, around)

    def newcomers(self, progress: Progress) -> Tensor:
        """The weights `[blocks, P]` with which clients predict that were never sampled."""
        own = progress.store.start.expand(len(progress.shared), -1)
        return vmap(self.algorithm.predict)(own, progress.shared)

    def views(self, progress: Progress) -> dict[str, Weights]:
        """What is evaluated: the clients' own models and, where there is one, the shared one."""
        views: dict[str, Weights] = {"personal": lambda clients: self.predictors(progress, clients)}
        if self.algorithm.shares:
            views["shared"] = lambda clients: self.billboard.read(
                progress.shared, clients, self._secret
            )
        return views

    @property
    def measured(self) -> tuple[str, ...]:
        """The views whose metrics are worth a release: two only where they differ."""
        return ("personal", "shared") if self.algorithm.personal else ("shared",)

    def measure(self, progress: Progress) -> dict[str, Metrics]:
        """Release the average metrics on validation rows; nothing to anybody but the leader."""
        if self.released_metrics is None:
            raise PmtlError("No plan was made for metrics: call show_metrics first.")
        views, mine = self.views(progress), self.team.part(np.arange(self.data.m, dtype=np.int64))
        counts = self.data.rows("validation").counts
        values = {}
        for view in self.measured:
            own = {name: np.zeros(self.data.m) for name in self.released_metrics.names}
            there = np.zeros(self.data.m)
            judge, failed = (
                partial(self._judge, views[view]),
                self._failed("measured", progress.round),
            )
            for clients, part in self._each(mine, judge, failed):
                there[clients] = counts[clients] > 0
                for name, numbers in own.items():
                    if name in part:  # Clients without validation rows have no value.
                        numbers[clients] = part[name][clients]
            for numbers in (there, *own.values()):
                self.team.sum(torch.from_numpy(numbers))
            values[view] = own, there > 0
        return self.released_metrics.release(progress.round, values) if self.team.leader else {}

    def _judge(
        self, weights: Weights, clients: NDArray[np.int64]
    ) -> dict[str, NDArray[np.float64]]:
        part, _ = client_metrics(
            *(self.data, self.feed, self.model, weights, "validation", clients), self._secret
        )
        return part

    def rehearse(self) -> None:
        """Train clients on made-up rows, so that what would fail for everybody fails before
        anything is spent: a model that cannot be trained, or too little memory."""
        batch = self.usual_batch
        width = (None if self._sparse else self._places((batch, 1, 0))) or 1
        nobody, some = self.start(), np.zeros(width, dtype=np.int64)
        _, answers = self.feed.rows(np.zeros((1, 1), dtype=np.int64))
        shape = (width, 1, batch)
        rows = torch.zeros(*shape, *self.data.input_shape, dtype=nobody.shared.dtype)
        targets = torch.zeros_like(answers).expand(*shape, *answers.shape[2:])
        self._trainer.train(
            nobody.store.gather(some),
            self.billboard.read(nobody.shared, some),
            TensorBatches(rows.to(self.device), targets, np.ones(shape, dtype=bool)),
            0.0,
        )

    def _cohort(self, round: int) -> NDArray[np.int64]:
        if self._next is not None and self._next[0] == round:
            return self._next[1]
        if not self.algorithm.shares:  # Nobody has to be hidden, so everybody trains.
            return np.arange(self.data.m, dtype=np.int64)
        cohort = self.sampler.draw(round)
        return self.team.draw(cohort) if self._secret else cohort  # A seed draws alike everywhere.

    def _train(
        self, clients: NDArray[np.int64], own: Tensor, shared: Tensor, round: int, lr: float
    ) -> Trained:
        around = self.billboard.read(shared, clients, self._secret)
        return self.train_clients(clients, own, around, round, lr)

    def _look_ahead(self, round: int) -> None:
        """Draw the next round's batches while the graphics card is still at work on this one.

        In production nobody is sampled before the round is known to be allowed.
        """
        self._next = round, self._cohort(round)
        self.draw_ahead(self.team.part(self._next[1]), round)
