"""Several processes of one owner that run one simulation together (torchrun, torch.distributed).

Every process holds all data and the shared model; `runs/preparation.py` refuses processes that hold
different data. Client number k, with its own vector, belongs to process k mod size. In a round
every process trains, clips and sums its part of the cohort. One reduction sends the sums to the
first process, the *leader*, which alone charges the ledger, draws noise and publishes. One
broadcast sends the result back. A single process is a team of one, without communication.
"""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from hashlib import blake2b

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from pmtl.errors import PmtlError
from pmtl.simulation.client_vectors.store import Store

#: How long a process waits for the others, which may be evaluating or saving.
TIMEOUT = timedelta(minutes=30)
#: Bytes of vectors sent at a time.
_CHUNK_BYTES = 64 * 2**20
#: How often this process joined a team before.
_joined = itertools.count()


@dataclass(frozen=True)
class Team:
    """Process number `rank` of `size`."""

    rank: int = 0
    size: int = 1

    @property
    def leader(self) -> bool:
        """Whether this is the process that publishes and writes."""
        return self.rank == 0

    def part(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of the clients that belong to this process."""
        return np.asarray(clients[clients % self.size == self.rank])

    def to_leader(self, values: Tensor) -> None:
        """Sum the `values` of all processes, in place, at the leader; undefined elsewhere."""
        self._call(dist.reduce, values, 0)

    def sum(self, values: Tensor) -> Tensor:
        """Sum the `values` of all processes, in place, everywhere."""
        return self._call(dist.all_reduce, values)

    def from_leader(self, values: Tensor) -> Tensor:
        """Replace `values` by the leader's, in place."""
        return self._call(dist.broadcast, values, 0)

    def _call(self, operation: Callable[..., object], values: Tensor, *leader: int) -> Tensor:
        if self.size > 1:
            with _communication_errors():
                operation(values, *leader)
        return values

    def differing(self, parts: Mapping[str, str]) -> list[str]:
        """The names of the parts that are not the same in all processes. Only digests of the parts
        are sent, under a random key that is used once."""
        key = bytes(self.from_leader(torch.tensor(list(secrets.token_bytes(32)))).tolist())
        texts = (part.encode("utf-8", "surrogatepass") for part in parts.values())
        mine = torch.tensor([list(blake2b(t, key=key, digest_size=32).digest()) for t in texts])
        theirs = [torch.empty_like(mine) for _ in range(self.size)]
        with _communication_errors():
            dist.all_gather(theirs, mine)
        same = (torch.stack(theirs) == theirs[0]).all(dim=2).all(dim=0).tolist()
        return [name for name, alike in zip(parts, same, strict=True) if not alike]

    def agree(self, decision: bool) -> bool:
        """What the leader decided."""
        return bool(self.from_leader(torch.tensor([int(decision)]))[0])

    def draw(self, cohort: NDArray[np.int64]) -> NDArray[np.int64]:
        """The cohort that the leader drew; in production coins are drawn once."""
        if self.size == 1:
            return cohort
        count = self.from_leader(torch.tensor([len(cohort)]))
        drawn = (
            torch.from_numpy(cohort) if self.leader else torch.empty(int(count), dtype=torch.int64)
        )
        return np.asarray(self.from_leader(drawn).numpy())

    def collect(self, store: Store, changed: NDArray[np.int64]) -> None:
        """Send the vectors of `changed` clients to the leader's store."""
        for sender in range(1, self.size):
            if self.rank == sender:
                self._send(store, changed, 0)
            elif self.leader:
                self._receive(store, sender)

    def distribute(self, store: Store) -> None:
        """Send each process the vectors of its clients from the leader's store."""
        for receiver in range(1, self.size):
            if self.leader:
                seen = store.seen
                self._send(store, seen[seen % self.size == receiver], receiver)
            elif self.rank == receiver:
                self._receive(store, 0)

    def _send(self, store: Store, clients: NDArray[np.int64], to: int) -> None:
        with _communication_errors():
            dist.send(torch.tensor([len(clients)]), to)
            dist.send(torch.from_numpy(clients), to)
            for chunk in _chunks(store, clients):
                dist.send(store.gather(chunk).cpu().contiguous(), to)

    def _receive(self, store: Store, sender: int) -> None:
        with _communication_errors():
            count = torch.zeros(1, dtype=torch.int64)
            dist.recv(count, sender)
            clients = torch.empty(int(count), dtype=torch.int64)
            dist.recv(clients, sender)
            for chunk in _chunks(store, clients.numpy()):
                rows = torch.empty(len(chunk), len(store.start), dtype=store.start.dtype)
                dist.recv(rows, sender)
                store.scatter(chunk, rows.to(store.start.device))


ALONE = Team()


@contextmanager
def join_team() -> Iterator[Team]:
    """The team that torchrun's environment variables describe; a team of one without them."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ALONE
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    with _communication_errors():
        store, rank, size = next(rendezvous("env://", timeout=TIMEOUT))
        # A process that joins again must not find the addresses of the earlier team.
        fresh = PrefixStore(f"team {next(_joined)}", store)
        dist.init_process_group(backend, store=fresh, rank=rank, world_size=size, timeout=TIMEOUT)
    try:
        yield Team(rank, size)
    finally:
        dist.destroy_process_group()


def device_of(team: Team, device: str) -> str:
    """The device of this process: with several GPUs, each process has its own."""
    if team.size > 1 and device == "cuda":
        return f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
    return device


def _chunks(store: Store, clients: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    width = max(1, _CHUNK_BYTES // max(1, store.start.nbytes))
    for first in range(0, len(clients), width):
        yield clients[first : first + width]


@contextmanager
def _communication_errors() -> Iterator[None]:
    """Turn an error of communication into a `PmtlError`."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise PmtlError(
            "Another process of this job ended or cannot be reached: all processes stop. Start the "
            "job again with `torchrun … -m pmtl resume RUN`."
        ) from error
