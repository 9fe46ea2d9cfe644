"""The server and six sites, in seven processes, give what the simulation gives, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from processes import SEED, model_for, plan, run

from pmtl.algorithms import ALGORITHMS, build_algorithm
from pmtl.client.batches import LocalTraining
from pmtl.data import FederatedData
from pmtl.simulation import simulate

ROWS = (5, 9, 3, 12, 7, 8)
#: What is for many clients at once, for exact algorithms or for a server.
NOT_FOR_ONE_CLIENT = (
    *("models.lowering", "models.network", "models.network.rows", "models.linear"),
    *("models.linear.solve", "models.linear.newton", "models.linear.descent"),
    *("models.linear.reduction", "models.linear.last_layer", "server", "server.server"),
)


@pytest.fixture
def six() -> FederatedData:
    """Six clients, some with fewer rows than a batch and some with a short last batch."""
    rng = np.random.default_rng(0)
    client = np.repeat([f"hospital {k}" for k in range(6)], ROWS)
    x = rng.normal(size=(len(client), 6)).astype(np.float32)
    y = rng.integers(0, 10, len(client))
    split = np.full(len(client), "train")
    return FederatedData.from_arrays(
        x, y, client, split, task="classification", outputs=10, validation=0
    )


def test_algorithm_1_over_pipes_is_the_simulation_bit_for_bit(six):
    local = LocalTraining(steps=3, batch=4)
    simulation = simulate(
        six, model_for(six, "mlp"), build_algorithm("pmtl"), plan(6), local, SEED,
        hardened=True, engine="debug",
    )  # fmt: skip
    state = simulation.start()
    list(simulation.rounds(state))
    shared, owned, server, site = run(six, "pmtl", "mlp", simulation.noise_key.text)
    assert np.array_equal(shared, state.shared.numpy())
    assert np.array_equal(np.stack(owned), state.store.vectors.numpy())
    assert not np.array_equal(shared, simulation.start().shared.numpy()), "nothing was trained"
    # The server knows no rows and no engine, a site no engine, no server and no other site.
    assert not [name for name in server if name.startswith(("pmtl.data", "pmtl.client"))]
    assert not {f"pmtl.{name}" for name in NOT_FOR_ONE_CLIENT} & site
    assert not {f"pmtl.data.readers.{name}" for name in ("hdf5", "leaf", "npz", "table")} & site
    others = {kind.__module__ for name, kind in ALGORITHMS.items() if name != "pmtl"}
    assert not others & (server | site), "another algorithm than the run's"
    above = ("pmtl.engines", "pmtl.simulation", "pmtl.runs")
    assert not [name for name in server | site if name.startswith(above)]
