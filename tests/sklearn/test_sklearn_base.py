"""Groups are clients: who answers for whom, and what reaches the run."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
import sklearn
from sklearn.compose import make_column_transformer
from sklearn.model_selection import GroupKFold, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import pmtl
from pmtl.errors import PmtlError, PmtlWarning
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.sklearn import PMTLClassifier, PMTLRegressor

FOLDS = KFold(2, shuffle=True, random_state=0)


@pytest.fixture(scope="module")
def fitted(table):
    return PMTLClassifier(epsilon=4, random_state=0).fit(table.x, table.y, groups=table.groups)


class TestGroups:
    def test_every_group_is_answered_by_its_own_model(self, table, fitted):
        answers = fitted.predict_proba(table.x, groups=table.groups)
        for group in ("h00", "h17", "h39"):
            own = table.groups == group
            direct = fitted.run_.predict_proba(group, table.x[own])
            np.testing.assert_allclose(answers[own], direct, rtol=1e-5)
        assert fitted.groups_.tolist() == sorted(set(table.groups))

    def test_the_order_of_rows_does_not_matter(self, table, fitted):
        order = np.random.default_rng(0).permutation(len(table.x))
        mixed = fitted.predict_proba(table.x[order], groups=table.groups[order])
        np.testing.assert_array_equal(
            mixed, fitted.predict_proba(table.x, groups=table.groups)[order]
        )

    def test_the_fit_is_the_run_of_pmtl_train(self, table, fitted):
        parts = {"validation": 0.0, "test": 0.0, "labels": ["no", "yes"], "outputs": 2}
        codes = (table.y == "yes").astype(int)
        data = pmtl.FederatedData.from_arrays(table.x, codes, table.groups, **parts)
        seed = int(np.random.RandomState(0).randint(2**31 - 1))
        run = pmtl.train(data, privacy=4.0, seed=seed, warn=print)
        assert fitted.privacy_.epsilon == run.privacy.epsilon == pytest.approx(4)
        direct = run.predict_proba("h03", table.x[36:48])
        answers = fitted.predict_proba(table.x[36:48], groups=["h03"] * 12)
        np.testing.assert_allclose(answers, direct, rtol=1e-5)

    def test_personal_models_are_better_than_the_shared_one_here(self, table, fitted):
        own = fitted.score(table.x, table.y, groups=table.groups)
        unknown = fitted.score(table.x, table.y, groups=[f"new {g}" for g in table.groups])
        assert own > 0.9 > unknown > 0.6

    def test_an_unknown_group_is_answered_by_the_shared_model(self, table, fitted):
        rows = np.repeat([0, 1, 2], [12, 12, 12])
        x = table.x[: len(rows)]
        groups = np.array(["h00", "new", "h02"])[rows]
        answers = fitted.predict_proba(x, groups=groups)
        np.testing.assert_allclose(answers[12:24], fitted.run_.predict_proba(None, x[12:24]), 1e-5)
        np.testing.assert_allclose(answers[:12], fitted.run_.predict_proba("h00", x[:12]), 1e-5)

    def test_without_groups_the_shared_model_answers_and_says_so(self, table, fitted):
        with pytest.warns(PmtlWarning, match="the shared model answers for all rows"):
            answers = fitted.predict_proba(table.x)
        np.testing.assert_allclose(answers, fitted.run_.predict_proba(None, table.x), 1e-5)

    def test_without_groups_all_rows_are_one_clients(self, table):
        with pytest.warns(PmtlWarning, match="all rows belong to one client") as told:
            made = PMTLClassifier(random_state=0).fit(table.x, table.y)
        assert len(told) == 1
        assert "not private" in str(told[0].message)
        assert made.groups_ is None
        assert made.privacy_.epsilon == np.inf
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert made.score(table.x, table.y) > 0.75
        with pytest.raises(PmtlError, match="fitted without groups"):
            made.predict(table.x, groups=table.groups)

    def test_numbers_and_their_text_name_the_same_group(self, table):
        numbers = np.repeat(np.arange(40), 12)
        made = PMTLClassifier(random_state=0).fit(table.x, table.y, groups=numbers)
        a = made.predict_proba(table.x, groups=numbers.astype(float))
        np.testing.assert_array_equal(a, made.predict_proba(table.x, groups=numbers.astype(str)))


class TestInput:
    @pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
    def test_frames_give_names_to_features(self, table, fitted, frame):
        columns = {name: table.x[:, place] for place, name in enumerate("abcd")}
        rows = frame(columns)
        series = pd.Series if frame is pd.DataFrame else pl.Series
        groups = series(table.groups)
        made = PMTLClassifier(epsilon=4, random_state=0).fit(rows, series(table.y), groups=groups)
        assert made.feature_names_in_.tolist() == list("abcd")
        assert made.run_.facts.feature_names == tuple("abcd")
        assert made.n_features_in_ == 4
        np.testing.assert_array_equal(
            made.predict(rows, groups=groups), fitted.predict(table.x, groups=table.groups)
        )
        with pytest.raises(ValueError, match="same order"):
            made.predict(rows[list("dcba")], groups=groups)

    @pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
    def test_columns_that_are_no_numbers_are_named_at_once(self, table, fitted, frame):
        rows = len(table.y)
        columns = {"a": table.x[:, 0], "ward": ["x", "y"] * (rows // 2)}
        columns |= {"gap": [None, *[1.0] * (rows - 1)], "good": [True] * rows}
        made = PMTLClassifier(epsilon=4, random_state=0)
        with pytest.raises(PmtlError, match=r"The columns 'ward', 'gap' of X hold text, dates or"):
            made.fit(frame(columns), table.y, groups=table.groups)
        good = frame({name: columns[name] for name in ("a", "good")})
        made.fit(good, table.y, groups=table.groups)
        late = frame({"a": columns["a"], "good": columns["ward"]})
        with pytest.raises(PmtlError, match="The column 'good' of X holds text"):
            made.predict(late, groups=table.groups)

    @pytest.mark.parametrize("kind", [scipy.sparse.csr_matrix, scipy.sparse.coo_array])
    def test_sparse_rows(self, table, kind):
        few = np.where(np.abs(table.x) > 0.5, table.x, 0)
        made = PMTLClassifier(epsilon=4, random_state=0)
        made.fit(kind(few), table.y, groups=table.groups)
        assert made.score(kind(few), table.y, groups=table.groups) > 0.9
        np.testing.assert_allclose(
            made.predict_proba(kind(few), groups=table.groups),
            made.predict_proba(few, groups=table.groups),
            rtol=1e-5,
        )

    def test_float32_rows_give_the_same_model(self, table, fitted):
        small = table.x.astype(np.float32)
        made = PMTLClassifier(epsilon=4, random_state=0).fit(small, table.y, groups=table.groups)
        np.testing.assert_allclose(
            made.predict_proba(small, groups=table.groups),
            fitted.predict_proba(table.x, groups=table.groups),
            atol=1e-5,
        )

    @pytest.mark.parametrize(
        ("groups", "sentence"),
        [
            ("hospital", r"client of each row, but 'hospital' was given.*group_column"),
            ([None] * 480, "Row 0 .* has no group"),
            (np.full((480, 2), 1), r"one value per row, but its shape is \(480, 2\)"),
            (np.full(480, 0.5), "The group 0.5 is a fraction"),
        ],
    )
    def test_wrong_groups_are_refused(self, table, fitted, groups, sentence):
        with pytest.raises(PmtlError, match=sentence):
            PMTLClassifier().fit(table.x, table.y, groups=groups)
        with pytest.raises(PmtlError, match=sentence):
            fitted.predict(table.x, groups=groups)

    def test_too_few_groups_are_refused(self, table, fitted):
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            PMTLClassifier().fit(table.x, table.y, groups=table.groups[:9])
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            fitted.predict(table.x, groups=table.groups[:9])

    @pytest.mark.parametrize(
        ("settings", "sentence"),
        [
            ({"epsilon": -1}, "Epsilon must be greater than 0, but -1 was given"),
            ({"delta": 2}, "Delta is a probability"),
            ({"algorithm": "poling"}, "Did you mean 'pooling'"),
            ({"mode": "prod"}, "There is no mode 'prod'"),
            ({"privacy": {"epsilon": 3}}, "epsilon is a parameter of the estimator"),
            ({"privacy": {"round": 3}}, "Did you mean 'rounds'"),
            ({"privacy": "high"}, "privacy must be a mapping of settings, but 'high'"),
            ({"local": 3}, "local must be a mapping of settings"),
            ({"bounds": {9: (0, 1)}}, "There are bounds for"),
            ({"mode": "production", "random_state": 1}, "leave random_state out"),
            ({"mode": "production"}, "ledger"),
            ({"group_column": 3}, "groups were given twice"),
        ],
    )
    def test_wrong_settings_are_refused_by_fit(self, table, settings, sentence):
        with pytest.raises(PmtlError, match=sentence):
            PMTLClassifier(**settings).fit(table.x, table.y, groups=table.groups)


class TestWithScikitLearn:
    def test_groups_reach_fit_and_score_in_cross_validation(self, table, fitted):
        own = cross_val_score(
            PMTLClassifier(epsilon=4, random_state=0),
            *(table.x, table.y),
            params={"groups": table.groups},
            cv=FOLDS,
            error_score="raise",
        )
        new = cross_val_score(
            PMTLClassifier(epsilon=4, random_state=0),
            *(table.x, table.y),
            params={"groups": table.groups},
            cv=GroupKFold(2),
            error_score="raise",
        )
        assert own.mean() > new.mean() + 0.05, "clients have models of their own in the first only"

    def test_a_pipeline_with_a_column_transformer(self, table):
        rows = pd.DataFrame(table.x, columns=list("abcd"))
        rows["ward"] = np.where(rows.d > 0, "u", "v")
        steps = make_column_transformer(
            (StandardScaler(), list("abc")), (OneHotEncoder(), ["ward"])
        )
        made = make_pipeline(steps, PMTLClassifier(epsilon=4, random_state=0))
        made.fit(rows, table.y, groups=table.groups)
        assert made.score(rows, table.y, groups=table.groups) > 0.9

    def test_a_group_column_needs_no_routing_and_serves_scorers(self, table):
        rows = pd.DataFrame(table.x, columns=list("abcd")).assign(hospital=table.groups)
        made = PMTLClassifier(epsilon=4, random_state=0, group_column="hospital")
        with sklearn.config_context(enable_metadata_routing=False), warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*without groups")
            scores = cross_val_score(made, rows, table.y, cv=FOLDS, scoring="roc_auc")
        plain = PMTLClassifier(epsilon=4, random_state=0)
        for (train, test), score in zip(FOLDS.split(table.x), scores, strict=True):
            plain.fit(table.x[train], table.y[train], groups=table.groups[train])
            chances = plain.predict_proba(table.x[test], groups=table.groups[test])[:, 1]
            direct = sklearn.metrics.roc_auc_score(table.y[test] == "yes", chances)
            assert score == pytest.approx(direct, abs=1e-6)


class TestPrivacy:
    @pytest.fixture
    def ledger(self, table, tmp_path):
        Ledger.create(tmp_path / "clients.db", sorted(set(table.groups))).close()
        return tmp_path / "clients.db"

    def test_every_fit_is_charged_to_the_ledger(self, table, ledger):
        made = PMTLClassifier(epsilon=1, random_state=0, ledger=ledger)
        spent = [
            made.fit(table.x, table.y, groups=table.groups).privacy_.population_epsilon
            for _ in range(2)
        ]
        assert spent[0] == pytest.approx(1)
        assert 1.3 < spent[1] < 2

    def test_production(self, table, ledger):
        made = PMTLClassifier(epsilon=3, mode="production", ledger=ledger)
        made.fit(table.x, table.y, groups=table.groups)
        assert made.privacy_.mode == "production"
        assert made.privacy_.epsilon == pytest.approx(3)
        assert (made.predict(table.x, groups=table.groups) == table.y).mean() > 0.9
        with pytest.raises(PmtlError, match="score withholds them"):
            made.score(table.x, table.y, groups=table.groups)
        with pytest.raises(PmtlError, match="give the estimator folder"):
            pickle.dumps(made)
        with pytest.raises(PmtlError, match="need to know the client of each row"):
            made.fit(table.x, table.y)

    def test_random_state_repeats_a_fit_and_none_does_not(self, table):
        def chances(state):
            made = PMTLClassifier(epsilon=1, random_state=state)
            made.fit(table.x, table.y, groups=table.groups)
            return made.predict_proba(table.x[:12], groups=["new"] * 12)

        np.testing.assert_array_equal(chances(7), chances(7))
        assert not np.allclose(chances(None), chances(None))

    def test_bounds_are_in_the_statement(self, table):
        rows = pd.DataFrame(table.x, columns=list("abcd"))
        made = PMTLRegressor(bounds={"a": (-4, 4), "target": (0, 200)}, random_state=0)
        made.fit(rows, table.amount, groups=table.groups)
        assert made.run_.facts.bounds["target"] == [0, 200]
        assert "Bounds" in str(made.privacy_)


def test_a_missing_scikit_learn_is_named_and_pmtl_does_not_need_it():
    code = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "sklearn":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Block())
import pmtl
pmtl.FederatedData
try:
    pmtl.sklearn
except pmtl.PmtlError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("pip install 'pmtl[sklearn]'.")
