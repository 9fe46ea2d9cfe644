"""A turn of Flower's simulation on Ray: FedAvg with its central differential privacy around it.

`--ways N` is the number of actors; they share the machine's cores evenly.
"""

from __future__ import annotations

import logging
import os
from importlib.metadata import version

# Read when the packages are imported.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import flower_client
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.simulation import run_simulation
from torch_model import tensors
from turn import Turn
from workload import NOISE_MULTIPLIER


def main() -> None:
    logging.getLogger("flwr").setLevel(logging.WARNING)  # A line for every client otherwise.
    turn = Turn.asked()
    workload = turn.workload
    cohorts: list[list[int]] = []
    counted: list[int] = []
    result: list[ArrayRecord] = []

    def note(replies: list[RecordDict], key: str) -> MetricRecord:
        """Who was trained, and how much."""
        records = [reply["metrics"] for reply in replies]
        cohorts.append([int(record["client"]) for record in records])
        counted.append(sum(int(record["steps"]) for record in records))
        return MetricRecord({})

    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context) -> None:
        averaging = FedAvg(
            fraction_train=workload.cohort / workload.clients,
            fraction_evaluate=0.0,
            min_train_nodes=workload.cohort,
            min_available_nodes=workload.clients,
            train_metrics_aggr_fn=note,
        )
        private = DifferentialPrivacyServerSideFixedClipping(
            averaging, NOISE_MULTIPLIER if turn.noise else 0.0, workload.clip, workload.cohort
        )
        asked = {"folder": str(turn.folder), "workload": turn.name, "algorithm": turn.algorithm}
        done = private.start(
            grid=grid,
            initial_arrays=ArrayRecord(tensors(workload, turn.federation().start)),
            num_rounds=turn.rounds,
            train_config=ConfigRecord(asked),
            # Called before the first round and after every one.
            evaluate_fn=lambda round, arrays: turn.tick(),
        )
        result.append(done.arrays)

    cores = os.cpu_count() or 1
    run_simulation(
        server_app=server,
        client_app=flower_client.app,
        num_supernodes=workload.clients,
        backend_config={
            "init_args": {"num_cpus": cores},
            "client_resources": {"num_cpus": cores / int(turn.ways), "num_gpus": 0.0},
        },
    )
    shared = torch.cat([value.reshape(-1) for value in result[0].to_torch_state_dict().values()])
    versions = {name: version(name) for name in ("flwr", "ray", "torch")}
    turn.answer(versions, cohorts, sum(counted), shared)


if __name__ == "__main__":
    main()
