"""A turn of FedJAX: its `for_each_client`, samplers and tree arithmetic.

`--ways jit` is its usual backend; `--ways pmap` trains one client per core at a time, with the CPU
presented as that many devices. FedAvg trains with FedJAX's own client functions; PMTL is written
as its documentation proposes for stateful clients, the client's weights being its input. FedJAX has
no Gaussian mechanism: clipping is its `tree_clip_by_global_norm`, the noise is a line here.
"""

from __future__ import annotations

import os
import sys
import warnings
from importlib.metadata import version

if "pmap" in sys.argv:  # Read when JAX starts.
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={os.cpu_count()}"
    # FedJAX takes a device's part of an array to be without the axis of devices, as it once was.
    os.environ["JAX_PMAP_NO_RANK_REDUCTION"] = "0"

import jax

if not hasattr(jax, "tree_map"):  # Where JAX is newer than FedJAX and cannot be exchanged.
    jax.tree_map = jax.tree_util.tree_map

import fedjax
import jax.numpy as jnp
import numpy as np
from fedjax.algorithms import fed_avg
from turn import Turn
from workload import LAM, LOGISTIC, NOISE_MULTIPLIER, SEED, Workload, cut


def to_params(workload: Workload, vector):
    """Flat weights as FedJAX's tree; the CNN's in the order that XLA's convolutions like."""
    params = {name: jnp.array(value) for name, value in cut(workload, vector).items()}
    for name in ("conv1.weight", "conv2.weight"):
        if name in params:
            params[name] = params[name].transpose(2, 3, 1, 0)
    return params


def to_vector(workload: Workload, params):
    params = {
        name: value.transpose(3, 2, 0, 1) if value.ndim == 4 else value
        for name, value in params.items()
    }
    return np.concatenate([np.asarray(params[name]).ravel() for name, _ in workload.layers])


def logits(workload: Workload, params, x):
    if workload.layers == LOGISTIC:
        return x @ params["linear.weight"].T + params["linear.bias"]
    maps = x.reshape(-1, 28, 28, 1)
    for name in ("conv1", "conv2"):
        maps = jax.lax.conv_general_dilated(
            *(maps, params[f"{name}.weight"], (1, 1), "VALID"),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        n, h, w, c = maps.shape
        # A maximum over a reshaped array: its derivative is much quicker than a window's.
        maps = maps.reshape(n, h // 2, 2, w // 2, 2, c).max(axis=(2, 4))
        maps = jax.nn.relu(maps + params[f"{name}.bias"])
    flat = maps.transpose(0, 3, 1, 2).reshape(len(x), -1)
    return flat @ params["head.weight"].T + params["head.bias"]


def gradient(workload: Workload):
    def loss(params, batch, rng):
        scores = jax.nn.log_softmax(logits(workload, params, batch["x"]))
        return -jnp.take_along_axis(scores, batch["y"][:, None], axis=1).mean()

    return jax.grad(loss)


def personal_training(workload: Workload):
    """Algorithm 1 for one client: from its own weights, and back what it keeps and uploads."""
    slope = gradient(workload)

    def client_init(shared, own):
        return {"w": own, "before": own, "shared": shared}

    def client_step(state, batch):
        slopes = slope(state["w"], batch, None)
        moved = jax.tree_util.tree_map(
            lambda w, g, s: w - workload.lr * (g + LAM * (w - s)),
            *(state["w"], slopes, state["shared"]),
        )
        return {**state, "w": moved}

    def client_final(shared, state):
        upload = jax.tree_util.tree_map(jnp.subtract, state["w"], state["before"])
        return {
            "own": state["w"],
            "upload": fedjax.tree_util.tree_clip_by_global_norm(upload, workload.clip),
        }

    return fedjax.for_each_client(client_init, client_step, client_final)


class Rounds:
    """The server's loop."""

    def __init__(self, turn: Turn) -> None:
        self.turn, self.workload = turn, turn.workload
        made = turn.federation()
        rows = {
            f"{k:06d}".encode(): {"x": made.x[k], "y": made.y[k].astype(np.int32)}
            for k in range(self.workload.clients)
        }
        data = fedjax.InMemoryFederatedData(rows)
        self.sampler = fedjax.client_samplers.UniformGetClientSampler(
            data, self.workload.cohort, SEED
        )
        self.batching = fedjax.ShuffleRepeatBatchHParams(self.workload.batch, skip_shuffle=True)
        self.start = self.shared = to_params(self.workload, made.start)
        self.own: dict[bytes, object] = {}
        self.cohorts: list[list[int]] = []
        self.steps = 0
        if turn.personal:
            self.train = personal_training(self.workload)
        else:
            local = fedjax.optimizers.sgd(self.workload.lr)
            self.train = fed_avg.create_train_for_each_client(gradient(self.workload), local)
        self.update = jax.jit(self._update)

    def counted(self, batches):
        for batch in batches:
            self.steps += 1
            yield batch

    def round(self, number: int) -> None:
        drawn = self.sampler.sample()
        self.cohorts.append([int(client) for client, _, _ in drawn])
        clients = []
        for client, rows, key in drawn:
            given = self.own.get(client, self.start) if self.turn.personal else key
            batches = self.counted(rows.shuffle_repeat_batch(self.batching))
            clients.append((client, batches, given))
        uploads = fedjax.tree_util.tree_sum(self._uploads(clients))
        self.shared = self.update(self.shared, uploads, jax.random.PRNGKey(number))
        jax.block_until_ready(self.shared)

    def _uploads(self, clients):
        for client, output in self.train(self.shared, clients):
            if self.turn.personal:
                self.own[client] = output["own"]
                yield output["upload"]
            else:
                yield fedjax.tree_util.tree_clip_by_global_norm(output, self.workload.clip)

    def _update(self, shared, total, key):
        leaves, shape = jax.tree_util.tree_flatten(total)
        std = NOISE_MULTIPLIER * self.workload.clip if self.turn.noise else 0.0
        keys = jax.random.split(key, len(leaves))
        noisy = [
            leaf + std * jax.random.normal(one, leaf.shape)
            for leaf, one in zip(leaves, keys, strict=True)
        ]
        total = jax.tree_util.tree_unflatten(shape, noisy)
        # FedJAX's own client returns what its weights lost, ours what they gained.
        share = (1 if self.turn.personal else -1) / self.workload.cohort
        return jax.tree_util.tree_map(lambda w, s: w + share * s, shared, total)


def main() -> None:
    # FedJAX was written for an older JAX, which is heard with every call.
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", message="Some donated buffers")
    turn = Turn.asked()
    fedjax.set_for_each_client_backend(turn.ways)
    rounds = Rounds(turn)
    turn.tick()
    for number in range(turn.rounds):
        rounds.round(number)
        turn.tick()
    versions = {name: version(name) for name in ("fedjax", "jax", "jaxlib")}
    shared = to_vector(turn.workload, rounds.shared)
    turn.answer(versions, rounds.cohorts, rounds.steps, shared)


if __name__ == "__main__":
    main()
