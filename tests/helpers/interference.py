"""Two federations that differ in one client's rows, trained with the same coins, noise and
publications: whatever differs for anybody else came from that client's rows past the gate."""

from __future__ import annotations

import os
import secrets
import uuid
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from pmtl.data import FederatedData
from pmtl.privacy.release import Release
from pmtl.privacy.sampler import Sampler

M, ROWS, WIDTH = 10, 12, 6
K = 3  #: the client whose rows change
NAMES = [f"site-{k:02d}" for k in range(M)]
#: A value that makes the model `Failing` fail.
MARK = 77.0


class Coins:
    """Random bytes that are the same in every run: the n-th call gives the n-th bytes."""

    def __init__(self) -> None:
        self._words = np.random.Philox(key=7)

    def __call__(self, count: int) -> bytes:
        return self._words.random_raw(-(-count // 8)).tobytes()[:count]


#: What `World.once` remembers.
_KEPT: dict[Hashable, tuple[Any, list[Tensor], dict[tuple[int, int, int], bytes]]] = {}


@dataclass
class World:
    """What is held fixed: coins, noise and, from the second run on, what is published."""

    published: list[Tensor] = field(default_factory=list)
    replaying: bool = False
    uploads: dict[tuple[int, int, int], bytes] = field(default_factory=dict)
    #: From a cohort to the cohort that is drawn instead.
    cohort: object = None

    def hold(self, monkeypatch) -> None:
        """Patch everything that is fixed; to be called before each run."""
        self.uploads = {}
        place = iter(range(10**6))
        publish, add, draw = Release.publish, Release.add, Sampler.draw
        coins = Coins()
        monkeypatch.setattr(os, "urandom", coins)
        monkeypatch.setattr(secrets, "randbits", lambda bits: 12345)
        monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=1))

        def publishing(gate, tally, shared, *step):
            after = publish(gate, tally, shared, *step)
            number = next(place)
            if not self.replaying:
                self.published.append(after.clone())
            return self.published[number].clone()

        def adding(gate, tally, clients, uploads):
            for client, row in zip(clients.tolist(), uploads, strict=True):
                self.uploads[(id_of(gate), tally.round, client)] = bits(row)
            add(gate, tally, clients, uploads)

        gates: dict[int, int] = {}

        def id_of(gate) -> int:
            return gates.setdefault(id(gate), len(gates))

        def drawing(sampler, round):
            cohort = draw(sampler, round)
            return cohort if self.cohort is None else self.cohort(cohort)

        monkeypatch.setattr(Release, "publish", publishing)
        monkeypatch.setattr(Release, "add", adding)
        monkeypatch.setattr(Sampler, "draw", drawing)

    def once(self, about: Hashable, run: Callable[[], Any]) -> Any:
        """What `run` gives on rows as they are, and what was published and uploaded. Coins and
        noise are always the same, so that one run serves all changes."""
        if about not in _KEPT:
            _KEPT[about] = run(), self.published, self.uploads
        before, self.published, self.uploads = _KEPT[about]
        return before

    def others(self) -> dict[tuple[int, int, int], bytes]:
        """Everybody else's uploads."""
        return {key: row for key, row in self.uploads.items() if key[2] != K}


def bits(values: Tensor) -> bytes:
    """The very bits, NaN included."""
    return values.detach().cpu().contiguous().numpy().tobytes()


# --- rows ---


@dataclass(frozen=True)
class Table:
    """Rows of all clients, in no particular order."""

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    client: NDArray[np.str_]
    split: NDArray[np.str_]

    def federation(self, **options: object) -> FederatedData:
        given = {"outputs": 3, "bad_rows": "drop", **options}
        return FederatedData.from_arrays(self.x, self.y, self.client, self.split, **given)


def table(width: int = WIDTH, rows: int = ROWS) -> Table:
    random = np.random.default_rng(1)
    client = np.repeat(NAMES, rows)
    x = random.normal(size=(len(client), width)).astype(np.float32)
    y = random.integers(0, 3, len(client))
    split = np.tile(np.array(["train"] * (rows - 2) + ["validation", "test"]), M)
    return Table(x, y, client, split)


def replaced(base: Table, x, y, split) -> Table:
    """The table with other rows of client k, which stand at the end."""
    kept = base.client != NAMES[K]
    return Table(
        np.concatenate([base.x[kept], x]).astype(np.float32),
        np.concatenate([base.y[kept], y]),
        np.concatenate([base.client[kept], np.repeat(NAMES[K], len(y))]),
        np.concatenate([base.split[kept], split]),
    )


def _own(base: Table):
    mine = base.client == NAMES[K]
    return base.x[mine].copy(), base.y[mine].copy(), base.split[mine].copy()


def other_values(base: Table) -> Table:
    x, y, split = _own(base)
    return replaced(base, -3 * x, (y + 1) % 3, split)


def more_rows(base: Table, times: int = 3) -> Table:
    x, y, split = (np.concatenate([part] * times) for part in _own(base))
    return replaced(base, x, y, split)


def many_rows(base: Table) -> Table:
    return more_rows(base, 60)


def one_row(base: Table) -> Table:
    x, y, split = _own(base)
    return replaced(base, x[:1], y[:1], split[:1])


def huge_value(base: Table) -> Table:
    x, y, split = _own(base)
    x[0], x[1, 0] = 3e38, -3e38
    return replaced(base, x, y, split)


def missing_values(base: Table) -> Table:
    x, y, split = _own(base)
    x[2, 0], x[5] = np.nan, np.inf
    return replaced(base, x, y, split)


def nothing_usable(base: Table) -> Table:
    x, y, split = _own(base)
    return replaced(base, np.full_like(x, np.nan), y, split)


def no_such_class(base: Table) -> Table:
    x, y, split = _own(base)
    y[:4] = [-1, 99, 3, 10**12]
    return replaced(base, x, y, split)


def no_validation_rows(base: Table) -> Table:
    x, y, split = _own(base)
    split[:] = "train"
    return replaced(base, x, y, split)


def failing(base: Table) -> Table:
    x, y, split = _own(base)
    x[:, 0] = MARK
    return replaced(base, x, y, split)


CHANGES = (
    *(other_values, more_rows, many_rows, one_row, huge_value, missing_values, nothing_usable),
    *(no_such_class, no_validation_rows, failing),
)


# --- models that are not the library's ---


class Looking(nn.Module):
    """Looks words up by a function, so that no layer shows it; any number may be an index."""

    def __init__(self, outputs=3):
        super().__init__()
        self.table = nn.Parameter(torch.randn(5, 4))
        self.head = nn.Linear(4, outputs)

    def forward(self, x):
        index = torch.nan_to_num(x * 2).clamp(-9, 9).long().abs()
        return self.head(functional.embedding(index, self.table).mean(dim=1))


class Stacked(nn.Module):
    """Layers that are known to be safe on the client axis, put together by a user."""

    def __new__(cls, outputs=3):
        return nn.Sequential(nn.Flatten(), nn.Linear(WIDTH, 5), nn.ReLU(), nn.Linear(5, outputs))


class Dropping(nn.Sequential):
    def __init__(self, outputs=3):
        super().__init__(nn.Linear(WIDTH, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, outputs))


class Waving(nn.Sequential):
    """A sine is computed for many numbers at a time, and in another way if one of them is large."""

    def __init__(self, outputs=3):
        super().__init__(nn.Linear(WIDTH, 5), Sine(), nn.Linear(5, outputs))


class Sine(nn.Module):
    def forward(self, x):
        return torch.sin(10 * x)


class Convolving(nn.Module):
    def __init__(self, outputs=3):
        super().__init__()
        self.filter = nn.Conv2d(1, 2, 2)
        self.head = nn.Linear(4, outputs)

    def forward(self, x):
        return self.head(torch.relu(self.filter(x.reshape(-1, 1, 2, 3))).flatten(1))


class Failing(nn.Module):
    """Fails on one client's rows, where it can look at them."""

    error: type[Exception] = RuntimeError

    def __init__(self, outputs=3):
        super().__init__()
        self.head = nn.Linear(WIDTH, outputs)

    def forward(self, x):
        if not torch._C._functorch.is_functorch_wrapped_tensor(x) and bool((x == MARK).any()):
            raise self.error("this row is more than the model can bear")
        return self.head(x)


class OutOfMemory(Failing):
    error = MemoryError
