"""What a run and a comparison show of themselves."""

from __future__ import annotations

import json

import pandas
import pytest

import pmtl
from pmtl.errors import PmtlError
from pmtl.experiments.compare import Grid
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.runs.config import TrainConfig
from pmtl.views.run_view import epsilon_text


def test_a_run_says_what_it_is(small, tmp_path):
    run = pmtl.train(small, algorithm="pmtl", privacy={"rounds": 2}, out=tmp_path / "<run>")
    assert repr(run) == (
        f"<Run of pmtl:lam=0.1,server=1.0, 12 clients, ε = 2 at δ = 0.00833, in {run.path}>"
    )
    shown = run._repr_html_()
    assert "&lt;run&gt;" in shown
    assert "<run>" not in shown
    loss = run.metrics[-1]["validation"]["personal"]["loss"]
    assert f'<th scope="row">personal</th><td>{loss:.4g}</td>' in shown
    tuned = pmtl.finetune(run, "mean", steps=1)
    assert repr(tuned).startswith("<Finetuned of pmtl")


@pytest.mark.parametrize(
    ("epsilon", "words"), [(None, "unknown"), (float("inf"), "not private"), (0.0, "ε = 0")]
)
def test_special_epsilons(epsilon, words):
    assert words in epsilon_text(epsilon, 0.1)


def test_production_shows_what_is_public(small, tmp_path):
    Ledger.create(tmp_path / "ledger.db", small.clients).close()
    run = pmtl.train(
        small,
        algorithm="pmtl",
        privacy={"rounds": 2},
        mode="production",
        ledger=tmp_path / "ledger.db",
        out=tmp_path / "run",
    )
    public = (tmp_path / "run/public/metrics.csv").read_text()
    last = json.loads((tmp_path / "run/public/metrics.jsonl").read_text().splitlines()[-1])
    assert repr(last["validation"]["personal"]["loss_mean"]) in public
    assert "train_loss" not in public
    assert not (tmp_path / "run/private/metrics.csv").exists()
    shown = run._repr_html_() + repr(run)
    assert "averages with noise" in shown
    assert "site-0" not in shown
    assert "ledger.db" not in shown
    assert "train_loss" not in run.to_frame()
    with pytest.raises(PmtlError, match="withholds"):
        run.to_frame("clients")


def test_a_comparison_shows_its_table(tmp_path):
    base = TrainConfig(data="synthetic:clients=8", privacy=pmtl.PrivacyRequest(rounds=1))
    grid = Grid(("pmtl:lam=0.1", "pmtl:lam=1", "local"), (1.0,), (0, 1), base)
    found = pmtl.compare(grid, tmp_path / "out")
    assert repr(found) == "<Comparison of pmtl:lam=0.1, pmtl:lam=1, local: 6 runs, 8 clients>"
    shown = found._repr_html_()
    assert shown.count("<table>") == 3, "what was chosen, the scores, and what choosing costs"
    assert "Verdict at ε = 1" in shown
    runs = found.to_frame("runs")
    assert isinstance(runs, pandas.DataFrame)
    assert len(runs) == 6
    assert runs["test.personal.accuracy"].tolist() == [
        row["test"]["personal"]["accuracy"] for row in found["runs"]
    ]
    assert len(found.to_frame("summary")) == 3
    with pytest.raises(PmtlError, match="no table of a comparison named 'cells'"):
        found.to_frame("cells")
    assert json.loads(json.dumps(found))["clients"] == 8, "it is still a dictionary"
