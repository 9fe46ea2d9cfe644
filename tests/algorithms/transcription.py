"""The methods' pseudo-code in plain NumPy, client after client, written from the papers alone.

Nothing here comes from the package: this is the second opinion that it is compared with.

A client's work in a round is a list of gradient functions, one for each of its mini-batches. A
published vector is moved by `aggregate`, which is line 8 of Algorithm 1 with the divisor fixed at
the planned q (with Poisson coins |S_t| varies, and dividing by it would cost the guarantee).
Vectors are never changed in place.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

#: Constants of FedAdam.
BETA_1, BETA_2, TAU = 0.8, 0.95, 0.01


@dataclass
class World:
    """What the clients and the server hold between rounds, and every upload's norm so far."""

    shared: np.ndarray  # [blocks, P], what is published
    own: list[np.ndarray]  # what client k keeps
    norms: list[float] = field(default_factory=list)
    moments: tuple[np.ndarray, ...] = ()  # what the server keeps to itself


@dataclass(frozen=True)
class Setting:
    """The constants of a run."""

    m: int
    q: float
    gamma: float
    sigma: float
    constant: float  # λ, μ or α, whatever the method has
    cluster: np.ndarray | None = None


def softmax_gradient(w, x, y, classes):
    """∇ of the mean cross-entropy of softmax(xWᵀ + b); w is W row by row, then b."""
    n, features = x.shape
    weight, bias = w[: classes * features].reshape(classes, features), w[classes * features :]
    scores = x @ weight.T + bias
    likely = np.exp(scores - scores.max(axis=1, keepdims=True))
    likely /= likely.sum(axis=1, keepdims=True)
    likely[np.arange(n), y] -= 1
    return np.concatenate([(likely.T @ x).ravel(), likely.sum(axis=0)]) / n


def squared_gradient(w, x, y):
    """∇ of the mean over rows of ‖xWᵀ + b − y‖²; w is W row by row, then b."""
    n, features = x.shape
    outputs = y.shape[1]
    weight, bias = w[: outputs * features].reshape(outputs, features), w[outputs * features :]
    errors = 2 * (x @ weight.T + bias - y)
    return np.concatenate([(errors.T @ x).ravel(), errors.sum(axis=0)]) / n


def aggregate(world, uploads, divisor, gamma, noise):
    """(1/divisor)·Σ g·min(1, γ/‖g‖) + noise, remembering the norms."""
    total = np.zeros_like(noise)
    for g in uploads:
        norm = np.sqrt((g**2).sum())
        world.norms.append(norm)
        total = total + g * min(1.0, gamma / norm)
    return total / divisor + noise


def descend(w, gradients, eta, pull=lambda w: 0.0):
    """SGD: one step for each mini-batch, with what else pulls at w."""
    for gradient in gradients:
        w = w - eta * (gradient(w) + pull(w))
    return w


# Every method is one round: (world, cohort, work, η, standard normal draws, setting).


def start_pmtl(w0, setting):
    """Everybody holds the common start, and so does the billboard."""
    return World(w0[None].copy(), [w0.copy() for _ in range(setting.m)])


def pmtl(world, cohort, work, eta, xi, setting):
    """Hu, Wu & Smith, Algorithm 1."""
    lam, shared, uploads = setting.constant, world.shared[0], []
    for k in cohort:
        before = world.own[k]
        after = descend(before, work[k], eta, lambda w: lam * (w - shared))
        uploads.append(after - before)
        world.own[k] = after
    step = aggregate(world, uploads, setting.q, setting.gamma, setting.sigma * xi[0])
    world.shared = (shared + step)[None]


def start_fedavg(w0, setting):
    """Clients own nothing."""
    return World(w0[None].copy(), [w0[:0] for _ in range(setting.m)])


def fedavg(world, cohort, work, eta, xi, setting):
    """McMahan et al. 2017, FederatedAveraging with equal weights, private as in section 5.2."""
    fedprox(world, cohort, work, eta, xi, setting, mu=0.0)


def fedprox(world, cohort, work, eta, xi, setting, mu=None):
    """Li et al. 2020: local objective F_k(w) + μ/2 ‖w − wᵗ‖², from wᵗ."""
    mu = setting.constant if mu is None else mu
    shared, uploads = world.shared[0], []
    for k in cohort:
        uploads.append(descend(shared, work[k], eta, lambda w: mu * (w - shared)) - shared)
    step = aggregate(world, uploads, setting.q, setting.gamma, setting.sigma * xi[0])
    world.shared = (shared + step)[None]


def start_fedadam(w0, setting):
    """As FedAvg; m₋₁ = 0 and v₋₁ = τ², the least that the paper allows."""
    world = start_fedavg(w0, setting)
    world.moments = np.zeros_like(w0), np.full_like(w0, TAU**2)
    return world


def fedadam(world, cohort, work, eta, xi, setting):
    """Reddi et al. 2021, Algorithm 2 with FedAdam: Δ is FedAvg's noisy average."""
    before = world.shared[0]
    fedavg(world, cohort, work, eta, xi, setting)
    delta = world.shared[0] - before
    first, second = world.moments
    first = BETA_1 * first + (1 - BETA_1) * delta
    second = BETA_2 * second + (1 - BETA_2) * delta**2
    world.moments = first, second
    world.shared = (before + setting.constant * first / (np.sqrt(second) + TAU))[None]


def ditto(world, cohort, work, eta, xi, setting):
    """Li et al. 2021, Algorithm 1: wᵗ as in FedAvg; v_k ← v_k − η(∇F_k(v_k) + λ(v_k − wᵗ))."""
    lam, shared, uploads = setting.constant, world.shared[0], []
    for k in cohort:
        uploads.append(descend(shared, work[k], eta) - shared)
        world.own[k] = descend(world.own[k], work[k], eta, lambda v: lam * (v - shared))
    step = aggregate(world, uploads, setting.q, setting.gamma, setting.sigma * xi[0])
    world.shared = (shared + step)[None]


def start_ppsgd(w0, setting):
    """θ_k = 0: the common start lies in the shared summand."""
    return World(w0[None].copy(), [np.zeros_like(w0) for _ in range(setting.m)])


def ppsgd(world, cohort, work, eta, xi, setting):
    """Bietti et al. 2022, Algorithm 1 with local steps: w and θ_k descend ℓ(w + θ_k), the latter
    with a step α times as long."""
    alpha, shared, uploads = setting.constant, world.shared[0], []
    for k in cohort:
        w, theta = shared, world.own[k]
        for gradient in work[k]:
            g = gradient(w + theta)
            w, theta = w - eta * g, theta - alpha * eta * g
        uploads.append(w - shared)
        world.own[k] = theta
    step = aggregate(world, uploads, setting.q, setting.gamma, setting.sigma * xi[0])
    world.shared = (shared + step)[None]


def local(world, cohort, work, eta, xi, setting):
    """Every client alone, everybody in every round; nothing is published."""
    for k in range(setting.m):
        world.own[k] = descend(world.own[k], work[k], eta)


def start_clustered(w0, setting):
    """One mean for each cluster."""
    world = start_pmtl(w0, setting)
    world.shared = np.tile(w0, (setting.cluster.max() + 1, 1))
    return world


def clustered(world, cohort, work, eta, xi, setting):
    """Algorithm 1 inside each cluster c: its cohort is expected to be q·m_c/m, and with the noise
    multiplier σq/γ for all, the noise on its average is σ·q/(q·m_c/m)."""
    published = []
    for c, shared in enumerate(world.shared):
        members = setting.cluster == c
        expected = setting.q * members.sum() / setting.m
        inside = World(shared[None], world.own, world.norms)
        alone = Setting(
            m=int(members.sum()),
            q=expected,
            gamma=setting.gamma,
            sigma=setting.sigma * setting.q / expected,
            constant=setting.constant,
        )
        pmtl(inside, [k for k in cohort if members[k]], work, eta, xi[c : c + 1], alone)
        published.append(inside.shared[0])
    world.shared = np.stack(published)


def start_naive_joint(w0, setting):
    """One slot per client in one long published vector."""
    return World(np.tile(w0, (setting.m, 1)), [w0[:0] for _ in range(setting.m)])


def naive_joint(world, cohort, work, eta, xi, setting):
    """DP-SGD on the concatenation of all models: a client's upload is zero outside its own slot,
    and the noise of every round falls on every slot (σ on an average over q; a slot's average is
    over q/m, so the noise on it is σm)."""
    published = world.shared + setting.sigma * setting.m * xi
    for k in cohort:
        upload = descend(world.shared[k], work[k], eta) - world.shared[k]
        published[k] += aggregate(
            world, [upload], setting.q / setting.m, setting.gamma, np.zeros_like(upload)
        )
    world.shared = published


def predict_own(world, k, block):
    """PMTL, Ditto, local, clusters: the client's own model answers."""
    return world.own[k]


def predict_shared(world, k, block):
    """FedAvg, FedProx, the naive joint method: what is published answers."""
    return world.shared[block]


def predict_sum(world, k, block):
    """PP-SGD: w + θ_k answers."""
    return world.shared[block] + world.own[k]


#: How each method is written, its constant, its start, one round of it, and who answers.
METHODS = {
    "pmtl": ("pmtl:lam=0.7", 0.7, start_pmtl, pmtl, predict_own),
    "fedavg": ("fedavg", 0.0, start_fedavg, fedavg, predict_shared),
    "fedadam": (
        f"fedadam:server_lr=0.3,beta1={BETA_1},beta2={BETA_2},tau={TAU}",
        0.3,
        start_fedadam,
        fedadam,
        predict_shared,
    ),
    "fedprox": ("fedprox:mu=0.7", 0.7, start_fedavg, fedprox, predict_shared),
    "ditto": ("ditto:lam=0.7", 0.7, start_pmtl, ditto, predict_own),
    "ppsgd": ("ppsgd:alpha=0.6", 0.6, start_ppsgd, ppsgd, predict_sum),
    "local": ("local", 0.0, start_pmtl, local, predict_own),
    "naive_joint": ("naive_joint", 0.0, start_naive_joint, naive_joint, predict_shared),
}
