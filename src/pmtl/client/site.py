"""The reference of what one client does in a round, to be read beside Algorithm 1.

A site receives a `RoundMessage`, trains, and answers with its clipped upload. Its rows and its own
vector stay here. No run uses this class: simulations and the sites of a real federation train with
`simulation/sites.py`, which does the same for many clients at once. Tests hold the engine `debug`
to this file: Algorithm 1 bit for bit, exact algorithms up to rounding. What real sites send is in
`federation/messages.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pmtl.algorithms import Algorithm, ExactAlgorithm
from pmtl.client.batches import Batches, LocalTraining
from pmtl.client.check_algorithm import check_algorithm
from pmtl.client.step import StepRows, train_client
from pmtl.data import FederatedData
from pmtl.data.checks import is_sparse
from pmtl.errors import PmtlError
from pmtl.messages import UPLOAD, RoundMessage
from pmtl.models import FlatModel
from pmtl.privacy.clipping import clip
from pmtl.streams import name_keys, subseed

if TYPE_CHECKING:
    from pmtl.models.linear.solve import ClientRows


class Site:
    """The site of one client; the reference for simulations and real sites.

    In the methods:
        - message: what the server sent for a round.
    """

    def __init__(
        self,
        data: FederatedData,
        model: FlatModel,
        algorithm: Algorithm,
        local: LocalTraining,
        clip_norm: float,
        seed: int,
        start: Tensor | None = None,
    ) -> None:
        """
        Args:
            data: the rows of this client only.
            model: the model that all clients train.
            algorithm: what the client does in a round.
            local: how much it trains in a round.
            clip_norm: γ, the largest L2 norm of an upload.
            seed: decides the batches. In production, a secret random number of this site.
            start: [P] the common start; the model's own parameters unless given.
        """
        if data.m != 1:
            raise PmtlError(f"A site holds the rows of one client, but this data has {data.m}.")
        if not clip_norm > 0:
            raise PmtlError(f"The clip norm must be greater than 0, but {clip_norm} was given.")
        self.client = data.clients[0]
        self.algorithm = algorithm.bind(model.layout)
        self.model = model
        check_algorithm(self.algorithm, model, mapped=False)
        self.own = self.algorithm.start(model.start() if start is None else start)
        self._data = data
        self._local = local
        self._clip_norm = clip_norm
        self._seed = seed
        self._key = name_keys(data.clients)
        self._round = -1  # the last round that was answered
        self._batches = Batches(data.rows("train"), local, seed, self._key)
        self._exact = self.algorithm if isinstance(self.algorithm, ExactAlgorithm) else None

    def answer(self, message: RoundMessage) -> dict[str, NDArray[Any]]:
        """Train for the round of `message` and return the upload, all that leaves the client.

        The client's own vector changes only if the whole round succeeds.
        """
        self._check(message)
        shared = torch.tensor(message.shared, dtype=self.model.start().dtype)
        if self._exact is not None:
            rows, read = self._all_rows(), shared.unsqueeze(0)
            uploads = self._exact.compute_uploads(rows, read, message.round)
            self._round = message.round
            return {UPLOAD: clip(uploads.to(shared.dtype), self._clip_norm)[0].numpy()}
        lr = self._local.lr_at(message.round)
        with torch.random.fork_rng(enabled=self.model.traits.random_forward):
            if self.model.traits.random_forward:
                torch.manual_seed(subseed(self._seed, "forward", message.round, int(self._key[0])))
            steps = self._steps(message.round)
            trained = train_client(
                self.algorithm, self.model, self._data.task, self.own, shared, steps, lr
            )
        self.own, self._round = trained.kept, message.round
        return {UPLOAD: clip(trained.upload.unsqueeze(0), self._clip_norm)[0].numpy()}

    def finish(self, message: RoundMessage) -> None:
        """After the last round of an exact algorithm, make the client's own vector from the
        published values in `message`. Nothing leaves the client."""
        if self._exact is not None:
            self._check(message)
            shared = torch.tensor(message.shared, dtype=self.model.start().dtype)
            self.own = self._exact.finish(self._all_rows(), shared.unsqueeze(0))[0].to(shared.dtype)

    def _all_rows(self) -> ClientRows:
        """All training rows, for an exact algorithm."""
        assert self._exact is not None
        reader = self._exact.reader(self.model, self._data.input_shape)
        mine = self._data.rows("train").of(0).reshape(1, -1)
        real = torch.ones(mine.shape if mine.size else (1, 1), dtype=torch.bool)
        if not mine.size:
            mine, real = np.zeros((1, 1), dtype=np.int64), ~real
        x, y = (torch.from_numpy(np.ascontiguousarray(part)) for part in self._data.gather(mine))
        inputs = x.to(self.model.start().dtype)
        words = is_sparse(self._data.x)
        return reader.rows(self._data.task, self._data.outputs, inputs, y, real, words)

    def _check(self, message: RoundMessage) -> None:
        """Refuse an invalid shared vector, and a second request for one round."""
        size = self.algorithm.billboard_size(self.model.layout)
        if message.shared.shape != (size,) or not np.isfinite(message.shared).all():
            raise PmtlError(
                f"The server's message is refused: the shared model must have {size} finite "
                "parameters."
            )
        if message.round <= self._round:
            raise PmtlError(
                f"The server's message is refused: round {message.round} was asked for, but round "
                f"{self._round} was answered already."
            )

    def weights(self, shared: Tensor) -> Tensor:
        """[P] the weights with which this client predicts.

        Args:
            shared: `[P]`, what this client reads of the billboard.
        """
        return self.algorithm.predict(self.own, shared)

    def _steps(self, round: int) -> Iterator[StepRows]:
        """The rows of each local step."""
        if not self._data.rows("train").counts[0]:
            return
        index, real = self._batches.draw(np.zeros(1, dtype=np.int64), round)
        dtype = self.model.start().dtype
        for rows, mask in zip(index[0], real[0], strict=True):
            x, y = (
                torch.from_numpy(np.ascontiguousarray(part)) for part in self._data.gather(rows)
            )
            targets = y.to(dtype) if y.is_floating_point() else y
            yield x.to(dtype), targets, torch.from_numpy(mask)
