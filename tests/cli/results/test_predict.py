"""`pmtl predict`."""

from __future__ import annotations

import json

import numpy as np
import pytest
from pyarrow import csv
from visits import trained, visits

import pmtl


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trained(tmp_path)
    csv.write_csv(visits(seed=1), tmp_path / "new.csv")
    return tmp_path


def test_a_file_of_many_clients_and_its_summary(here, pmtl_command):
    done = pmtl_command("predict", "run", "--data", "new.csv", "--out", "a.csv")
    assert done.status == 0, done.err
    assert done.out == "240 predictions of 12 clients are in a.csv.\n"
    assert "predicting" in done.err
    as_json = pmtl_command("predict", "run", "--data", "new.csv", "--out", "a.csv", "--json")
    summary = json.loads(as_json.out)
    assert (summary["rows"], summary["clients"], summary["rows_refused"]) == (240, 12, 0)
    assert summary["client_column"] == "hospital"
    assert summary["out"] == "a.csv"


def test_others_are_refused_and_nothing_is_written(here, pmtl_command):
    text = (here / "new.csv").read_text().replace('"h03"', '"h33"')
    (here / "new.csv").write_text(text)
    asked = ("predict", "run", "--data", "new.csv", "--out", "a.csv")
    for more, said in (
        ((), "the client 'h33', not in this run"),
        (("--client", "h01"), "--any-client"),
        (("--client", "h01", "--new"), "give one of them"),
        (("--client-column", "id"), "not in this run"),
        (("--keep", "id,nothing"), "named 'nothing'"),
    ):
        refused = pmtl_command(*asked, *more)
        assert refused.status == 2
        assert said in refused.err
        assert refused.err.count("error:") == 1
        assert not (here / "a.csv").exists()
    done = pmtl_command(*asked, "--new")
    assert done.status == 0, done.err
    assert "20 of them are of the shared model, for clients not in the run." in done.out
    done = pmtl_command(*asked, "--skip")
    assert "220 predictions of 11 clients are in a.csv. 20 rows have no answer" in done.out
    assert (here / "a.csv").read_text().count(",,,\n") == 20
    shared = pmtl_command(*asked, "--shared")
    assert "240 predictions of the shared model for 11 clients" in shared.out


def test_one_client_of_a_file_without_a_client_column(here, pmtl_command):
    (here / "mine.csv").write_text("dose,note,age\n0.01,first,50\n-0.01,second,61\n")
    asked = ("predict", "run", "--client", "h05", "--data", "mine.csv", "--out", "a.csv")
    done = pmtl_command(*asked, "--no-probabilities")
    assert done.status == 0, done.err
    assert done.out == "2 predictions of client h05 are in a.csv.\n"
    rows = np.array([[50, 0.01], [61, -0.01]], dtype=np.float32)
    run = pmtl.load_run("run")
    told = np.array(run.facts.labels)[run.predict("h05", rows)]
    lines = (here / "a.csv").read_text().splitlines()
    assert lines == ['"note","prediction"', f'"first","{told[0]}"', f'"second","{told[1]}"']


def test_its_help_has_an_example(pmtl_command):
    told = pmtl_command("predict", "--help")
    assert told.status == 0
    assert "pmtl predict runs/run-1 --data new.csv --out answers.csv" in " ".join(told.out.split())
