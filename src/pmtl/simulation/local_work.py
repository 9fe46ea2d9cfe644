"""Local training of any clients: their batches, the engine, and how many are trained at once.

This is all of a round that happens inside clients. The loop (`rounds.py`) adds a cohort and a gate;
fine-tuning (`personalize/`) adds nothing, since nothing leaves a client.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pmtl.algorithms import Algorithm
from pmtl.data import FederatedData
from pmtl.models import FlatModel, floats_per_row
from pmtl.simulation.batches import Batches, LocalTraining
from pmtl.simulation.cohort import Trained
from pmtl.simulation.engines import Work, at_once, build_trainer, choose
from pmtl.simulation.feed import Feed
from pmtl.simulation.sparse import SparseTrainer
from pmtl.streams import name_keys, subseed

Clients = NDArray[np.int64]


class LocalWork:
    """One algorithm's local training on a federation's rows."""

    def __init__(
        self,
        data: FederatedData,
        feed: Feed,
        model: FlatModel,
        algorithm: Algorithm,
        local: LocalTraining,
        seed: int,
        *,
        engine: str = "auto",
        compile: bool | None = None,
        cohort: int,
        largest: int | None,
        rounds: int = 1,
    ) -> None:
        """`model` lies on the device of `feed`. About `cohort` clients are trained in each of
        `rounds`; `largest` is the most of them that are trained here, if that never varies."""
        self.data = data
        self.feed = feed
        self.model = model
        self.algorithm = algorithm
        self.local = local
        self.seed = seed
        self.device = feed.device
        self.keys = name_keys(data.clients)
        self.batches = Batches(data.rows("train"), local, seed, self.keys)
        self._drawn: dict[tuple[int, bytes], tuple[NDArray[np.int64], NDArray[np.bool_]]] = {}
        self._usual_cohort = cohort
        self._largest = largest
        self._rounds = rounds
        self._sparse: SparseTrainer | None = None
        if SparseTrainer.fits(algorithm, model, feed):
            self._sparse = SparseTrainer(algorithm, model, data.task, feed)
        self.engine, self.compile = choose(engine, compile, model, self.device, self._work())
        self._trainer = build_trainer(
            self.engine, self.compile, algorithm, model, data.task, self._width()
        )

    def train_clients(
        self, clients: Clients, own: Tensor, around: Tensor, round: int, lr: float
    ) -> Trained:
        """Take the clients from `own` [K, …] around what they read, `around` [K, P], through their
        batches of the round."""
        index, real = self._draw(clients, round)
        if self._sparse is not None:
            return self._sparse.train(own, around, index, real, lr)
        # Dropout's masks are torch's: reproducible, but unlike batches they depend on who is
        # trained together.
        with torch.random.fork_rng(enabled=self.model.traits.random_forward):
            if self.model.traits.random_forward:
                torch.manual_seed(subseed(self.seed, "forward", round, int(clients[0])))
            return self._trainer.train(
                own,
                around,
                lambda places, tall: self.feed.reader(index[places, :, :tall]),
                torch.from_numpy(real),
                lr,
            )

    def draw_ahead(self, clients: Clients, round: int) -> None:
        """Draw the batches of a round that is going to be asked for."""
        self._drawn = {
            (round, piece.tobytes()): self.batches.draw(piece, round)
            for piece in self.pieces(clients)
        }

    def _draw(self, clients: Clients, round: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        drawn = self._drawn.pop((round, clients.tobytes()), None)
        return self.batches.draw(clients, round) if drawn is None else drawn

    def pieces(self, cohort: Clients) -> list[Clients]:
        """The cohort in as few pieces as memory allows, all of one size but for one client."""
        count = -(-len(cohort) // self._chunk)
        return np.array_split(cohort, count) if count else []

    def _work(self) -> Work:
        """What there is to train, for the choice of an engine."""
        steps = self.local.steps or 0
        if self.local.epochs:
            rows = float(self.data.rows("train").counts.mean())
            steps = self.local.epochs * int(np.ceil(rows / self.batches.size))
        return Work(self._client_floats, self._usual_cohort, self._rounds * steps)

    def _width(self) -> int | None:
        """The size of a cohort's largest piece, if all rounds have the same."""
        return None if self._largest is None else len(self.pieces(np.arange(self._largest))[0])

    @property
    def step_floats(self) -> int:
        """About how many floats one step of a whole cohort touches."""
        return self._usual_cohort * self._client_floats

    @cached_property
    def _client_floats(self) -> int:
        row = int(np.prod(self.data.input_shape))
        layers = floats_per_row(self.model, self.data.input_shape)
        return 6 * self.model.size + self.batches.size * (4 * row + 2 * layers)

    @cached_property
    def _chunk(self) -> int:
        engine = "sparse" if self._sparse else self.engine
        return at_once(engine, self.device, self._client_floats)
