"""Many sites as one computation: all of a round that happens inside clients.

One real site is `client/site.py`. Here the rows of all clients lie in one federation of data, and
an engine trains many clients at once, with the same algorithm and the same batches. The simulation
adds a server; fine-tuning (`personalize/`) adds nothing, since nothing leaves a client.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pmtl.algorithms import Algorithm
from pmtl.client.batches import FEW_ROWS, Batches, LocalTraining
from pmtl.data import FederatedData
from pmtl.engines.base import TensorBatches, Trained
from pmtl.engines.choose import Work, at_once, build_trainer, choose, fixed_width
from pmtl.engines.feed import Feed, FeedBatches
from pmtl.engines.places import Shape, axis_is_safe, is_ours, seated
from pmtl.engines.sparse import SparseTrainer, own_widths
from pmtl.models import FlatModel, floats_per_row
from pmtl.streams import name_keys, subseed

Clients = NDArray[np.int64]

#: In production, how many batches an epoch is taken to have where the choice of an engine asks,
#: and how many rows a batch has at most.
_USUAL_BATCHES, _MOST_ROWS = 10, 1024


class Sites:
    """The clients of a federation, and one algorithm's local training on their rows."""

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
        in_place: bool = False,
    ) -> None:
        """`model` lies on the device of `feed`. About `cohort` clients are trained in each of
        `rounds`; `largest` is the most of them that are trained here, if that never varies.

        With `in_place`, which is for production, what a client comes to does not depend, to the
        last bit, on who else is trained or on anybody else's rows (`places.py`).
        """
        self.data = data
        self.feed = feed
        self.model = model
        self.algorithm = algorithm
        self.local = local
        self.seed = seed
        self.device = feed.device
        self.keys = name_keys(data.clients)
        self.batches = Batches(data.rows("train"), local, seed, self.keys)
        self.in_place = in_place
        self._drawn: dict[tuple[int, bytes], tuple[NDArray[np.int64], NDArray[np.bool_]]] = {}
        self._usual_cohort = cohort
        self._largest = largest
        self._rounds = rounds
        self._sparse: SparseTrainer | None = None
        if engine != "debug" and SparseTrainer.fits(algorithm, model, feed):
            self._sparse = SparseTrainer(algorithm, model, data.task, feed, in_place)
        safe = axis_is_safe(model, self.device) and is_ours(algorithm)
        self._alone = in_place and not safe
        self.engine, self.compile = choose(
            engine, compile, model, self.device, self._work(), in_place, self._alone
        )
        self._trainer = build_trainer(
            self.engine, self.compile, algorithm, model, data.task, self._width(), in_place
        )

    def train_clients(
        self, clients: Clients, own: Tensor, around: Tensor, round: int, lr: float
    ) -> Trained:
        """Take the clients from `own` [K, …] around what they read, `around` [K, P], through their
        batches of the round."""
        if self.in_place:
            return self._train_in_place(clients, own, around, round, lr)
        index, real = self._draw(clients, round)
        return self._train_batches(clients, own, around, index, real, round, lr)

    def _train_batches(
        self,
        clients: Clients,
        own: Tensor,
        around: Tensor,
        index: NDArray[np.int64],
        real: NDArray[np.bool_],
        round: int,
        lr: float,
        width: int | None = None,
    ) -> Trained:
        if self._sparse is not None:
            return self._sparse.train(own, around, index, real, lr, width)
        # Dropout's masks are torch's: reproducible, but unlike batches they depend on who is
        # trained together.
        with torch.random.fork_rng(enabled=self.model.traits.random_forward):
            if self.model.traits.random_forward:
                torch.manual_seed(subseed(self.seed, "forward", round, int(clients[0])))
            batches = FeedBatches(self.feed, clients, index, real)
            return self._trainer.train(own, around, batches, lr)

    def _train_in_place(
        self, clients: Clients, own: Tensor, around: Tensor, round: int, lr: float
    ) -> Trained:
        """Train the clients in arrays whose sizes follow from a client's own rows and the settings,
        each at its own place. An empty place repeats somebody, without a single real row."""
        seated_at: list[NDArray[np.int64]] = []
        parts: list[Trained] = []
        for shape, seats in seated(clients, self._shapes[clients], self._places):
            there = seats >= 0
            who = np.where(there, seats, seats[there][0])
            index, real = self.batches.draw(clients[who], round, size=shape[0])
            real[~there] = False
            chosen = torch.from_numpy(who).to(own.device)
            read = around[:1].expand(len(who), -1) if around.stride(0) == 0 else around[chosen]
            width = None if self._sparse is None else shape[2]
            trained = self._train_batches(
                clients[who], own[chosen], read, index, real, round, lr, width
            )
            parts.append(trained.take(torch.from_numpy(np.flatnonzero(there)).to(own.device)))
            seated_at.append(seats[there])
        back = np.argsort(np.concatenate(seated_at))
        return Trained.joined(parts).take(torch.from_numpy(back).to(own.device))

    @cached_property
    def _shapes(self) -> NDArray[np.int64]:
        """[m, 3]: rows of a batch, steps, and columns of sparse rows, by each client's own rows."""
        everybody = np.arange(self.data.m)
        columns = np.zeros(self.data.m, dtype=np.int64)
        if self._sparse is not None:
            columns = own_widths(self.data.x, self.data.rows("train"))
        return np.stack([*self.batches.own_sizes(everybody), columns], axis=1)

    def _places(self, shape: Shape) -> int | None:
        """How many clients of this shape are trained in one array; None if each has its own."""
        if self.model.traits.random_forward:
            return 1  # Random numbers of its own.
        if self._sparse is None and self.engine == "threads":
            return None
        if self._alone:
            return 1
        floats = self._floats_of(shape[0])
        return fixed_width(self.data.m, self._usual_cohort, self.device, floats)

    def rehearse(self, own: Tensor, shared: Tensor) -> None:
        """Train one array of clients on rows of zeros, from `own` around `shared` [1, P]."""
        batch = self.usual_batch
        width = (None if self._sparse else self._places((batch, 1, 0))) or 1
        _, answers = self.feed.rows(np.zeros((1, 1), dtype=np.int64))
        shape = (width, 1, batch)
        rows = torch.zeros(*shape, *self.data.input_shape, dtype=shared.dtype).to(self.device)
        targets = torch.zeros_like(answers).expand(*shape, *answers.shape[2:])
        batches = TensorBatches(rows, targets, np.ones(shape, dtype=bool))
        self._trainer.train(own.repeat(width, 1), shared.expand(width, -1), batches, 0.0)

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

    @property
    def usual_batch(self) -> int:
        """The rows of a batch by which the engine and the pieces are chosen; in production a
        public number."""
        return min(self.local.batch or FEW_ROWS, _MOST_ROWS) if self.in_place else self.batches.size

    def _work(self) -> Work:
        """What there is to train, for the choice of an engine."""
        steps = self.local.steps or 0
        if self.local.epochs:
            batches = _USUAL_BATCHES
            if not self.in_place:
                rows = float(self.data.rows("train").counts.mean())
                batches = int(np.ceil(rows / self.batches.size))
            steps = self.local.epochs * batches
        return Work(self._client_floats, self._usual_cohort, self._rounds * steps)

    def _width(self) -> int | None:
        """The size of a cohort's largest piece, if all rounds have the same."""
        return None if self._largest is None else len(self.pieces(np.arange(self._largest))[0])

    @property
    def step_floats(self) -> int:
        """About how many floats one step touches: of a whole cohort or, in production, of as many
        clients as are computed in one array."""
        clients = self._usual_cohort
        if self.in_place:
            clients = self._places((self.usual_batch, 1, 0)) or 1
        return clients * self._client_floats

    @property
    def _client_floats(self) -> int:
        return self._floats_of(self.usual_batch)

    def _floats_of(self, batch: int) -> int:
        """About how many floats a client holds in training, with batches of so many rows."""
        row = int(np.prod(self.data.input_shape))
        return 6 * self.model.size + batch * (4 * row + 2 * self._layer_floats)

    @cached_property
    def _layer_floats(self) -> int:
        return floats_per_row(self.model, self.data.input_shape)

    @cached_property
    def _chunk(self) -> int:
        engine = "sparse" if self._sparse else self.engine
        return at_once(engine, self.device, self._client_floats)
