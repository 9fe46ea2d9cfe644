"""The server of one federation. It knows the clients' names and never their rows.

A round is (Algorithm 1, lines 3 to 9):

    tally = server.open(state)                     # draws the cohort, once
    for client in sorted(tally.cohort):            # a site's part: `client/site.py`
        upload = site[client].answer(server.message(state, client))
        server.receive(tally, client, state.round, upload)
    server.publish(tally, state)

A simulation adds all uploads at once (`Release.add`), and the server of a real federation what each
site sends for all its clients (`receive_site`).
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
from pmtl.messages import RoundMessage, from_bytes
from pmtl.plugins import error_text
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
    memory: dict[str, Tensor]  #: the state of the algorithm's server


class Server:
    """Plan, sampler, billboard and gate of one run.

    In the methods:
        - state: the server's state.
        - tally: the sum of an open round.
        - client: the number of a client.
        - round: the number of a round, from 0.
    """

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
        """The state before the first round.

        Args:
            common: `[P]`, the common start of all clients.
        """
        shared = self.billboard.first(self.algorithm.billboard_start(common))
        return ServerState(0, shared, self.algorithm.server_start(shared))

    def draw(self, round: int) -> NDArray[np.int64]:
        """The numbers of a round's clients, in order. In production every call draws anew."""
        if not self.algorithm.shares:  # Nothing is published, so sampling has no use.
            return np.arange(len(self.clients), dtype=np.int64)
        return self.sampler.draw(round)

    def message(self, state: ServerState, client: int) -> RoundMessage:
        """The message to the site of one client for the next round."""
        read = self.billboard.read(state.shared, np.array([client]), one_by_one=True)[0]
        return RoundMessage(state.round, read.cpu().numpy().copy())

    def open(self, state: ServerState, cohort: NDArray[np.int64] | None = None) -> Tally:
        """An empty sum for the next round.

        Args:
            cohort: the numbers of its clients; drawn now unless given.
        """
        size = self.algorithm.upload_size(state.round)
        tally = self.gate.open(state.round, state.shared, size)
        drawn = self.draw(state.round) if cohort is None else cohort
        tally.cohort = frozenset(drawn.tolist())
        return tally

    def receive(
        self, tally: Tally, client: int, round: int, upload: Mapping[str, Any] | bytes
    ) -> None:
        """Clip and add what the site of one client sent.

        An invalid upload counts as zero. Uploads of clients outside the cohort are dropped: the
        accountant relies on who was drawn.

        Args:
            upload: the message, as a mapping or as bytes.
        """
        if client not in tally.cohort:
            return
        if isinstance(upload, bytes):
            try:
                upload = from_bytes(upload)
            except PmtlError:
                upload = {}  # It counts as zero.
        self.gate.receive(tally, client, round, upload)

    def receive_site(
        self, tally: Tally, clients: NDArray[np.int64], uploads: NDArray[Any], summed: bool
    ) -> None:
        """Add what one site of many clients sent; values of a wrong shape or type count as zero.

        Args:
            clients: the site's clients that were drawn.
            uploads: `[K, U]`, one row for each of them, or `[U]` if `summed`: whole steps of the
                grid at a hardened gate, clipped numbers otherwise.
            summed: whether the site sent the sum of its clients' uploads.
        """
        if not tally.cohort.issuperset(clients.tolist()):
            raise PmtlError("Only clients that were drawn may be counted.")
        size = tally.sum.shape[1]
        wanted = (size,) if summed else (len(clients), size)
        whole = tally.sum.dtype == torch.int64 and self.billboard.mixture is None
        dtype = np.dtype(np.int64 if whole else np.float64)
        if uploads.shape != wanted or uploads.dtype.kind != dtype.kind:
            uploads = np.zeros(wanted, dtype)
        given = torch.from_numpy(np.array(uploads, dtype))
        if summed:
            self.gate.add_sum(tally, clients, given)
        elif whole:
            self.gate.add_steps(tally, clients, given)
        else:
            self.gate.add(tally, clients, given)

    def publish(self, tally: Tally, state: ServerState, noisy: bool = False) -> None:
        """Charge the round, add noise, let the algorithm's server make its step, and move `state`
        to after the round.

        Args:
            noisy: whether the sites added the noise (`Release.publish`).
        """
        if tally.round != state.round or state.round >= self.plan.rounds:
            raise PmtlError(
                f"Round {tally.round} cannot be published: the next one is {state.round}, and the "
                f"plan pays for rounds 0 to {self.plan.rounds - 1}."
            )

        def step(shared: Tensor, update: Tensor) -> Tensor:
            after, state.memory = self._step(shared, update, state.memory)
            return after

        state.shared = self.gate.publish(tally, state.shared, step, noisy)
        state.round += 1

    def dry_run(self, state: ServerState) -> None:
        """Run the algorithm's server steps on zeros, so that errors occur before any charge."""
        shared, memory = state.shared.to(torch.float64), state.memory
        for round in range(self.plan.rounds if self.algorithm.exact else 1):
            size = self.algorithm.upload_size(round) or shared.shape[1]
            shared, memory = self._step(shared, shared.new_zeros(len(shared), size), memory)

    def _step(
        self, shared: Tensor, update: Tensor, memory: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The algorithm's `server_step`, checked."""
        name = self.algorithm.name
        try:
            after, kept = self.algorithm.server_step(shared, update, memory)
            sound = after.shape == shared.shape and all(
                kept[key].shape == value.shape for key, value in memory.items()
            )
        except (Exception, SystemExit) as error:  # It may be the user's code, and raise anything.
            raise PmtlError(
                f"The server of the algorithm {name!r} failed: {error_text(error)}."
            ) from error
        if not sound or set(kept) != set(memory):
            raise PmtlError(
                f"The server of the algorithm {name!r} must return a billboard of shape "
                f"{tuple(shared.shape)}, and the same tensors that server_start returned."
            )
        return after, kept
