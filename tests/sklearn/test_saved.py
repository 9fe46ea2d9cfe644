"""Pickles: by path where the run has a folder, with weights where it has none, never with rows."""

from __future__ import annotations

import copy
import pickle
import shutil
import subprocess
import sys

import cloudpickle
import joblib
import numpy as np
import pytest
from sklearn.base import clone

from pmtl.errors import PmtlError
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.sklearn import PMTLClassifier, PMTLRegressor


def same(one, other, table):
    for groups in (table.groups, ["new"] * len(table.groups)):
        np.testing.assert_array_equal(
            one.predict(table.x, groups=groups), other.predict(table.x, groups=groups)
        )


@pytest.mark.parametrize("algorithm", ["auto", "clustered"])
def test_a_run_in_memory_is_pickled_with_its_weights(table, tmp_path, algorithm):
    settings = {}
    if algorithm == "clustered":
        file = tmp_path / "clusters.csv"
        lines = [f"h{k:02d},{k % 2}" for k in range(40)]
        file.write_text("\n".join(["client,cluster", *lines]))
        algorithm = f"clustered:clusters={file}"
    if algorithm != "auto":
        settings = {"privacy": {"rounds": 2}}
    made = PMTLClassifier(algorithm=algorithm, random_state=0, **settings)
    made.fit(table.x, table.y, groups=table.groups)
    joblib.dump(made, tmp_path / "model.joblib")
    again = joblib.load(tmp_path / "model.joblib")
    if algorithm.startswith("clustered"):  # There is one shared model for each cluster.
        for each in (made, again):
            with pytest.raises(PmtlError, match="2 models"):
                each.predict(table.x, groups=["new"] * 480)
        np.testing.assert_array_equal(
            again.predict(table.x, groups=table.groups), made.predict(table.x, groups=table.groups)
        )
    else:
        same(made, again, table)
    assert str(again.privacy_) == str(made.privacy_)
    assert again.get_params() == made.get_params()


def test_training_rows_are_not_in_a_pickle(table):
    x = np.tile(table.x, (1, 40))
    made = PMTLRegressor(random_state=0, algorithm="fedavg", privacy={"rounds": 1})
    made.fit(x, table.amount, groups=table.groups)
    text = pickle.dumps(made)
    rows = (x.astype(np.float32), x)
    assert len(text) < rows[0].nbytes
    assert not any(part[k].tobytes() in text for part in rows for k in (0, 100, 479))
    with pytest.raises(PmtlError, match="data from a Python program"):
        _ = pickle.loads(text).run_.data


CHILD = """
import pickle, sys
with open(sys.argv[1], "rb") as file:
    fresh, fitted, x, y, groups = pickle.load(file)
fresh.fit(x, y, groups=groups)
print((fresh.predict(x, groups=groups) == fitted.predict(x, groups=groups)).all())
"""


def test_another_process_fits_and_predicts_what_cloudpickle_sends(table, tmp_path):
    """As joblib's workers do. The model is a function that no module has."""

    def linear(input_shape, outputs):
        import torch

        return torch.nn.Linear(input_shape[0], outputs)

    made = PMTLClassifier(model=linear, privacy={"rounds": 2}, random_state=0)
    fitted = clone(made).fit(table.x, table.y, groups=table.groups)
    sent = cloudpickle.dumps((made, fitted, table.x, table.y, table.groups))
    (tmp_path / "task").write_bytes(sent)
    words = [sys.executable, "-W", "ignore", "-c", CHILD, str(tmp_path / "task")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "True", done.stderr


def test_a_pickle_remembers_the_folder_of_a_model_of_ones_own(table, tmp_path, monkeypatch):
    for name in ("work", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "work" / "small_net.py").write_text(
        "from torch import nn\n\n\n"
        "def net(input_shape, outputs):\n    return nn.Linear(input_shape[0], outputs)\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path / "work")
    made = PMTLClassifier(model="small_net:net", privacy={"rounds": 2}, random_state=0)
    made.fit(table.x, table.y, groups=table.groups)
    text, expected = pickle.dumps(made), made.predict(table.x, groups=table.groups)
    monkeypatch.chdir(tmp_path / "elsewhere")
    sys.path.remove(str(tmp_path / "work"))
    del sys.modules["small_net"]
    assert np.array_equal(pickle.loads(text).predict(table.x, groups=table.groups), expected)


class TestByPath:
    @pytest.fixture
    def made(self, table, tmp_path):
        made = PMTLClassifier(random_state=0, folder=tmp_path / "runs")
        return made.fit(table.x, table.y, groups=table.groups)

    def test_the_pickle_names_the_folder_and_holds_no_weights(self, table, made):
        text = pickle.dumps(made)
        assert made.run_.path.name.encode() in text
        weights = next(made.run_.personal("h07")[1].parameters()).detach().numpy()
        assert weights.astype(np.float32).tobytes()[:16] not in text
        again = pickle.loads(text)
        same(made, again, table)
        assert again.run_.path == made.run_.path
        same(copy.deepcopy(made), made, table)

    def test_a_folder_that_is_gone_is_named(self, made):
        text = pickle.dumps(made)
        shutil.rmtree(made.run_.path)
        with pytest.raises(PmtlError, match=r"its run at .* is not there"):
            pickle.loads(text)

    def test_another_run_in_its_place_is_refused(self, table, made, tmp_path):
        text = pickle.dumps(made)
        other = PMTLClassifier(random_state=1, folder=tmp_path / "runs")
        other.fit(table.x, table.y, groups=table.groups)
        shutil.rmtree(made.run_.path)
        shutil.copytree(other.run_.path, made.run_.path)
        with pytest.raises(PmtlError, match="not the one that this estimator was pickled with"):
            pickle.loads(text)

    def test_a_second_fit_has_a_folder_of_its_own(self, table, made, tmp_path):
        first = made.run_.path
        made.fit(table.x, table.y, groups=table.groups)
        assert made.run_.path != first
        assert len(list((tmp_path / "runs").iterdir())) == 2


def test_production_is_pickled_by_path_only(table, tmp_path):
    Ledger.create(tmp_path / "clients.db", sorted(set(table.groups))).close()
    settings = {"mode": "production", "ledger": tmp_path / "clients.db"}
    kept = PMTLClassifier(**settings, folder=tmp_path / "runs")
    kept.fit(table.x, table.y, groups=table.groups)
    text = pickle.dumps(kept)
    assert kept.run_.facts.fingerprint.encode() not in text, "run.json is private"
    same(pickle.loads(text), kept, table)
    assert {part.name for part in kept.run_.path.iterdir()} == {"public", "private"}
