"""Metrics as rows, CSV and frames."""

from __future__ import annotations

import csv
import io
import json
import sys

import pandas
import pyarrow
import pytest

import pmtl
from pmtl.errors import PmtlError
from pmtl.views.frames import csv_text, make_frame

LINES = [
    {"round": 1, "train_loss": 0.5},
    {"round": 2, "train_loss": None, "validation": {"personal": {"loss": 0.25, 'a "b", c': 1}}},
]


def test_csv_has_a_row_for_each_round_and_empty_cells_where_nothing_was_measured():
    rows = list(csv.DictReader(io.StringIO(csv_text(LINES))))
    assert rows == [
        {
            "round": "1",
            "train_loss": "0.5",
            "validation.personal.loss": "",
            'validation.personal.a "b", c': "",
        },
        {
            "round": "2",
            "train_loss": "",
            "validation.personal.loss": "0.25",
            'validation.personal.a "b", c': "1",
        },
    ]
    assert csv_text([]) == "round\n"


def test_a_runs_csv_has_the_numbers_of_its_lines(small, tmp_path):
    privacy = {"rounds": 3}
    pmtl.train(small, algorithm="pmtl", privacy=privacy, evaluate_every=2, out=tmp_path / "run")
    table = pandas.read_csv(tmp_path / "run/metrics.csv")
    lines = [json.loads(text) for text in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert list(table["round"]) == [1, 2, 3]
    assert list(table["train_loss"]) == [line["train_loss"] for line in lines]
    assert table["validation.personal.loss"][1] == lines[1]["validation"]["personal"]["loss"]
    assert table["validation.personal.loss"].isna().tolist() == [True, False, False]


def test_frames_of_rounds_and_clients(small):
    run = pmtl.train(small, algorithm="pmtl", privacy={"rounds": 2}, evaluate_every=1)
    rounds = run.to_frame()
    assert isinstance(rounds, pandas.DataFrame)
    assert list(rounds["round"]) == [1, 2]
    last = run.metrics[-1]["validation"]["shared"]["accuracy"]
    assert rounds["validation.shared.accuracy"].iloc[-1] == last
    clients = run.to_frame("clients", "validation")
    assert list(clients["client"]) == list(run.clients)
    assert list(clients["rows"]) == list(small.rows("validation").counts)
    losses = run.client_losses("validation")
    assert clients["loss_personal"].tolist() == pytest.approx(losses["personal"], nan_ok=True)
    for arguments, words in {
        ("rows",): "'rounds' or 'clients'",
        ("clients", "all"): "test",
    }.items():
        with pytest.raises(PmtlError, match=words):
            run.to_frame(*arguments)


def test_without_pandas_it_is_a_table_of_pyarrow(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    found = make_frame({"client": ["a", "b"], "loss": [0.5, None]})
    assert isinstance(found, pyarrow.Table)
    assert found.to_pydict() == {"client": ["a", "b"], "loss": [0.5, None]}
