"""The canaries game: a whole training run, attacked once.

Many clients of one real run are canaries. A fair coin decides whether canary i uploads +γu_i or
−γu_i in every round (it tries 100 times that length); the directions u_i are orthogonal. The
adversary sees the published shared models only and guesses the coins from ⟨w̃ᵀ − w̃⁰, u_i⟩. One run
has many blocks (`replicas.py`), and so thousands of canaries. The guesses are counted in two ways:

- *every canary is a trial*. The claimed Gaussian noise is independent along orthogonal directions,
  so one run has thousands of trials. A second score, without the mean of all coordinates, finds
  noise that they share. Proves about 0.7 of the claim.
- *one run*. Guesses may depend on each other in any way that the claim allows
  (`estimators.one_run_gaussian`, without a Gaussian curve `one_run`). Only the surest tenth is
  guessed. Proves 0.3 to 0.4 of the claim; without a curve, or with fixed-size draws, a tenth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from pmtl.algorithms.base import Gradient, State
from pmtl.audit.estimators import Bits, Floats, one_run, one_run_gaussian
from pmtl.audit.replicas import Replicas, rows_of_clients, side_by_side
from pmtl.audit.result import AuditResult, Finding, gaussian_curve, has_blocks, share
from pmtl.audit.setup import AuditSetup
from pmtl.data import FederatedData
from pmtl.privacy.plan import PrivacyPlan

GAME = "canaries"

#: Canaries upload 100γ; the gate must clip it.
_UPLOAD_FACTOR = 100.0
#: Rows of a canary and of an ordinary client: more rows must not give more weight.
_CANARY_ROWS, _ROWS = 2, 1
#: Canaries in a block, which has as many parameters, and canaries for each trial of the setup.
_BLOCK, _PER_TRIAL = 250, 4
#: The share of the coins that is guessed in one run; fixed before anything is seen.
_GUESSED = 0.1


@dataclass(frozen=True)
class Canary(Replicas):
    """`Replicas`, except that a client that owns a message uploads the message.

    A client owns its weights, followed by its message of P numbers; an ordinary client's message is
    zero.
    """

    name: ClassVar[str] = "canary"

    def start(self, shared: Tensor) -> Tensor:
        return torch.cat([shared, torch.zeros_like(shared)])

    def begin(self, own: Tensor, shared: Tensor) -> State:
        return _split(own, shared)

    def step(self, state: State, shared: Tensor, gradient: Gradient, lr: float) -> State:
        weights, message = state
        return super().step(weights, shared, gradient, lr), message

    def upload(self, state: State, own: Tensor, shared: Tensor) -> Tensor:
        weights, message = state
        honest = super().upload(weights, _split(own, shared)[0], shared)
        return torch.where((message != 0).any(), message, honest)

    def keep(self, state: State) -> Tensor:
        return torch.cat(state)

    def predict(self, own: Tensor, shared: Tensor) -> Tensor:
        return _split(own, shared)[0]


def _split(own: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
    """A client's weights and its message."""
    return own[: -len(shared)], own[-len(shared) :]


def canaries(setup: AuditSetup) -> AuditResult:
    """Train once with many canaries and guess their coins."""
    delta = setup.claimed_delta
    plan = setup.plan(setup.rounds, clients=_BLOCK + _BLOCK // 4, delta=delta)
    in_blocks = has_blocks(plan)
    blocks = max(1, setup.trials * _PER_TRIAL // _BLOCK) if in_blocks else 1
    secrets = blocks * _BLOCK
    curve = gaussian_curve(plan)
    if not curve:
        # The theorem without a curve costs 2·secrets·δ of the confidence: the usual δ is too large.
        delta = min(delta, 1 / (1000 * secrets))
        plan = setup.plan(setup.rounds, clients=_BLOCK + _BLOCK // 4, delta=delta)
    random = np.random.default_rng([setup.seed % 2**63, 0xCA])
    coins = random.random(secrets) < 0.5
    # There are as many parameters as canaries, so directions can be orthogonal.
    directions = np.linalg.qr(random.normal(size=(_BLOCK, _BLOCK)))[0]
    moved = play(plan, coins, directions, setup.noise_seed, setup.on_grid)
    scores = _scores(moved, directions)
    ways = 3 if in_blocks else 1
    guesses = int(_GUESSED * secrets)
    right = correct_guesses(scores, coins, guesses)
    estimator = one_run_gaussian if curve else one_run
    bound = estimator(secrets, guesses, right, delta, share(setup.confidence, ways))
    numbers = {"guesses": guesses, "correct": right, "noise_multiplier": plan.noise_multiplier}
    findings = [Finding("the surest tenth guessed in one run", bound, secrets, numbers)]
    if in_blocks:
        alone = moved - moved.mean(axis=1, keepdims=True)
        for name, each in (
            ("every canary is a trial", scores),
            ("the same without what all coordinates share", _scores(alone, directions)),
        ):
            findings.append(Finding.of(name, setup, plan, each, coins, ways))
    return AuditResult.of(
        GAME, setup, findings, delta, secrets, canaries=secrets, rounds=plan.rounds
    )


def _scores(moved: Floats, directions: Floats) -> Floats:
    """One score for every canary, block by block."""
    # NaN is not evidence for either coin.
    scores = np.nan_to_num(moved @ directions.T, posinf=0.0, neginf=0.0)
    return np.asarray(scores.reshape(-1), dtype=np.float64)


def play(
    plan: PrivacyPlan, coins: Bits, directions: Floats, seed: int | None, hardened: bool = False
) -> Floats:
    """By how much one run moved each block, [blocks, P]. `plan` is the plan of one block, whose
    first clients are its canaries; canary i sends ±`directions[i]`, with the sign of its coin."""
    secrets, size = directions.shape
    blocks = len(coins) // secrets
    data = _data(blocks, plan.clients, secrets, size - 1)
    algorithm = Canary(lam=0.1, size=plan.clients)
    run = side_by_side(data, algorithm, plan, 0.01, seed, hardened)
    state = run.start()
    first = state.shared.clone()
    who = (plan.clients * np.arange(blocks)[:, None] + np.arange(secrets)).reshape(-1)
    signs = np.where(coins, 1.0, -1.0)[:, None]
    messages = signs * np.tile(directions, (blocks, 1)) * plan.clip_norm * _UPLOAD_FACTOR
    own = state.store.gather(who)
    own[:, -size:] = torch.from_numpy(messages).to(own.dtype)
    state.store.scatter(who, own)
    for _ in run.rounds(state):
        pass
    return np.asarray((state.shared - first).double().numpy())


def correct_guesses(scores: Floats, coins: Bits, guesses: int) -> int:
    """How many of the surest guesses are right: half of them high scores, half low scores."""
    order = np.argsort(scores, kind="stable")
    low, high = order[: guesses // 2], order[len(order) - (guesses - guesses // 2) :]
    return int((~coins[low]).sum() + coins[high].sum())


def _data(blocks: int, clients: int, secrets: int, width: int) -> FederatedData:
    """Rows from which ordinary clients can learn: a common slope in the first feature."""
    counts = np.tile(np.where(np.arange(clients) < secrets, _CANARY_ROWS, _ROWS), blocks)
    owner = np.repeat([f"client-{k:06d}" for k in range(blocks * clients)], counts)
    x = np.zeros((len(owner), width), dtype=np.float32)
    x[:, 0] = np.linspace(-1, 1, len(owner))
    return rows_of_clients(x, (0.1 * x[:, 0]).astype(np.float32), owner)
