"""The canaries game: a whole training run, attacked once.

Many clients of one run are canaries. A fair coin decides whether canary i uploads +γu_i or −γu_i
in every round it is drawn for, with directions u_i that are orthogonal to each other. Whoever sees
the published shared models, and nothing else, guesses the coins from ⟨w̃ᵀ − w̃⁰, u_i⟩: all of
them, and again only the fifth about which the scores are most certain. One run gives hundreds of
guesses, and `estimators.one_run` turns them into a bound (Steinke, Nasr & Jagielski 2023).

The run is the real one: federation, sampler, gate, noise, and ordinary clients that learn from
their rows. The canaries are clients that act maliciously: they send the worst upload the gate
lets through (and try 100 times more), whatever their data say, so this audits the algorithm as
implemented in its worst case and not what happens to ordinary data. What a canary sends is part
of what it owns: `Canary` wraps any algorithm and changes nothing but `upload`.

One run proves less than many: at ε = 2 expect a tenth of the claim. It is here because it looks
at the loop, where the one-round game looks at the gate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pmtl.algorithms import PMTL
from pmtl.algorithms.base import Algorithm, Gradient, State
from pmtl.audit.estimators import Floats, one_run
from pmtl.audit.result import AuditResult, AuditSetup, Finding, share
from pmtl.data import FederatedData
from pmtl.models import build_model
from pmtl.privacy.plan import PrivacyPlan
from pmtl.simulation import Federation, LocalTraining

GAME = "canaries"

#: How far beyond γ the canaries reach; the gate has to cut them back.
_REACH = 100.0
#: Rows of a canary and of an ordinary client: who has more must not count for more.
_CANARY_ROWS, _ROWS = 4, 1
#: Which share of the coins is guessed. Fixed before anything is seen.
_SHARES = (1.0, 0.2)


@dataclass(frozen=True)
class Canary(Algorithm):
    """`inner`, but a client that owns a message uploads the message.

    A client owns what `inner` lets it own, followed by its message of P numbers; zeros mean an
    ordinary client.
    """

    name: ClassVar[str] = "canary"

    inner: Algorithm

    def server_step(self) -> float:
        return self.inner.server_step()

    def blocks(self, clients: tuple[str, ...]) -> NDArray[np.int64]:
        return self.inner.blocks(clients)

    def start(self, shared: Tensor) -> Tensor:
        return torch.cat([self.inner.start(shared), torch.zeros_like(shared)])

    def begin(self, own: Tensor, shared: Tensor) -> State:
        inner, message = _split(own, shared)
        return self.inner.begin(inner, shared), message

    def step(self, state: State, shared: Tensor, gradient: Gradient, lr: float) -> State:
        inner, message = state
        return self.inner.step(inner, shared, gradient, lr), message

    def upload(self, state: State, own: Tensor, shared: Tensor) -> Tensor:
        inner, message = state
        honest = self.inner.upload(inner, _split(own, shared)[0], shared)
        return torch.where((message != 0).any(), message, honest)

    def keep(self, state: State) -> Tensor:
        inner, message = state
        return torch.cat([self.inner.keep(inner), message])

    def predict(self, own: Tensor, shared: Tensor) -> Tensor:
        return self.inner.predict(_split(own, shared)[0], shared)


def _split(own: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
    return own[: -len(shared)], own[-len(shared) :]


def canaries(setup: AuditSetup) -> AuditResult:
    """Train once with many canaries and guess their coins."""
    # As many parameters as canaries, so that their directions can be orthogonal.
    secrets = max(100, setup.trials // 4)
    # The theorem pays 2·secrets·δ, which at the usual δ would be most of the confidence.
    delta = min(setup.claimed_delta, 1 / (1000 * secrets))
    plan = setup.plan(setup.rounds, clients=secrets + secrets // 4, delta=delta)
    random = np.random.default_rng([setup.seed % 2**63, 0xCA])
    coins = random.random(secrets) < 0.5
    directions = np.linalg.qr(random.normal(size=(secrets, secrets)))[0]
    scores = play(plan, coins, directions, setup.noise_seed, setup.on_grid)
    findings = []
    for portion in _SHARES:
        guesses = int(portion * secrets)
        right = correct_guesses(scores, coins, guesses)
        bound = one_run(secrets, guesses, right, delta, share(setup.confidence, len(_SHARES)))
        numbers = {"guesses": guesses, "correct": right, "noise_multiplier": plan.noise_multiplier}
        name = "all guessed" if portion == 1 else "the surest fifth guessed"
        findings.append(Finding(name, bound, secrets, numbers))
    return AuditResult.of(
        GAME, setup, findings, delta, secrets, canaries=secrets, rounds=plan.rounds
    )


def play(
    plan: PrivacyPlan,
    coins: NDArray[np.bool_],
    directions: Floats,
    seed: int | None,
    hardened: bool = False,
) -> Floats:
    """The canaries' scores after one run; canary i is client i and sends along `directions[i]`.
    Without a seed it is a production run, charged to nobody."""
    secrets, size = directions.shape
    data = _data(plan.clients, secrets, size - 1)
    federation = Federation(
        data,
        build_model("linear", data.input_shape, data.outputs, data.task, 0),
        Canary(PMTL(lam=0.1)),
        plan,
        LocalTraining(steps=1, batch=0, lr=0.01),
        seed,
        charge=lambda round: None,
        hardened=hardened,
    )
    progress = federation.start()
    first = progress.shared.clone()
    who = np.arange(secrets, dtype=np.int64)
    messages = np.where(coins, 1.0, -1.0)[:, None] * directions * plan.clip_norm * _REACH
    own = progress.store.gather(who)
    own[:, -size:] = torch.from_numpy(messages).to(own.dtype)
    progress.store.scatter(who, own)
    for _ in federation.rounds(progress):
        pass
    moved = (progress.shared - first)[0].double().numpy()
    # Not a number is no evidence of either coin.
    return np.asarray(np.nan_to_num(directions @ moved, posinf=0.0, neginf=0.0))


def correct_guesses(scores: Floats, coins: NDArray[np.bool_], guesses: int) -> int:
    """How many of the surest guesses are right, half of them high scores and half low ones."""
    order = np.argsort(scores, kind="stable")
    low, high = order[: guesses // 2], order[len(order) - (guesses - guesses // 2) :]
    return int((~coins[low]).sum() + coins[high].sum())


def _data(clients: int, secrets: int, width: int) -> FederatedData:
    """Rows of which ordinary clients can learn a little: a common slope in the first feature."""
    counts = np.where(np.arange(clients) < secrets, _CANARY_ROWS, _ROWS)
    owner = np.repeat([f"client-{k:06d}" for k in range(clients)], counts)
    x = np.zeros((len(owner), width), dtype=np.float32)
    x[:, 0] = np.linspace(-1, 1, len(owner))
    y = (0.1 * x[:, 0]).astype(np.float32)
    return FederatedData.from_arrays(
        x, y, owner, np.full(len(owner), "train"), task="regression", validation=0.0
    )
