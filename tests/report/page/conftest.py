"""Runs for the tests of pages: an experiment, a production run and a comparison of few clients."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import pmtl
from pmtl.experiments.compare import Grid
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.runs.config import TrainConfig

#: Names that a page must not take for its own language.
NASTY = ('<script>alert("x")</script>', "</script><b>&amp;", "{{ 7 * 7 }}", "'\"><img src=x>")


def write_table(path: Path, clients: int, rows: int, name: str) -> Path:
    """A table of two features; the first clients have the names `NASTY`."""
    random = np.random.default_rng(3)
    x = random.normal(size=(clients, rows, 2))
    y = (x[..., 0] + 0.3 * random.normal(size=(clients, 1)) > 0).astype(int)
    names = [*NASTY, *(f"{name}-{k:03d}" for k in range(clients))][:clients]
    lines = [
        '"{}",{},{},{}'.format(names[k].replace('"', '""'), *x[k, i], y[k, i])
        for k in range(clients)
        for i in range(rows)
    ]
    path.write_text("\n".join(["site,a,b,outcome", *lines]) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Folders: `experiment`, `pooled`, `production`, `comparison`."""
    folder = tmp_path_factory.mktemp("MARKERFOLDER")
    table = write_table(folder / "MARKERDATA.csv", 24, 14, "MARKERCLIENT")
    spec = f"{table}:client=site,target=outcome"
    brief = {"epsilon": 2.0, "rounds": 4}
    pmtl.train(spec, algorithm="pmtl", privacy=brief, evaluate_every=1, out=folder / "experiment")
    pmtl.train(spec, privacy=2.0, out=folder / "pooled")
    Ledger.create(folder / "MARKERLEDGER.db", pmtl.load(spec).clients).close()
    pmtl.train(
        spec,
        algorithm="pmtl",
        privacy={"epsilon": 8.0, "rounds": 4, "metrics": 0.5},
        mode="production",
        ledger=folder / "MARKERLEDGER.db",
        evaluate_every=2,
        out=folder / "production",
    )
    grid = Grid(
        algorithms=("pmtl:lam=0.1", "pmtl:lam=1", "local"),
        epsilons=(1.0, 8.0),
        seeds=(0,),
        base=TrainConfig(data=spec, privacy=pmtl.PrivacyRequest(rounds=2)),
    )
    pmtl.compare(grid, folder / "comparison")
    return SimpleNamespace(
        spec=spec,
        experiment=folder / "experiment",
        pooled=folder / "pooled",
        production=folder / "production",
        comparison=folder / "comparison",
    )
