"""A turn of ours: `Simulation.advance`, the loop that `pmtl train` runs.

With `--cohorts FILE` it is the reference of a check: it trains whom the file says, in file order;
with `--ways nudged`, from a start whose last bits are other, to see what rounding alone can do.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import torch
from numpy.typing import NDArray
from turn import Turn
from workload import LAM, LOGISTIC, SEED

import pmtl
from pmtl.algorithms import PMTL, FedAvg
from pmtl.client.batches import Batches
from pmtl.data import FederatedData
from pmtl.models import build_model
from pmtl.privacy.plan import PrivacyPlan
from pmtl.simulation import LocalTraining, Simulation, simulate
from pmtl.streams import name_keys


class CountedBatches(Batches):
    """The library's batches, with a count of the local steps they make."""

    steps = 0

    def draw(
        self, clients: NDArray[np.int64], round: int
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        index, real = super().draw(clients, round)
        self.steps += int(real.any(axis=2).sum())
        return index, real


class BatchesInFileOrder(CountedBatches):
    """Not shuffled, as the peers' are."""

    def _shuffles(
        self,
        clients: NDArray[np.int64],
        counts: NDArray[np.int64],
        epochs: int,
        size: int,
        round: int,
    ) -> NDArray[np.int64]:
        place = np.arange(int(counts.max()))
        return np.broadcast_to(place, (len(clients), epochs, len(place)))


class GivenCohorts:
    """A sampler that draws what somebody else drew."""

    def __init__(self, cohorts: list[list[int]]) -> None:
        self._cohorts = cohorts

    def draw(self, round: int) -> NDArray[np.int64]:
        return np.array(self._cohorts[round], dtype=np.int64)


def federation(turn: Turn) -> Simulation:
    """The workload as the library's own objects."""
    workload, made = turn.workload, turn.federation()
    rows = made.x.reshape(-1, workload.features)
    owner = np.repeat([f"{k:06d}" for k in range(workload.clients)], workload.rows)
    split = np.full(len(rows), "train")
    data = FederatedData.from_arrays(
        rows, made.y.ravel(), owner, split, outputs=workload.outputs, validation=0.0
    )
    name = "logistic" if workload.layers == LOGISTIC else "femnist_cnn"
    model = build_model(name, data.input_shape, workload.outputs, data.task, SEED)
    start = made.start
    if turn.ways == "nudged":
        start = np.nextafter(start, np.float32(np.inf))
    torch.nn.utils.vector_to_parameters(torch.from_numpy(start), model.module.parameters())
    m, q = workload.clients, workload.cohort
    plan = PrivacyPlan(
        clients=m,
        cohort=q,
        sampling="full" if m == q else "fixed",
        clip_norm=workload.clip,
        noise_std=workload.noise_std if turn.noise else 0.0,
        rounds=turn.rounds,
        delta=1 / (10 * m),
    )
    local = LocalTraining(epochs=1, batch=workload.batch, lr=workload.lr)
    algorithm = PMTL(lam=LAM) if turn.personal else FedAvg()
    # On a card runs of some thousand steps are compiled: these few rounds stand for such a one.
    compile = True if turn.device == "cuda" else None
    return simulate(data, model, algorithm, plan, local, SEED, turn.device, compile=compile)


def main() -> None:
    cohorts: list[list[int]] | None = None
    if "--cohorts" in sys.argv:
        place = sys.argv.index("--cohorts")
        with open(sys.argv[place + 1], encoding="utf-8") as file:  # noqa: PTH123
            cohorts = json.load(file)["cohorts"]
        del sys.argv[place : place + 2]
    turn = Turn.asked()
    ours = federation(turn)
    kind = CountedBatches if cohorts is None else BatchesInFileOrder
    keys = name_keys(ours.data.clients)
    batches = kind(ours.data.rows("train"), ours.sites.local, ours.sites.seed, keys)
    ours.sites.batches = batches
    if cohorts is not None:
        ours.server.sampler = GivenCohorts(cohorts)  # type: ignore[assignment]
    progress = ours.start()
    turn.tick()
    clipped = []
    with ours.sites.threads():  # As `pmtl train` does.
        for _ in range(turn.rounds):
            clipped.append(ours.advance(progress).clipped or 0.0)  # To read it is to wait for it.
            turn.tick()
    drawn = [ours.server.sampler.draw(round).tolist() for round in range(turn.rounds)]
    versions = {"pmtl": pmtl.__version__, "torch": torch.__version__}
    share = sum(clipped) / len(clipped)
    turn.answer(versions, drawn, batches.steps, progress.shared[0].cpu(), share)


if __name__ == "__main__":
    main()
