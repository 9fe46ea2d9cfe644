"""The loop: sample, train, pass the gate, again.

`Federation` holds what does not change during a run, `Progress` what does. Because every random
choice is a function of the seed and the round, (round, shared, owned) is all there is to save: a
run that continues from a saved `Progress` goes on to the same bits.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

from pmtl.algorithms import Algorithm
from pmtl.data import FederatedData
from pmtl.errors import PmtlError
from pmtl.jsontext import to_json
from pmtl.models import FlatModel, floats_per_row
from pmtl.privacy.noise import Noise, seeded_noise, system_noise
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.release import Release
from pmtl.simulation.batches import Batches, LocalTraining
from pmtl.simulation.cohort import Trained
from pmtl.simulation.engines import Work, at_once, build_trainer, choose
from pmtl.simulation.evaluation import Weights
from pmtl.simulation.feed import Feed
from pmtl.simulation.store import Store
from pmtl.streams import name_keys, subseed


@dataclass
class Progress:
    """Where a run stands after `round` rounds."""

    round: int
    shared: Tensor  #: [blocks, P], what the billboard shows
    store: Store  #: what the clients own


@dataclass(frozen=True)
class RoundReport:
    """What happened in a round. Exact, and therefore private: for experiments only."""

    round: int
    cohort: int
    lr: float
    train_loss: float | None
    upload_norm: float | None
    clipped: float | None


class Federation:
    """Data, model, algorithm and plan, ready to run."""

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
        noise: Noise | None = None,
        charge: Callable[[int], None] | None = None,
        engine: str = "auto",
        compile: bool | None = None,
    ) -> None:
        """With a `seed` this is an experiment. Without, it is production: coins and noise are the
        operating system's, and every release has to be charged to a ledger. `engine` and `compile`
        say how cohorts are trained; left to themselves, they are chosen by device and model."""
        if seed is None and algorithm.shares and charge is None:
            raise PmtlError("In production every release is charged: give a ledger.")
        if plan.clients != data.m:
            raise PmtlError(
                f"The privacy plan is for {plan.clients} clients, but the data has {data.m}: the "
                "number of clients may not change."
            )
        self.data = data
        self.model = model.to(torch.device(device), dtype)
        self.algorithm = algorithm
        self.plan = plan
        self.local = local
        # Batches and dropout are local work, which nobody has to be able to repeat or to guess.
        self.seed = secrets.randbits(63) if seed is None else seed
        self.device = torch.device(device)
        keys = name_keys(data.clients)
        self.blocks = algorithm.blocks(data.clients)
        self.sampler = plan.sampler(seed, keys)
        self.batches = Batches(data.rows("train"), local, self.seed, keys)
        if noise is None:
            noise = system_noise if seed is None else seeded_noise(seed, self.description())
        self.gate = Release(plan, self.blocks, noise, charge)
        self.feed = Feed(data, self.device, dtype)
        self.engine, self.compile = choose(engine, compile, model, self.device, self._work())
        self._trainer = build_trainer(
            self.engine, self.compile, algorithm, model, data.task, self._width()
        )

    def description(self) -> str:
        """Everything that decides what is published, but for the seed."""
        parts = (self.plan.to_dict(), repr(self.algorithm), self.model.name, asdict(self.local))
        return to_json([*parts, self.blocks.tolist(), self.data.fingerprint()])

    def start(self) -> Progress:
        """Before the first round: everybody holds the common start."""
        shared = self.model.start().repeat(self.gate.blocks, 1)
        return Progress(0, shared, Store.fresh(vmap(self.algorithm.start)(self._read(shared))))

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
        for clients in self._pieces(cohort):
            own = progress.store.gather(clients)
            trained = self._train(clients, own, progress.shared, round, lr)
            progress.store.scatter(clients, trained.kept)
            losses.append(trained.losses)
            if self.algorithm.shares:
                self.gate.add(tally, clients, trained.uploads)
                norms.append(torch.linalg.vector_norm(trained.uploads.double(), dim=1))
        if self.algorithm.shares:
            progress.shared = self.gate.publish(
                tally, progress.shared, self.algorithm.server_step()
            )
        progress.round += 1
        lengths = torch.cat(norms) if norms else None
        return RoundReport(
            round=progress.round,
            cohort=len(cohort),
            lr=lr,
            train_loss=float(torch.cat(losses).mean()) if losses else None,
            upload_norm=None if lengths is None else float(lengths.mean()),
            clipped=None
            if lengths is None
            else float((lengths > self.plan.clip_norm).double().mean()),
        )

    def predictors(self, progress: Progress, clients: NDArray[np.int64]) -> Tensor:
        """The weights `[K, P]` with which the clients predict."""
        own = progress.store.gather(clients)
        return vmap(self.algorithm.predict)(own, self._read(progress.shared, clients))

    def views(self, progress: Progress) -> dict[str, Weights]:
        """What is evaluated: the clients' own models and, where there is one, the shared one."""
        views: dict[str, Weights] = {"personal": lambda clients: self.predictors(progress, clients)}
        if self.algorithm.shares:
            views["shared"] = lambda clients: self._read(progress.shared, clients)
        return views

    def _cohort(self, round: int) -> NDArray[np.int64]:
        if not self.algorithm.shares:  # Nobody has to be hidden, so everybody trains.
            return np.arange(self.data.m, dtype=np.int64)
        return self.sampler.draw(round)

    def _read(self, shared: Tensor, clients: NDArray[np.int64] | None = None) -> Tensor:
        blocks = self.blocks if clients is None else self.blocks[clients]
        if len(shared) == 1:
            return shared.expand(len(blocks), -1)  # One vector for all; no copy.
        return shared[torch.from_numpy(blocks).to(shared.device)]

    def _train(
        self, clients: NDArray[np.int64], own: Tensor, shared: Tensor, round: int, lr: float
    ) -> Trained:
        index, real = self.batches.draw(clients, round)
        # Dropout's masks are torch's: reproducible, but unlike batches they depend on who is
        # trained together.
        with torch.random.fork_rng(enabled=self.model.random_forward):
            if self.model.random_forward:
                torch.manual_seed(subseed(self.seed, "forward", round, int(clients[0])))
            return self._trainer.train(
                own,
                self._read(shared, clients),
                lambda places, tall: self.feed.reader(index[places, :, :tall]),
                torch.from_numpy(real),
                lr,
            )

    def _pieces(self, cohort: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """The cohort in as few pieces as memory allows, all of one size but for one client."""
        count = -(-len(cohort) // self._chunk)
        return np.array_split(cohort, count) if count else []

    def _work(self) -> Work:
        """What there is to train, for the choice of an engine."""
        steps = self.local.steps or 0
        if self.local.epochs:
            rows = float(self.data.rows("train").counts.mean())
            steps = self.local.epochs * int(np.ceil(rows / self.batches.size))
        return Work(self._client_floats, self._usual_cohort, self.plan.rounds * steps)

    def _width(self) -> int | None:
        """The size of a cohort's largest piece, if all rounds have the same."""
        if self.algorithm.shares and self.plan.sampling == "poisson":
            return None
        return len(self._pieces(np.arange(self._usual_cohort))[0])

    @property
    def _usual_cohort(self) -> int:
        return self.plan.cohort if self.algorithm.shares else self.data.m

    @property
    def step_floats(self) -> int:
        """About how many floats one step of a whole cohort touches."""
        return self.plan.cohort * self._client_floats

    @cached_property
    def _client_floats(self) -> int:
        row = int(np.prod(self.data.input_shape))
        layers = floats_per_row(self.model, self.data.input_shape)
        return 6 * self.model.size + self.batches.size * (4 * row + 2 * layers)

    @cached_property
    def _chunk(self) -> int:
        return at_once(self.engine, self.device, self._client_floats)
