"""A server and three sites give what a simulation of all clients gives, bit for bit."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from at_length import at_length
from safetensors.torch import save_file
from three_sites import SIZES, InProcess, coordinate, job, services, together, write_tables

from pmtl import storage as files
from pmtl.algorithms import ALGORITHMS
from pmtl.federation.server_folder import ServerFolder
from pmtl.models import build_model
from pmtl.models.network import train
from pmtl.privacy.noise import seeded_source
from pmtl.privacy.release import noise_of
from pmtl.runs.result import load_run
from pmtl.simulation import simulate

LOCAL = {"local": {"steps": 2, "batch": 4}}
CASES: dict[str, dict[str, Any]] = {
    "pmtl": {"algorithm": "pmtl:lam=0.3", "local": {"steps": 3, "batch": 4}},
    "ditto": {"algorithm": "ditto:lam=0.3", **LOCAL},
    "clustered": {"algorithm": "clustered:clusters=clusters.json", **LOCAL},
    "related": {"algorithm": "related:omega=omega.npy", **LOCAL},
    "pooling": {},  # The default; its votes are charged releases like the others.
    "pooling, numbers": {"privacy": {"epsilon": 8.0, "rounds": None}},
    "pooling, public head": {
        "algorithm": "pooling:share=answers",
        "model": "mlp:hidden=4",
        "init": "start.safetensors",
        "frozen": "1.*",
    },
    "anchored": {"algorithm": "anchored", "model": "mlp:hidden=4"},
    "share": {"algorithm": "pmtl", "model": "mlp:hidden=4", "share": "biases"},
    "share, directions": {"algorithm": "pmtl", "model": "mlp:hidden=4", "share": "subspace:k=5"},
    "init": {"algorithm": "pmtl", "model": "mlp:hidden=4", "init": "start.safetensors"},
    "basis": {
        "algorithm": "pmtl",
        "model": "mlp:hidden=4",
        "share": "basis:file=basis.safetensors",
    },
    "poisson": {"algorithm": "pmtl", "privacy": {"noise": 0.5, "cohort": 3, "rounds": 6}},
}
_NAMED = {str(case.get("algorithm", "pooling")).partition(":")[0] for case in CASES.values()}
#: Every other algorithm is tried as it is.
CASES |= {name: {"algorithm": name, **LOCAL} for name in ALGORITHMS if name not in _NAMED}
#: All clients read one shared model, so that sites can send sums.
NO_SUMS = {"clustered", "related", "naive_joint"}
ALLOWED = {"epsilon": 1e9, "algorithms": tuple(ALGORITHMS)}


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
    # One by one: products of several vectors differ in the last bit.
    personal = [simulation.predictors(state, np.array([k]))[0] for k in range(data.m)]
    return simulation.published(state), personal, data


def _public_files(tables):
    """The files that some cases name, for the server alone."""
    names = together(tables).clients
    Path("clusters.json").write_text(json.dumps({name: name[0] for name in names}))
    apart = np.eye(len(names)) - np.full((len(names),) * 2, 1 / (2 * len(names)))
    np.save("omega.npy", apart)
    model = build_model("mlp:hidden=4", (3,), 2, "classification", 11)
    start = {name: value + 0.25 for name, value in model.module.state_dict().items()}
    save_file(start, "start.safetensors")
    rng = np.random.default_rng(0)
    rows = {"basis": torch.from_numpy(rng.normal(size=(5, model.size)))}
    save_file(rows, "basis.safetensors")


def _elsewhere(handler, folder):
    """A site in another folder: it cannot read what the server reads."""

    def handle(content):
        with contextlib.chdir(folder):
            return handler(content)

    return handle


KINDS = [(name, summed) for name in CASES for summed in (False, True)]
KINDS = [kind for kind in KINDS if kind not in {(name, True) for name in NO_SUMS}]


#: A sum is added in one place, whatever is in it: two ways of training try it always. Of cases
#: that take the same lines, one is tried always.
SUMS, VECTORS = {"pmtl", "pooling"}, {"pmtl", "ditto", "poisson", "clustered", "fedadam", "pooling"}
VECTORS |= {"share", "pooling, public head", "pooling, numbers", "init", "local"}


@pytest.mark.parametrize(
    ("name", "summed"),
    at_length(KINDS, lambda kind: kind[0] in (SUMS if kind[1] else VECTORS)),
    ids=lambda v: {True: "sums", False: "vectors"}.get(v, v),
)
def test_equal_to_the_simulation(tmp_path, monkeypatch, name, summed):
    config = {"privacy": {}, **CASES[name]}
    config["privacy"] = {"hardened": True, **(config["privacy"] or {"epsilon": 8.0})}
    if "rounds" not in config["privacy"] and not name.startswith(("pooling", "anchored")):
        config["privacy"]["rounds"] = 4
    tables = write_tables(
        tmp_path / "tables", "regression" if "numbers" in name else "classification"
    )
    sites = services(tables, tmp_path / "sites", **ALLOWED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train, "STEPS", 2)  # of networks, to save time
    _public_files(tables)
    (tmp_path / "elsewhere").mkdir()
    transport = InProcess({s: _elsewhere(v.handle, "elsewhere") for s, v in sites.items()})
    coordinate(job(summed=summed, **config), sites, tmp_path / "server", transport=transport)
    run = ServerFolder(tmp_path / "server").run("r1")
    agreement, public, key = run.read()
    assert len(agreement.clients) == sum(len(sizes) for sizes in SIZES.values())
    shared, personal, data = _simulated(together(tables), agreement, public, key)
    found, _ = files.read_tensors(run.public / "shared.safetensors")
    assert np.array_equal(found["weights"].numpy(), shared.numpy())
    start = agreement.model(public).start().numpy()
    assert name == "local" or not np.array_equal(shared.numpy()[0], start), "nothing was trained"
    for site in sites:
        result = load_run(tmp_path / "sites" / site / "r1")
        for client in result.clients:
            k = data.clients.index(f"{site}/{client}")
            mine = result.views()["personal"](np.array([result.clients.index(client)]))[0]
            assert np.array_equal(mine.numpy(), personal[k].numpy()), (site, client)
            assert not np.array_equal(mine.numpy(), start), "nothing was trained"


def test_runs_with_different_public_starts_do_not_share_noise(tmp_path, monkeypatch):
    """The difference of two models with one noise would be that of the exact averages."""
    monkeypatch.chdir(tmp_path)
    tables = write_tables(tmp_path / "tables")
    model = build_model("logistic", (3,), 2, "classification", 0)
    keys = []
    for number, value in enumerate([0.0, 0.0, 1.0]):
        start = {part.name: torch.full(part.shape, value) for part in model.layout.parameters}
        save_file(start, "start.safetensors")
        folder = tmp_path / str(number)
        wanted = job(
            algorithm="fedavg", model="logistic", init="start.safetensors",
            privacy={"epsilon": 8.0, "rounds": 1}, local={"steps": 1},
        )  # fmt: skip
        coordinate(wanted, services(tables, folder / "sites"), folder / "server")
        keys.append(ServerFolder(folder / "server").run("r1").read()[2])
    assert keys[0] == keys[1] != keys[2]
