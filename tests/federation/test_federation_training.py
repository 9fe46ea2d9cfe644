"""At a site, a client for whom an algorithm fails, or uploads a wrong shape, counts as zero or has
the shared model, and the other clients of the site have what they would have had."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import weights
from three_sites import coordinate, job, services, write_tables

from pmtl import storage as files
from pmtl.federation.server_folder import ServerFolder
from pmtl.runs.result import load_run
from pmtl.simulation import Sites

JOB = {
    "algorithm": "pmtl",
    "local": {"steps": 2, "batch": 4},
    "privacy": {"epsilon": 8.0, "rounds": 2, "hardened": True},
}


def run(folder, **changes):
    """The personal models of site b's clients, and what was published."""
    sites = services(write_tables(folder / "tables"), folder / "sites")
    coordinate(job(**{**JOB, **changes}), sites, folder / "server")
    result = load_run(folder / "sites/b/r1")
    path = ServerFolder(folder / "server").run("r1").public / "shared.safetensors"
    models = result.views()["personal"](np.arange(len(result.clients)))
    return models, files.read_tensors(path)[0]["weights"]


def test_a_client_whose_weights_cannot_be_computed_has_those_of_a_newcomer(tmp_path, monkeypatch):
    whole, shared = run(tmp_path / "whole")
    predictors = Sites.predictors

    def failing(sites, own, read):
        made = predictors(sites, own, read)
        if (made == whole[1]).all(dim=1).any():
            raise ValueError("only with this client's data")
        return made

    monkeypatch.setattr(Sites, "predictors", failing)
    found, still_shared = run(tmp_path / "failing")
    assert torch.equal(still_shared, shared)
    assert torch.equal(found[[0, 2]], whole[[0, 2]])
    assert not torch.equal(found[1], whole[1])


def test_a_client_whose_finish_fails_has_the_shared_model(tmp_path, monkeypatch):
    finish, found = Sites.finish_clients, []

    def failing(sites, clients, shared):
        if sites.data.clients[0].startswith("b/") and 1 in clients:
            raise ValueError("only with this client's data")
        return finish(sites, clients, shared)

    for name in ("whole", "failing"):
        found.append(run(tmp_path / name, algorithm="pooling", privacy={"epsilon": 8.0}, local={}))
        monkeypatch.setattr(Sites, "finish_clients", failing)
    (whole, shared), (models, still_shared) = found
    assert torch.equal(still_shared, shared)
    assert torch.equal(models[[0, 2]], whole[[0, 2]])
    result = load_run(tmp_path / "failing/sites/b/r1")
    assert torch.equal(models[1], weights.shared(result)[1])


@pytest.mark.parametrize(
    "wrong",
    [lambda sent: sent[:, :1], lambda sent: sent[:, :-1], lambda sent: sent.to(torch.complex64)],
    ids=["one number", "shorter", "complex"],
)
def test_an_upload_of_a_wrong_shape_or_type_is_a_failure(wrong, tmp_path, monkeypatch):
    train = Sites.train_clients

    def failing(sites, clients, *given):
        if sites.data.clients[clients[0]].startswith("b/") and 1 in clients:
            raise ValueError("only with this client's data")
        return train(sites, clients, *given)

    def misshapen(sites, clients, *given):
        made = train(sites, clients, *given)
        bad = sites.data.clients[clients[0]].startswith("b/") and 1 in clients
        return made._replace(uploads=wrong(made.uploads)) if bad else made

    found = []
    for name, twisted in (("failing", failing), ("misshapen", misshapen)):
        monkeypatch.setattr(Sites, "train_clients", twisted)
        found.append(run(tmp_path / name))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
