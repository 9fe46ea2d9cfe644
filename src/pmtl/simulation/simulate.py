"""From data, model, algorithm and plan to a simulation that is ready to run."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import torch

from pmtl.algorithms import Algorithm
from pmtl.client.batches import LocalTraining
from pmtl.data import FederatedData
from pmtl.engines.row_tensors import RowTensors
from pmtl.models import FlatModel
from pmtl.privacy.grid import GridNoise
from pmtl.privacy.noise import Noise
from pmtl.privacy.plan import PrivacyPlan
from pmtl.server import Server
from pmtl.server.check_hooks import bound, check_hooks
from pmtl.simulation.noise_key import NoiseKey
from pmtl.simulation.rounds import Simulation
from pmtl.simulation.sites import Sites
from pmtl.simulation.team import ALONE, Team


def simulate(
    data: FederatedData,
    model: FlatModel,
    algorithm: Algorithm,
    plan: PrivacyPlan,
    local: LocalTraining,
    seed: int | None,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    *,
    noise: Noise | GridNoise | None = None,
    charge: Callable[[int], None] | None = None,
    hardened: bool = False,
    engine: str = "auto",
    compile: bool | None = None,
    team: Team = ALONE,
) -> Simulation:
    """A server and the sites of all clients, ready to run.

    Args:
        data: the rows of all clients.
        model: the model; it is moved to the device.
        algorithm: what clients and server do.
        plan: the privacy plan: what is run and what it costs.
        local: what a client does in a round.
        seed: the seed of an experiment. None means production: coins and noise come from the
            operating system, every release must be charged, and a client's result depends on other
            clients' data only through what was published.
        device: where clients are trained.
        dtype: the floating-point type of weights.
        noise: noise in place of the plan's own, for tests.
        charge: charges a round to the clients' ledger.
        hardened: whether noise is drawn exactly, on a grid.
        engine: how clients are trained; "auto" chooses by device and model.
        compile: whether steps are compiled; None chooses.
        team: the processes that share the work; only the leader publishes.
    """
    where = torch.device(device)
    model = model.to(where, dtype)
    algorithm = bound(algorithm, model.layout, where, dtype)
    check_hooks(algorithm, model, data.clients)
    key = NoiseKey(seed)
    server = Server(
        data.clients,
        algorithm,
        plan,
        seed,
        source=key.source(),
        noise=noise,
        hardened=hardened,
        charge=charge,
        device=where,
    )
    cohort = plan.cohort if algorithm.shares else data.m
    varies = algorithm.shares and plan.scheme.size_varies
    sites = Sites(
        data,
        RowTensors(data, where, dtype),
        model,
        algorithm,
        local,
        # Batches and dropout are local: in production they need not be reproducible.
        secrets.randbits(63) if seed is None else seed,
        engine=engine,
        compile=compile,
        cohort=cohort,
        largest=None if varies else -(-cohort // team.size),
        rounds=plan.rounds,
        isolate=server.production,
    )
    key.describe(server, sites, hardened, team.size)
    return Simulation(server, sites, key, hardened, team)
