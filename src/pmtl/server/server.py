"""The server of one federation. It knows the clients' names and never their rows.

A round is (Algorithm 1, lines 3 to 9):

    cohort = server.cohort(state.round)
    tally = server.open(state)
    for client in cohort:
        upload = site[client].answer(server.message(state, client))  # `client/site.py`
        server.receive(tally, client, state.round, upload)
    server.publish(tally, state)

A simulation adds all uploads at once (`server.add`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pmtl.algorithms import Algorithm
from pmtl.errors import PmtlError
from pmtl.messages import RoundMessage
from pmtl.privacy.grid import GridNoise
from pmtl.privacy.noise import CPU, Noise, Source, system_source
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.release import Release, Tally, noise_of
from pmtl.streams import name_keys


@dataclass
class ServerState:
    """The state of the server between two rounds. All of it is public."""

    round: int  #: how many rounds were published
    shared: Tensor  #: [vectors, P] the billboard
    memory: dict[str, Tensor]  #: what the algorithm's server keeps


class Server:
    """Plan, sampler, billboard and gate of one run."""

    def __init__(
        self,
        clients: Sequence[str],
        algorithm: Algorithm,
        plan: PrivacyPlan,
        seed: int | None,
        *,
        source: Source = system_source,
        noise: Noise | GridNoise | None = None,
        hardened: bool = False,
        charge: Callable[[int], None] | None = None,
        device: torch.device = CPU,
    ) -> None:
        """
        Args:
            clients: the clients' names; a client's number is its position here.
            algorithm: the algorithm, bound to the model's layout.
            plan: decides sampling, clipping and noise, and what is charged.
            seed: draws the cohorts of an experiment. None is production: the operating system draws
                the cohorts, and every release has to be charged.
            source: where the random words for the noise come from.
            noise: replaces the plan's noise, for tests.
            hardened: whether noise is drawn exactly, on a grid of whole numbers.
            charge: writes a round to the clients' ledger; called before noise is drawn.
            device: where uploads are summed.
        """
        if seed is None and algorithm.shares and charge is None:
            raise PmtlError("In production every release is charged: give a ledger.")
        if plan.clients != len(clients):
            raise PmtlError(
                f"The privacy plan is for {plan.clients} clients, but the data has {len(clients)}: "
                "the number of clients may not change."
            )
        self.clients = tuple(clients)
        self.algorithm = algorithm
        self.plan = plan
        self.production = seed is None
        self.billboard = algorithm.billboard(self.clients)
        self.sampler = plan.sampler(seed, name_keys(self.clients))
        if noise is None:
            noise = noise_of(plan, source, hardened and algorithm.shares, device)
        self.gate = Release(plan, self.billboard, noise, charge, one_by_one=self.production)

    def start(self, common: Tensor) -> ServerState:
        """The state before the first round; `common` [P] is the common start of all clients."""
        shared = self.billboard.first(common)
        return ServerState(0, shared, self.algorithm.server_start(shared))

    def cohort(self, round: int) -> NDArray[np.int64]:
        """The sorted numbers of the clients that train in a round."""
        if not self.algorithm.shares:  # Nothing is published, so sampling would protect nobody.
            return np.arange(len(self.clients), dtype=np.int64)
        return self.sampler.draw(round)

    def message(self, state: ServerState, client: int) -> RoundMessage:
        """The message to the site of one client for the next round."""
        read = self.billboard.read(state.shared, np.array([client]), one_by_one=True)[0]
        return RoundMessage(state.round, read.cpu().numpy().copy())

    def open(self, state: ServerState) -> Tally:
        """An empty sum for the next round."""
        return self.gate.open(state.round, state.shared)

    def receive(self, tally: Tally, client: int, round: int, upload: Mapping[str, Any]) -> None:
        """Clip and add the upload of one site; an invalid upload counts as zero."""
        self.gate.receive(tally, client, round, upload)

    def add(self, tally: Tally, clients: NDArray[np.int64], uploads: Tensor) -> None:
        """Clip and add the uploads `[K, P]` of several clients."""
        self.gate.add(tally, clients, uploads)

    def publish(self, tally: Tally, state: ServerState) -> None:
        """Charge the round, add noise, and make the algorithm's server step on `state`."""

        def step(shared: Tensor, update: Tensor) -> Tensor:
            after, state.memory = self.algorithm.server_step(shared, update, state.memory)
            return after

        state.shared = self.gate.publish(tally, state.shared, step)
        state.round += 1
