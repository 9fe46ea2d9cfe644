"""Predictions on tables as they come, by the schema of training."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hospital import hospital_frame

import pmtl
from pmtl.errors import PmtlError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    hospital_frame(40).to_csv(folder / "hospital.csv", index=False)
    spec = f"{folder / 'hospital.csv'}:client=hospital,target=outcome"
    pmtl.train(spec, privacy=2.0, out=folder / "run")
    return pmtl.load_run(folder / "run")


@pytest.fixture
def new():
    """Rows of all clients, without the target, in another order of columns."""
    frame = hospital_frame(40, seed=1).drop(columns="outcome")
    return frame[list(reversed(frame.columns))].reset_index(drop=True)


def test_a_file_of_many_clients_a_frame_and_encoded_rows_give_the_same(run, new, tmp_path):
    new.to_csv(tmp_path / "new.csv", index=False)
    summary = run.predict_rows(tmp_path / "new.csv", tmp_path / "a.csv").summary
    assert (summary["rows"], summary["rows_refused"]) == (len(new), 0)
    answers = pd.read_csv(tmp_path / "a.csv", dtype=str, keep_default_na=False)
    assert answers.visit_id.tolist() == new.visit_id.tolist()
    schema = pmtl.Schema.from_dict(run.facts.schema)
    for client in ("h02", "h05", "h07"):  # Of h05, a whole column is missing.
        mine = new[new.hospital == client]
        wanted = run.predict(client, schema.encode(mine))
        assert (run.predict(client, mine) == wanted).all()
        names = np.array(run.facts.labels)[wanted]
        assert answers.prediction[mine.index].tolist() == names.tolist()


def test_a_new_client_fills_by_its_own_rows(run, new):
    mine = new[new.hospital == "h02"].assign(hospital="elsewhere")
    answers = run.predict_proba(None, mine)
    assert np.isfinite(answers).all()
    filled = mine.assign(sugar=pd.to_numeric(mine.sugar, errors="coerce"))
    middle = filled.sugar.sort_values().iloc[(filled.sugar.notna().sum() - 1) // 2]
    raw = pmtl.Schema.from_dict(run.facts.schema).encode(mine)
    place = run.facts.feature_names.index("sugar")
    by_hand = np.where(np.isnan(raw[:, place]), np.float32(middle), raw[:, place])
    raw[:, place] = by_hand
    assert np.allclose(run.predict_proba(None, raw), answers)


def test_columns_that_the_schema_does_not_know(run, new, tmp_path):
    extra = new.assign(nr=range(len(new)))
    extra.to_csv(tmp_path / "new.csv", index=False)
    with pytest.raises(PmtlError, match=r"does not know .nr.*--keep"):
        run.predict_rows(tmp_path / "new.csv", tmp_path / "a.csv")
    run.predict_rows(tmp_path / "new.csv", tmp_path / "a.csv", keep=["nr"])
    assert pd.read_csv(tmp_path / "a.csv").nr.tolist() == list(range(len(new)))
    with pytest.raises(PmtlError, match="'ward' of the schema is missing"):
        run.predict("h02", new.drop(columns="ward"))


def test_cells_that_cannot_be_read_are_refused_or_left_without_an_answer(run, new, tmp_path):
    bad = new.assign(admitted=["soon", *new.admitted[1:]])
    bad.to_csv(tmp_path / "new.csv", index=False)
    with pytest.raises(PmtlError, match=r"'admitted' has a cell that is not a date.*'soon'"):
        run.predict_rows(tmp_path / "new.csv", tmp_path / "a.csv")
    summary = run.predict_rows(tmp_path / "new.csv", tmp_path / "a.csv", skip=True).summary
    assert (summary["rows_refused"], summary["first_refused"]) == (1, [0])
