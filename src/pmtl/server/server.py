"""One federation's server. It knows the clients' names and never their rows.

A round is (Algorithm 1, lines 3 to 9):

    tally = server.open(state)                     # draws the cohort, once
    for client in sorted(tally.cohort):            # a site's part: `client/site.py`
        upload = site[client].answer(server.message(state, client))
        server.receive(tally, client, state.round, upload)
    server.publish(tally, state)

Simulation gives the tally all uploads at once (`server.add`), a real federation one by one. In both
the gate, the plan, the sampler and the billboard are these.
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
    """Where the server stands after `round` rounds: all of it is public."""

    round: int
    shared: Tensor  #: [vectors, P], what the billboard shows
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
            clients: the clients' names, in the order in which they are numbered.
            algorithm: the algorithm, bound to the model's layout.
            plan: what is run and what is charged.
            seed: draws an experiment's cohorts; None is production, where coins are the operating
                system's and every release has to be charged.
            source: where the noise's random words come from.
            noise: noise in place of the plan's own, for tests.
            hardened: whether noise is drawn exactly, on a grid of whole numbers.
            charge: puts a round down in the clients' ledger; called before noise is drawn.
            device: where uploads are added up.
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
        """The state before the first round, when every client holds `common` [P]."""
        shared = self.billboard.first(common)
        return ServerState(0, shared, self.algorithm.server_start(shared))

    def draw(self, round: int) -> NDArray[np.int64]:
        """The numbers of the clients that train in a round, in order. In production every call
        draws anew."""
        if not self.algorithm.shares:  # Nothing is published, so nobody has to be hidden.
            return np.arange(len(self.clients), dtype=np.int64)
        return self.sampler.draw(round)

    def message(self, state: ServerState, client: int) -> RoundMessage:
        """What the site of one client is told in the round that comes next."""
        read = self.billboard.read(state.shared, np.array([client]), one_by_one=True)[0]
        return RoundMessage(state.round, read.cpu().numpy().copy())

    def open(self, state: ServerState, cohort: NDArray[np.int64] | None = None) -> Tally:
        """An empty sum for the round that comes next, and its cohort.

        Args:
            state: where the server stands.
            cohort: the cohort, if it was drawn before.
        """
        tally = self.gate.open(state.round, state.shared)
        drawn = self.draw(state.round) if cohort is None else cohort
        tally.cohort = frozenset(drawn.tolist())
        return tally

    def receive(self, tally: Tally, client: int, round: int, upload: Mapping[str, Any]) -> None:
        """Take what one site sent for a round. What is not an upload counts as zero; what comes
        from outside the cohort is dropped, because the accountant counts on who was drawn."""
        if client in tally.cohort:
            self.gate.receive(tally, client, round, upload)

    def add(self, tally: Tally, clients: NDArray[np.int64], uploads: Tensor) -> None:
        """Take the uploads `[K, P]` of several clients at once."""
        self.gate.add(tally, clients, uploads)

    def publish(self, tally: Tally, state: ServerState) -> None:
        """Charge the round, add noise, and let the algorithm's server make its step."""

        def step(shared: Tensor, update: Tensor) -> Tensor:
            after, state.memory = self.algorithm.server_step(shared, update, state.memory)
            return after

        state.shared = self.gate.publish(tally, state.shared, step)
        state.round += 1
