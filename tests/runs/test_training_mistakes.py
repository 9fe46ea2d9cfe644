"""Mistakes in Python are sentences that say how to mend them, and warnings reach Python."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

import pmtl
from pmtl.algorithms import Ditto, RelatedPMTL
from pmtl.errors import PmtlError, PmtlWarning

X = np.random.default_rng(0).normal(size=(24, 3))
Y, WHO = (X[:, 0] > 0).astype(int), np.repeat(list("abcd"), 6)
FRAME = pd.DataFrame(X, columns=["age", "bmi", "dose"]).assign(hospital=WHO, outcome=Y)
QUICK = {"privacy": {"rounds": 1}, "local": {"steps": 1}}
from_arrays, from_frame = pmtl.FederatedData.from_arrays, pmtl.FederatedData.from_frame


@pytest.fixture(scope="module")
def data():
    return from_arrays(X, Y, WHO, outputs=2)


@pytest.fixture(scope="module")
def run(data):
    return pmtl.train(data, warn=print, **QUICK)


#: What `pmtl.train` is given instead of data.
DATA = [
    (FRAME, r"from_frame\(frame, client=.*Its columns are age, bmi, dose, hospital, outcome"),
    (pl.DataFrame(X), r"from_frame\(frame, client="),
    (X, r"an ndarray was given: make a federation with pmtl.FederatedData.from_arrays"),
    ((X, Y, WHO), r"a tuple was given: .*from_arrays\(x, y, client\)"),
    ({"x": X, "y": Y}, r"a dict was given: .*from_arrays"),
    (None, "a spec .* or a pmtl.FederatedData, but None was given"),
    (3, "but 3 was given"),
    ("visits.csv", r"no file or folder visits\.csv"),
    (Path("visits.csv"), r"no file or folder visits\.csv"),
]


@pytest.mark.parametrize(("given", "sentence"), DATA)
def test_other_data(given, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pmtl.PmtlError, match=sentence):
        pmtl.train(given)
    with pytest.raises(pmtl.PmtlError, match=sentence):
        pmtl.load(given)


#: Arguments of `pmtl.train` besides the data.
ARGUMENTS = [
    ({"algorithm": None}, "An algorithm is a spec .* but None was given"),
    ({"algorithm": 3}, "An algorithm is a spec .* but 3 was given"),
    ({"algorithm": torch.nn.Linear}, "but the class Linear was given"),
    ({"algorithm": ["pmtl", "ditto"]}, "but a list was given"),
    ({"algorithm": "dito"}, "Did you mean 'ditto'"),
    ({"algorithm": RelatedPMTL}, "related needs its relationship matrix"),
    ({"model": torch.nn.Linear(3, 2)}, "but a Linear was given: write model=lambda"),
    ({"model": torch.nn.Linear}, "needs 'in_features', but a factory is called with input_shape"),
    ({"model": None}, "a function that makes a torch module, but None was given"),
    ({"model": 5}, "a function that makes a torch module, but 5 was given"),
    ({"model": "logistc"}, "Did you mean 'logistic'"),
    ({"privacy": "2"}, r"privacy must be an ε \(2.0\), .* but '2' was given"),
    ({"privacy": "high"}, "but 'high' was given"),
    ({"privacy": True}, "privacy must be an ε .* but True was given"),
    ({"privacy": (2.0, 1e-5)}, "but a tuple was given"),
    ({"privacy": pmtl.PrivacyRequest}, "but the class PrivacyRequest was given"),
    ({"privacy": -1}, "Epsilon must be greater than 0, but -1"),
    ({"privacy": 0}, "Epsilon must be greater than 0, but 0"),
    ({"privacy": np.nan}, "epsilon must be a number, but nan"),
    ({"privacy": {"eps": 2}}, "Did you mean 'epsilon'"),
    ({"local": 0.1}, "local must be a LocalTraining or a mapping"),
    ({"local": {"lr": "fast"}}, "lr of local must be a number"),
    ({"epsilon": 2}, r'no argument .epsilon.: privacy has it: write privacy=\{"epsilon": …\}'),
    ({"lr": 0.1}, r'no argument .lr.: local has it: write local=\{"lr": …\}'),
    ({"client": "hospital"}, r"no argument .client.: make a federation of a frame first"),
    ({"algoritm": "pmtl"}, "no argument of train named 'algoritm'. Did you mean 'algorithm'"),
    ({"zzz": 1}, "no argument of train named 'zzz'"),
    ({"seed": "a"}, "seed must be a whole number"),
    ({"seed": 1.5}, "seed must be a whole number"),
    ({"mode": "prod"}, "There is no mode 'prod'"),
    ({"mode": "production"}, "clients' ledger"),
    ({"ledger": "no.db"}, "There is no ledger at"),
    ({"device": "gpu"}, "There is: cpu"),
    ({"device": "meta"}, "There is: cpu"),
    ({"device": None}, "device must be text"),
    ({"out": 3}, "out must be a path, but 3 was given"),
    ({"init": "no.safetensors"}, "could not be read"),
    ({"callbacks": pmtl.Callback()}, r"write callbacks=\[…\]"),
    ({"callbacks": "my:Callback"}, r"write callbacks=\[…\]"),
    ({"callbacks": [print]}, "is not a pmtl.Callback"),
    ({"warn": True}, "warn is a function"),
    ({"team": 2}, r"pmtl.join_team\(\), but 2"),
    ({"metric": len}, "metric must be text"),
    ({"share": ["bias"]}, "share must be text"),
    ({"evaluate_every": -1}, "evaluate_every must be at least 0"),
]


@pytest.mark.parametrize(("given", "sentence"), ARGUMENTS)
def test_other_arguments(data, given, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pmtl.PmtlError, match=sentence):
        pmtl.train(data, **given)
    assert list(tmp_path.iterdir()) == []


#: Options of `pmtl train` that are wrong whatever the data are.
OPTIONS = [
    ("--epsilon -1", "Epsilon must be greater than 0, but -1"),
    ("--epsilon 1e300", "Epsilon must lie between"),
    ("--epsilon 1 --noise 1", "Both epsilon (1) and noise (1) were given"),
    ("--noise -1", "The noise must be a finite standard deviation of at least 0"),
    ("--delta 2", "Delta is a probability strictly between 0 and 1, but 2 was given"),
    ("--clip -1", "The clip norm must be greater than 0, but -1"),
    ("--rounds 0", "The number of rounds must be at least 1, but 0"),
    ("--cohort 0", "The size of the cohort must be at least 1, but 0"),
    ("--metrics 1", "less than 1, but 1 was given: 0.1 is the default"),
    ("--loss-bound 0", "loss_bound must be greater than 0"),
    ("--steps 99999999999999999999", "steps must be at most 1e+09"),
    ("--epochs 99999999999999999999", "epochs must be at most 1e+09"),
    ("--lr 1e308", "lr must be at most 1e+38"),
    ("--sampling nosuch", "There is no sampling scheme 'nosuch'"),
    ("--model nosuch", "There is no model 'nosuch'"),
    ("--algorithm nosuch", "There is no algorithm 'nosuch'"),
    ("--algorithm pmtl:lam=-1", "lam must be a finite number that is not negative"),
    ("--device nosuch", "The device 'nosuch' cannot be used here"),
    ("--init nosuch.safetensors", "could not be read"),
    ("--share basis:file=nosuch.safetensors", "could not be read"),
    ("--scale nosuch", "There is no scale 'nosuch'"),
]


@pytest.mark.parametrize(("options", "sentence"), OPTIONS)
def test_an_option_is_refused_before_the_data_are_read(
    options, sentence, tmp_path, monkeypatch, pmtl_command
):
    monkeypatch.chdir(tmp_path)
    Path("visits.csv").write_text("")  # Reading it is an error.
    where = ("--data", "visits.csv", "--client-column", "hospital", "--target", "outcome")
    done = pmtl_command("train", *where, *options.split())
    assert done.status == 2
    assert sentence in " ".join(done.err.split())


#: Calls of other functions.
CALLS = [
    (lambda run, data: pmtl.train(data, "auto", "auto", 2.0, 3), "all others by name"),
    (lambda run, data: pmtl.train(data, data=data), "train got data twice"),
    (lambda run, data: pmtl.load_run(None), "folder of a run must be a path, but None"),
    (lambda run, data: pmtl.load_run(run), "folder of a run must be a path, but a Run"),
    (lambda run, data: pmtl.load_run("nothing"), "There is no run at nothing"),
    (lambda run, data: pmtl.load_run(), "load_run needs path: write path=…"),
    (lambda run, data: pmtl.resume(run), "folder of a run must be a path, but a Run"),
    (lambda run, data: pmtl.resume("nothing"), "There is no run at nothing"),
    (lambda run, data: pmtl.finetune(data), "must be a path, but a FederatedData"),
    (lambda run, data: pmtl.finetune(run, "vanila"), "Did you mean 'vanilla'"),
    (lambda run, data: pmtl.finetune(run, step=3), "Did you mean 'steps'"),
    (lambda run, data: pmtl.plan(), "plan needs clients"),
    (lambda run, data: pmtl.plan(50, columns=3, epsilon=2), "privacy has it"),
    (lambda run, data: pmtl.plan(50, columns=3, privacy="2"), "privacy must be an ε"),
    (lambda run, data: pmtl.load("synthetic", True), "all others by name"),
    (lambda run, data: run.evaluate(len), "as text, but a builtin_function"),
    (lambda run, data: run.predict("zz", X), "There is no client 'zz'"),
    (lambda run, data: run.predict("aa", X), "in this run; it has 4, .* Did you mean 'a'"),
    (lambda run, data: from_arrays(X, Y), "from_arrays needs client"),
    (lambda run, data: from_arrays(X, Y, WHO, tsk="regression"), "Did you mean 'task'"),
    (lambda run, data: from_arrays(X, Y, WHO[:5]), "differ in length"),
    (lambda run, data: from_arrays(X, Y, WHO, validation="10%"), "must be in .* '10%'"),
    (lambda run, data: from_frame(X), "A frame of pandas or polars is needed, but an ndarray"),
    (lambda run, data: from_frame("visits.csv"), r"files are read by pmtl.load\(path\)"),
    (lambda run, data: from_frame(FRAME, client="clinic"), "no client column 'clinic'"),
    (lambda run, data: pmtl.build_algorithm(None), "but None was given"),
]


@pytest.mark.parametrize(("call", "sentence"), CALLS)
def test_other_calls(run, data, call, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pmtl.PmtlError, match=sentence):
        call(run, data)


def test_thirty_mistakes_and_more_were_tried():
    assert len(DATA) + len(ARGUMENTS) + len(CALLS) > 70


def test_the_class_of_an_algorithm_is_an_algorithm(data, run):
    trained = pmtl.train(data, algorithm=Ditto, warn=print, **QUICK)
    assert trained.facts.algorithm.startswith("ditto")


def test_a_path_and_a_numpy_number_are_accepted(data, tmp_path):
    FRAME.rename(columns={"hospital": "client", "outcome": "target"}).to_csv(
        tmp_path / "visits.csv", index=False
    )
    trained = pmtl.train(tmp_path / "visits.csv", privacy=np.float32(2.0), warn=print)
    assert trained.clients == tuple("abcd")
    assert trained.privacy.epsilon == pytest.approx(2)


def test_a_name_that_pmtl_does_not_have_is_an_attribute_error_with_a_hint():
    with pytest.raises(AttributeError, match="Did you mean 'train'"):
        _ = pmtl.trian


def test_a_command_in_a_sentence_can_be_copied_if_the_path_has_spaces(data, tmp_path):
    (tmp_path / "my run").mkdir()
    (tmp_path / "my run" / "file").touch()
    with pytest.raises(PmtlError, match=r"`pmtl resume '[^`]*my run'`"):
        pmtl.train(data, out=tmp_path / "my run", **QUICK)


class TestWarnings:
    def test_they_reach_python_and_point_to_the_call(self, data):
        with pytest.warns(PmtlWarning, match="With only 4 clients") as told:
            pmtl.train(data, **QUICK)
        assert {Path(one.filename).name for one in told} == {Path(__file__).name}

    def test_a_function_gets_them_instead(self, data):
        heard = []
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pmtl.train(data, warn=heard.append, **QUICK)
        assert any("With only 4 clients" in sentence for sentence in heard)

    def test_they_come_before_anything_is_spent(self, data, tmp_path):
        """A warning that is made an error stops the run."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(PmtlWarning):
                pmtl.train(data, out=tmp_path / "run", **QUICK)
        assert not (tmp_path / "run").exists()
