"""A server and three sites give what a simulation of all clients gives, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from three_sites import SIZES, coordinate, job, services, together, write_tables

from pmtl import storage as files
from pmtl.federation.server_folder import ServerFolder
from pmtl.privacy.noise import seeded_source
from pmtl.privacy.release import noise_of
from pmtl.runs.result import load_run
from pmtl.simulation import simulate

CASES = {
    "pmtl": {"algorithm": "pmtl:lam=0.3", "local": {"steps": 3, "batch": 4}},
    "fedavg": {"algorithm": "fedavg", "local": {"steps": 2, "batch": 4}},
    "ditto": {"algorithm": "ditto:lam=0.3", "local": {"steps": 2, "batch": 4}},
    "fedadam": {"algorithm": "fedadam", "local": {"steps": 2, "batch": 4}},
    "default": {},
    "network": {"model": "mlp:hidden=4"},
    "share": {"algorithm": "pmtl", "model": "mlp:hidden=4", "share": "biases"},
    "poisson": {"algorithm": "pmtl", "privacy": {"noise": 0.5, "cohort": 3, "rounds": 6}},
}


def _simulated(data, agreement, public, key):
    """The shared model of a simulation with the same plan, start, cohorts and noise."""
    model = agreement.model(public)
    algorithm = agreement.algorithm(model, public)
    if algorithm.exact:
        data = data.scaled()
    noise = noise_of(agreement.plan, seeded_source(3, key), agreement.hardened)
    simulation = simulate(
        data, model, algorithm, agreement.plan, agreement.config.local, 3,
        noise=noise, hardened=agreement.hardened, engine="debug",
    )  # fmt: skip
    state = simulation.start()
    list(simulation.rounds(state))
    everybody = np.arange(data.m)
    return simulation.published(state), simulation.predictors(state, everybody), data


@pytest.mark.parametrize("summed", [False, True], ids=["vectors", "sums"])
@pytest.mark.parametrize("name", CASES)
def test_equal_to_the_simulation(tmp_path, name, summed):
    config = {"privacy": {}, **CASES[name]}
    config["privacy"] = {"hardened": True, **(config["privacy"] or {"epsilon": 8.0})}
    if "rounds" not in config["privacy"] and name not in ("default", "network"):
        config["privacy"]["rounds"] = 4
    tables = write_tables(tmp_path / "tables")
    sites = services(tables, tmp_path / "sites", epsilon=1e9)
    coordinate(job(summed=summed, **config), sites, tmp_path / "server")
    run = ServerFolder(tmp_path / "server").run("r1")
    agreement, public, key = run.read()
    assert len(agreement.clients) == sum(len(sizes) for sizes in SIZES.values())
    shared, personal, data = _simulated(together(tables), agreement, public, key)
    found, _ = files.read_tensors(run.public / "shared.safetensors")
    assert np.array_equal(found["weights"].numpy(), shared.numpy())
    start = agreement.model(public).start().numpy()
    assert not np.array_equal(shared.numpy()[0], start), "nothing was trained"
    for site in sites:
        result = load_run(tmp_path / "sites" / site / "r1")
        for client in result.clients:
            k = data.clients.index(f"{site}/{client}")
            mine = result.views()["personal"](np.array([result.clients.index(client)]))[0]
            assert np.array_equal(mine.numpy(), personal[k].numpy()), (site, client)
