"""Many sites as one computation: the part of a round that happens inside clients.

The reference of one client is `client/site.py`. Here an engine trains many clients at once, with
the same algorithm and the same batches. The simulation adds a server, a real federation a network,
too; fine-tuning (`personalize/`) adds nothing, since nothing leaves a client.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from pmtl.algorithms import Algorithm, ExactAlgorithm
from pmtl.client.batches import MIN_BATCH_ROWS, Batches, LocalTraining
from pmtl.client.check_algorithm import check_algorithm
from pmtl.data import FederatedData
from pmtl.engines.base import Ints, Mask, TensorBatches, Trained
from pmtl.engines.choose import build_trainer, choose, clients_at_once, slot_count
from pmtl.engines.exact import ExactEngine
from pmtl.engines.process import torch_threads
from pmtl.engines.row_tensors import IndexedBatches, RowTensors
from pmtl.engines.slots import Shape, assign_slots, axis_is_safe, is_library_algorithm
from pmtl.engines.sparse import SparseTrainer, client_widths
from pmtl.models import FlatModel
from pmtl.models.lowering import floats_per_row
from pmtl.streams import name_keys, subseed

#: In production, where these are private: the assumed number of batches of an epoch, and the most
#: rows of a batch, for the choice of an engine.
_EXPECTED_BATCHES, _MOST_ROWS = 10, 1024
#: Threads on the CPU if a GPU trains: they read rows and draw noise.
_GPU_THREADS = 4
#: A step of a whole cohort that touches fewer floats than this runs on one thread.
_SMALL_STEP = 2**22


class Sites:
    """The clients of a federation, and one algorithm's local training on their rows."""

    def __init__(
        self,
        data: FederatedData,
        tensors: RowTensors,
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
        isolate: bool = False,
    ) -> None:
        """`model` is on the device of `tensors`. About `cohort` clients are trained in each of
        `rounds`; `largest` is the number that this process trains, if it never varies. With
        `isolate`, for production, a client's result does not depend on other clients, to the last
        bit (`engines/slots.py`)."""
        self.data = data
        self.tensors = tensors
        self.model = model
        self.algorithm = algorithm
        self.local = local
        self.seed = seed
        self.device = tensors.device
        self.keys = name_keys(data.clients)
        self.batches = Batches(data.rows("train"), local, seed, self.keys)
        self.isolate = isolate
        self._drawn: dict[tuple[int, bytes], tuple[Ints, Mask]] = {}
        self._expected_cohort = cohort
        self._rounds = rounds
        safe = axis_is_safe(model, self.device) and is_library_algorithm(algorithm)
        self._exact: ExactEngine | None = None
        if isinstance(algorithm, ExactAlgorithm):
            one_by_one = isolate or engine == "debug"
            # The engine `threads` gives the same bits as the debug engine.
            in_slots = isolate and safe and algorithm.uses_start and engine != "threads"
            self._exact = ExactEngine(
                algorithm, model, tensors, one_by_one, in_slots, debug=engine == "debug"
            )
        self.sparse: SparseTrainer | None = None
        if (
            engine != "debug"
            and self._exact is None
            and SparseTrainer.fits(algorithm, model, tensors)
        ):
            self.sparse = SparseTrainer(algorithm, model, data.task, tensors, isolate)
        self._one_by_one = isolate and not safe
        self.engine, self.compile = choose(
            engine,
            compile,
            model,
            self.device,
            client_floats=self.client_floats,
            cohort=cohort,
            steps=rounds * self._expected_steps(),
            isolate=isolate,
            one_by_one=self._one_by_one,
        )
        mapped = self.engine == "axis" or self.sparse is not None
        check_algorithm(algorithm, model, mapped)
        # The size of a cohort's largest piece, if it is the same in all rounds.
        width = None if largest is None else len(self.pieces(np.arange(largest))[0])
        self.trainer = build_trainer(
            self.engine, self.compile, algorithm, model, data.task, width, isolate
        )

    def train_clients(
        self, clients: Ints, own: Tensor, shared: Tensor, round: int, lr: float
    ) -> Trained:
        """Train the clients on their batches of the round, from the own vectors `own`
        [K, …] and the vectors `shared` [K, P] of the billboard."""
        if self._exact is not None:
            uploads = self._exact.uploads(clients, shared, round)
            return Trained(own, uploads, uploads.new_zeros(len(clients)))
        # Each client has its own dropout masks, as in `client/site.py`.
        one_by_one = self.engine in ("debug", "threads") and self.model.traits.random_forward
        if self.isolate or one_by_one:
            return self._train_isolated(clients, own, shared, round, lr)
        drawn = self._drawn.pop((round, clients.tobytes()), None)
        index, real = self.batches.draw(clients, round) if drawn is None else drawn
        return self._train_batches(clients, own, shared, index, real, round, lr)

    def finish_clients(self, clients: Ints, shared: Tensor) -> Tensor:
        """The own vectors of clients that read `shared` [K, B], after the last exact release."""
        assert self._exact is not None
        return self._exact.finish(clients, shared)

    def predictors(self, own: Tensor, shared: Tensor) -> Tensor:
        """The weights `[K, P]` with which clients predict that own `own` [K, …] and read `shared`
        [K, P]."""
        predict = vmap(self.algorithm.predict)
        if self.isolate and len(own):
            pairs = zip(torch.split(own, 1), torch.split(shared, 1), strict=True)
            return torch.cat([predict(mine.clone(), read.clone()) for mine, read in pairs])
        return predict(own, shared)

    def _train_batches(
        self,
        clients: Ints,
        own: Tensor,
        shared: Tensor,
        index: Ints,
        real: Mask,
        round: int,
        lr: float,
        width: int | None = None,
    ) -> Trained:
        if len(shared) == 1 or shared.stride(0) == 0:
            # A copy, because a function of the user's that writes into it must not reach the
            # billboard, which other clients read.
            shared = shared[:1].clone().expand(len(shared), -1)
        if self.sparse is not None:
            return self.sparse.train(own, shared, index, real, lr, width)
        # Dropout masks depend on which clients are trained together.
        with torch.random.fork_rng(enabled=self.model.traits.random_forward):
            if self.model.traits.random_forward:
                torch.manual_seed(subseed(self.seed, "forward", round, int(self.keys[clients[0]])))
            batches = IndexedBatches(self.tensors, clients, index, real)
            return self.trainer.train(own, shared, batches, lr)

    def _train_isolated(
        self, clients: Ints, own: Tensor, shared: Tensor, round: int, lr: float
    ) -> Trained:
        """Train each client in its own slot, in arrays whose sizes depend on its own rows and the
        settings only. An empty slot repeats a client, without real rows."""
        positions: list[Ints] = []
        parts: list[Trained] = []
        for shape, who, filled in assign_slots(clients, self._shapes[clients], self._width_of):
            index, real = self.batches.draw(clients[who], round, size=shape[0])
            real[~filled] = False
            chosen = torch.from_numpy(who).to(own.device)
            read = shared[:1].expand(len(who), -1) if shared.stride(0) == 0 else shared[chosen]
            width = None if self.sparse is None else shape[2]
            trained = self._train_batches(
                clients[who], own[chosen], read, index, real, round, lr, width
            )
            parts.append(trained.take(torch.from_numpy(np.flatnonzero(filled)).to(own.device)))
            positions.append(who[filled])
        back = np.argsort(np.concatenate(positions))
        return Trained.joined(parts).take(torch.from_numpy(back).to(own.device))

    @cached_property
    def _shapes(self) -> Ints:
        """[m, 3]: rows of a batch, steps, and columns of sparse rows, by each client's own rows."""
        columns = np.zeros(self.data.m, dtype=np.int64)
        if self.sparse is not None:
            columns = client_widths(self.data.x, self.data.rows("train"))
        return np.stack([*self.batches.own_sizes(np.arange(self.data.m)), columns], axis=1)

    def _width_of(self, shape: Shape) -> int | None:
        """How many slots an array of this shape has; None if clients do not share an array."""
        if self.model.traits.random_forward:
            return 1  # Each client has its own random numbers.
        if self.sparse is None and self.engine == "threads":
            return None
        if self._one_by_one:
            return 1
        floats = self._floats_for(shape[0])
        return slot_count(self.data.m, self._expected_cohort, self.device, floats)

    def dry_run(self, own: Tensor, shared: Tensor) -> None:
        """Train one array of clients on rows of zeros, from `own` and `shared` [1, P]."""
        if self._exact is not None:
            self._exact.dry_run(shared, self._rounds)
            return
        batch = self.expected_batch
        width = (None if self.sparse else self._width_of((batch, 1, 0))) or 1
        _, answers = self.tensors.rows(np.zeros((1, 1), dtype=np.int64))
        shape = (width, 1, batch)
        rows = torch.zeros(*shape, *self.data.input_shape, dtype=shared.dtype).to(self.device)
        targets = torch.zeros_like(answers).expand(*shape, *answers.shape[2:])
        batches = TensorBatches(rows, targets, np.ones(shape, dtype=bool))
        self.trainer.train(own.repeat(width, 1), shared.expand(width, -1), batches, 0.0)

    def prefetch(self, clients: Ints, round: int) -> None:
        """Draw the batches of a later round."""
        self._drawn = {
            (round, piece.tobytes()): self.batches.draw(piece, round)
            for piece in self.pieces(clients)
        }

    def pieces(self, cohort: Ints) -> list[Ints]:
        """The cohort in as few pieces as memory allows; their sizes differ by at most 1."""
        count = -(-len(cohort) // self._chunk)
        return np.array_split(cohort, count) if count else []

    @property
    def drawn_together(self) -> tuple[str, bool, str, int] | None:
        """What decides for which clients a model draws its random numbers (dropout) together, and
        so which numbers each client gets; None if the model draws none in training."""
        if self._exact is not None or not self.model.traits.random_forward:
            return None
        return self.engine, self.compile, self.device.type, self._chunk

    @property
    def expected_batch(self) -> int:
        """The rows of a batch by which engine and pieces are chosen; public in production."""
        if not self.isolate:
            return self.batches.size
        return min(self.local.batch or MIN_BATCH_ROWS, _MOST_ROWS)

    def _expected_steps(self) -> int:
        """About how many steps a client takes in a round, for the choice of an engine."""
        if not self.local.epochs:
            return self.local.steps or 0
        rows = float(self.data.rows("train").counts.mean())
        batches = _EXPECTED_BATCHES if self.isolate else int(np.ceil(rows / self.batches.size))
        return self.local.epochs * batches

    def threads(self) -> AbstractContextManager[None]:
        """Use one thread for small steps: a second one costs more than it saves, and sums do not
        depend on the machine's default. The engine `threads` keeps all; beside a GPU a few are
        enough."""
        count = torch.get_num_threads()
        if self.device.type == "cuda":
            count = min(count, _GPU_THREADS)
        elif self.engine != "threads" and self.step_floats < _SMALL_STEP:
            count = 1
        return torch_threads(count)

    @property
    def step_floats(self) -> int:
        """About how many floats one step touches: of a whole cohort or, in production, of the
        clients in one array."""
        clients = self._expected_cohort
        if self.isolate:
            clients = self._width_of((self.expected_batch, 1, 0)) or 1
        return clients * self.client_floats

    @property
    def client_floats(self) -> int:
        return self._floats_for(self.expected_batch)

    def _floats_for(self, batch: int) -> int:
        """About how many floats a client holds in training, with batches of `batch` rows."""
        row = int(np.prod(self.data.input_shape))
        return 6 * self.model.size + batch * (4 * row + 2 * self._layer_floats)

    @cached_property
    def _layer_floats(self) -> int:
        return floats_per_row(self.model, self.data.input_shape)

    @cached_property
    def _chunk(self) -> int:
        engine = "sparse" if self.sparse else self.engine
        return clients_at_once(engine, self.device, self.client_floats)
