"""Non-interference: in production, everything that client j gets, sees or can read is a function of
j's own rows, of public settings and of what was published.

Coins, noise and publications are held fixed, client k's rows are changed in every way we could
think of, and everybody else's bytes are compared: uploads, metric values, models.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from at_length import at_length
from interference import (
    CHANGES,
    NAMES,
    Convolving,
    Dropping,
    Failing,
    K,
    Looking,
    M,
    OutOfMemory,
    Stacked,
    Waving,
    World,
    bits,
    failing,
    huge_value,
    many_rows,
    missing_values,
    more_rows,
    other_values,
    table,
)

import pmtl
from pmtl.algorithms import ALGORITHMS, ExactAlgorithm, build_algorithm
from pmtl.models import build_model
from pmtl.models.network import train
from pmtl.privacy.accounting.validation import metrics_plan
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.privacy.plan import PrivacyPlan
from pmtl.server.resolve import sizes_of
from pmtl.sharing import share_part
from pmtl.simulation import LocalTraining, simulate

MODELS = {
    "logistic": "logistic",
    "mlp": "mlp:hidden=7",
    "looks words up": Looking,
    "a stack of layers": Stacked,
    "dropout": Dropping,
    "sines": Waving,
    "convolution": Convolving,
    "fails on some rows": Failing,
    "runs out of memory": OutOfMemory,
}
ENGINES = ["axis", "threads"]
#: Batches of a few rows, of all rows, and epochs of different lengths.
LOCAL = {
    "steps": LocalTraining(steps=3, batch=4, lr=0.5),
    "whole": LocalTraining(steps=2, batch=0, lr=0.5),
    "epochs": LocalTraining(epochs=2, batch=5, lr=0.5),
}
#: The engines, of which `threads` is tried with everything by `make test-thorough` only; tests with
#: every change, model and algorithm use both.
FIRST_ENGINE = ["axis", pytest.param("threads", marks=pytest.mark.thorough)]
OTHERS = np.array([k for k in range(M) if k != K])


def algorithm_of(name):
    options = {
        "clustered": {"clusters": {client: str(k % 2) for k, client in enumerate(NAMES)}},
        "related": {"omega": np.eye(M) - 1 / M},
        "anchored": {"rounds": 2, "votes": 1},
    }.get(name)
    return build_algorithm(name) if options is None else ALGORITHMS[name](**options)


def outcome(world, monkeypatch, data, model="logistic", algorithm="pmtl", engine="auto", **options):
    """Run two production rounds (or all releases) and release metrics; everybody else's bytes."""
    local = options.pop("local", LOCAL["steps"])
    sampling = options.pop("sampling", "poisson")
    cohort = M if sampling == "full" else 7
    with monkeypatch.context() as patch:
        world.hold(patch)
        patch.setattr(train, "STEPS", 2)  # of networks, to save time
        plan = PrivacyPlan(M, cohort, sampling, 0.5, 0.2, 2, 0.01)
        flat = build_model(model, data.input_shape, data.outputs, data.task, 0)
        method = algorithm_of(algorithm)
        if isinstance(method, ExactAlgorithm):  # It decides about rounds and clip itself.
            sizes = sizes_of(flat, data.input_shape, data.task, data.outputs)
            method = method.resolve(sizes, 50.0)
            plan = PrivacyPlan(M, M, "full", 1.0, method.noise, method.releases, 0.01)
        share = options.pop("share", None)
        rows = torch.eye(flat.size)[:4] if share == "basis" else None
        federation = simulate(
            data,
            flat,
            share_part(method, share, flat, rows),
            plan,
            local,
            None,
            charge=lambda round: None,
            hardened=True,
            engine=engine,
            device=options.pop("device", "cpu"),
        )
        views = 2 if federation.algorithm.personal else 1
        if federation.algorithm.shares:
            values = views * (1 if data.task == "regression" else 2)
            federation.prepare_metrics(metrics_plan(M, 1, values, 0.1, 0.01), charge=lambda t: None)
        progress = federation.start()
        for _ in federation.rounds(progress):
            pass
        if federation.algorithm.shares:
            federation.measure(progress)
        models = federation.predictors(progress, OTHERS)
        owned = progress.store.gather(OTHERS)
    seen = set(progress.store.seen.tolist()) - {K}
    return {
        "uploads and metrics": world.others(),
        "models": [bits(row) for row in models],
        "owned": [bits(row) for row in owned],
        "have a row": seen,
        "engine": (federation.sites.engine, federation.sites.compile, federation.sites.step_floats),
    }


def compare(monkeypatch, base, changed, cohort=None, **options):
    """Everybody else's bytes, before and after the change; `cohort` also changes who is drawn."""
    world = World()
    build = options.pop("build", lambda rows: rows.federation())
    about = (build.__qualname__, base.x.shape, *sorted(options.items(), key=lambda item: item[0]))
    before = world.once(about, lambda: outcome(world, monkeypatch, build(base), **options))
    world.replaying, world.cohort = True, cohort
    after = outcome(world, monkeypatch, build(changed), **options)
    assert before == after
    return before


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("local", LOCAL)
@pytest.mark.parametrize("engine", ENGINES)
def test_no_change_of_one_clients_rows_reaches_anybody_else(change, local, engine, monkeypatch):
    base = table()
    before = compare(monkeypatch, base, change(base), engine=engine, local=LOCAL[local])
    assert before["uploads and metrics"]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "change",
    [many_rows, failing, *at_length([other_values, missing_values], lambda _: False)],
)
def test_with_every_model(model, engine, change, monkeypatch):
    base = table()
    options = {"model": MODELS[model], "engine": engine, "local": LOCAL["whole"]}
    compare(monkeypatch, base, change(base), **options)


@pytest.mark.parametrize("model", at_length(MODELS, ("mlp", "dropout").__contains__))
@pytest.mark.parametrize("change", [many_rows, pytest.param(failing, marks=pytest.mark.thorough)])
def test_with_every_model_and_the_default_method_for_networks(model, change, monkeypatch):
    base = table()
    compare(monkeypatch, base, change(base), model=MODELS[model], algorithm="anchored")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "change", [many_rows, pytest.param(huge_value, marks=pytest.mark.thorough)]
)
def test_with_every_algorithm(algorithm, engine, change, monkeypatch):
    base = table()
    options = {"algorithm": algorithm, "engine": engine, "local": LOCAL["whole"]}
    compare(monkeypatch, base, change(base), **options)


@pytest.mark.parametrize(
    ("share", "algorithm"),
    at_length(
        product(["3.*", "subspace:k=9", "film", "basis"], ["anchored", "pmtl", "ditto", "fedavg"]),
        lambda case: case[0] == "3.*" or case[1] == "pmtl",
    ),
)
@pytest.mark.parametrize("engine", FIRST_ENGINE)
@pytest.mark.parametrize(
    "change", [many_rows, pytest.param(missing_values, marks=pytest.mark.thorough)]
)
def test_with_every_kind_of_shared_part(share, algorithm, engine, change, monkeypatch):
    base = table()
    options = {"algorithm": algorithm, "engine": engine, "model": MODELS["mlp"], "share": share}
    compare(monkeypatch, base, change(base), **options)


@pytest.mark.parametrize(
    ("algorithm", "model"),
    [
        pytest.param(
            algorithm,
            model,
            marks=[] if algorithm == "pmtl" or model == "logistic" else pytest.mark.thorough,
        )
        for algorithm in ("pmtl", "ditto", "related", "clustered")
        for model in MODELS
    ],
)
@pytest.mark.parametrize("engine", FIRST_ENGINE)
def test_whether_one_client_is_drawn_reaches_nobody_else(algorithm, model, engine, monkeypatch):
    base = table()

    def without(cohort):
        return cohort[cohort != K]

    def alone(cohort):
        return np.union1d(cohort[:1], [K])

    options = {"algorithm": algorithm, "model": MODELS[model], "engine": engine}
    world = World(cohort=lambda cohort: np.union1d(cohort, [K]))
    before = outcome(world, monkeypatch, base.federation(), **options)
    world.replaying, world.cohort = True, without
    after = outcome(world, monkeypatch, base.federation(), **options)
    assert before == after
    # Nor does it matter who else is: in a round, one client's part is the same in any company.
    world.cohort = alone
    few = outcome(world, monkeypatch, base.federation(), **options)
    first = {key: row for key, row in few["uploads and metrics"].items() if key[:2] == (0, 0)}
    assert first
    assert first.items() <= before["uploads and metrics"].items()


@pytest.mark.parametrize(
    "change", at_length([more_rows, many_rows, missing_values], [many_rows].__contains__)
)
def test_with_two_threads_and_large_arrays(change, monkeypatch):
    """A long sum is split between threads, a short one is not."""
    base = table(width=40_000)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        options = {"local": LOCAL["whole"], "model": "logistic"}
        world = World(cohort=lambda cohort: np.array([1, K]))
        first = lambda: outcome(world, monkeypatch, base.federation(), **options)  # noqa: E731
        before = world.once("two threads", first)
        world.replaying, world.cohort = True, lambda cohort: np.array([1])
        assert outcome(world, monkeypatch, change(base).federation(), **options) == before
    finally:
        torch.set_num_threads(threads)


def sparse(rows):
    from scipy.sparse import csr_matrix

    x = np.where(np.abs(rows.x) > 0.8, rows.x, 0)
    return type(rows)(csr_matrix(x), rows.y, rows.client, rows.split).federation()


@pytest.mark.parametrize("change", CHANGES)
def test_on_sparse_rows(change, monkeypatch):
    base = table(width=200)
    compare(monkeypatch, base, change(base), build=sparse, local=LOCAL["whole"])


def regression(rows):
    y = rows.y.astype(np.float32) / 2
    changed = type(rows)(rows.x, y, rows.client, rows.split)
    return changed.federation(task="regression", outputs=1)


@pytest.mark.parametrize("change", [c for c in CHANGES if c.__name__ != "no_such_class"])
def test_on_numbers(change, monkeypatch):
    base = table()
    options = {"model": "linear", "local": LOCAL["epochs"]}
    compare(monkeypatch, base, change(base), build=regression, **options)


@pytest.mark.parametrize("sampling", ["full", "poisson", "fixed"])
def test_with_every_way_of_drawing(sampling, monkeypatch):
    base = table()
    compare(monkeypatch, base, many_rows(base), sampling=sampling, local=LOCAL["epochs"])


def scaled(rows):
    return rows.federation(scale="client")


@pytest.mark.parametrize("change", CHANGES)
def test_where_every_client_scales_its_rows(change, monkeypatch):
    base = table()
    compare(monkeypatch, base, change(base), build=scaled)


def bounded(rows):
    return rows.federation(bounds={0: (-1, 1), 2: (-0.5, 2)})


@pytest.mark.parametrize("change", CHANGES)
def test_where_features_have_public_bounds(change, monkeypatch):
    base = table()
    compare(monkeypatch, base, change(base), build=bounded)


def test_a_client_with_very_many_rows_decides_about_nothing(monkeypatch):
    """Not even which engine trains, which the run's settings tell everybody."""
    base = table()
    compare(monkeypatch, base, more_rows(base, 5000), local=LOCAL["whole"])


def test_a_client_whose_rows_move_the_table_to_disk_decides_about_nothing(monkeypatch, tmp_path):
    """The default method scales the features of a table, also on disk."""
    base, world = table(), World()
    monkeypatch.setenv("PMTL_MEMORY_LIMIT", str(2 * 4 * base.x.size))

    def models(rows, name):
        (tmp_path / f"{name}.csv").write_text("\n".join(lines_of(rows)), encoding="utf-8")
        columns = {"client": "site", "target": "outcome", "outputs": 3}
        data = pmtl.load(tmp_path / f"{name}.csv", production=True, **columns)
        Ledger.create(tmp_path / f"{name}.db", data.clients).close()
        with monkeypatch.context() as patch:
            world.hold(patch)
            run = pmtl.train(data, mode="production", ledger=tmp_path / f"{name}.db")
        on_disk = isinstance(data.x, np.memmap)
        return on_disk, run.facts.scaled, [bits(row) for row in run.views()["personal"](OTHERS)]

    before = models(base, "few")
    world.replaying = True
    after = models(more_rows(base, 5 * len(base.y)), "many")
    assert not before[0]
    assert after[0]
    assert before[1:] == after[1:]


def finetuned(world, monkeypatch, tmp_path, data, method):
    """Everybody else's models after a production run and fine-tuning."""
    ledger = tmp_path / f"{len(list(tmp_path.iterdir()))}.db"
    Ledger.create(ledger, data.clients).close()
    with monkeypatch.context() as patch:
        world.hold(patch)
        run = pmtl.train(
            data,
            privacy={"epsilon": 2.0, "rounds": 2},
            local=LOCAL["whole"],
            mode="production",
            ledger=ledger,
        )
        tuned = pmtl.finetune(run, method, steps=2, batch=0)
        return [bits(row) for row in tuned.views()["finetuned"](OTHERS)]


@pytest.mark.parametrize("method", ["vanilla", "mean", "kl", "ewc", "select"])
@pytest.mark.parametrize("change", [many_rows, missing_values, huge_value])
def test_after_fine_tuning(method, change, monkeypatch, tmp_path):
    base, world = table(), World()
    first = lambda: finetuned(world, monkeypatch, tmp_path, base.federation(), method)  # noqa: E731
    before = world.once(f"fine-tuned, {method}", first)
    world.replaying = True
    after = finetuned(world, monkeypatch, tmp_path, change(base).federation(), method)
    assert before == after


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no graphics card here")
@pytest.mark.parametrize("change", [other_values, many_rows, missing_values, huge_value])
@pytest.mark.parametrize("model", [*MODELS, "femnist_cnn", "hog"])
def test_on_a_graphics_card(change, model, monkeypatch):
    base = table(784 if model in ("femnist_cnn", "hog") else 6)
    options = {"model": MODELS.get(model, model), "local": LOCAL["whole"], "device": "cuda"}
    compare(monkeypatch, base, change(base), **options)
    world = World(cohort=lambda cohort: np.union1d(cohort, [K]))
    before = outcome(world, monkeypatch, base.federation(), **options)
    world.replaying, world.cohort = True, lambda cohort: cohort[cohort != K]
    assert outcome(world, monkeypatch, base.federation(), **options) == before


def written(path):
    """All files below a folder, and what is in them."""
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*.*"))}


def entries(ledger):
    """What a ledger says, but for the time, its own random number and the keyed digests of
    checkpoints, which are random numbers to whoever has no key."""
    with Ledger.open(ledger, write=False) as opened:
        kept = [entry for entry in opened.entries() if entry.kind not in ("genesis", "mark")]
    return [(entry.kind, entry.run, entry.round, entry.payload) for entry in kept]


def commanded(world, monkeypatch, folder, text, pmtl_command):
    """The command line on a table: everything that others than the owner can read or be told."""
    folder.mkdir()
    (folder / "rows.csv").write_text(text, encoding="utf-8")
    monkeypatch.chdir(folder)
    read = ["--data", "rows.csv:outputs=3", "--client-column", "site", "--target", "outcome"]
    assert pmtl_command("ledger", "create", "clients.db", *read).status == 0
    with monkeypatch.context() as patch:
        world.hold(patch)
        train = ["--mode", "production", "--ledger", "clients.db", "--rounds", "3", "--cohort", "7"]
        done = pmtl_command("train", *read, *train, "--batch", "0", "--lr", "0.3", "--out", "run")
    run = pmtl.load_run("run")
    return {
        "public": written(folder / "run/public"),
        "said": (done.status, done.out, done.err),
        "ledger": entries("clients.db"),
        "models": [bits(row) for row in run.views()["personal"](OTHERS)],
    }


def lines_of(rows):
    columns = ",".join(f"x{number}" for number in range(rows.x.shape[1]))
    lines = [f"site,{columns},outcome,split"]
    for x, y, client, split in zip(rows.x, rows.y, rows.client, rows.split, strict=True):
        lines.append(",".join([client, *(repr(float(v)) for v in x), str(y), split]))
    return lines


@pytest.mark.parametrize(
    "change",
    [*CHANGES, "a cell of text", "an empty cell", "no target"],
    ids=lambda change: getattr(change, "__name__", change),
)
def test_what_everybody_can_read_and_is_told_stays_the_same(
    change, monkeypatch, tmp_path, pmtl_command
):
    """Through the command line and a file: public files, messages, status, ledger, models."""
    base, world = table(), World()
    lines = lines_of(base)
    given = (world, monkeypatch, tmp_path / "one", "\n".join(lines), pmtl_command)
    before = world.once("commanded", lambda: commanded(*given))
    assert before["said"][0] == 0
    assert set(before["public"]) >= {"plan.json", "privacy.txt", "shared.safetensors"}
    if callable(change):
        lines = lines_of(change(base))
    else:
        place = next(n for n, line in enumerate(lines) if line.startswith(NAMES[K]))
        cells = lines[place].split(",")
        at, value = {
            "a cell of text": (2, "many"),
            "an empty cell": (1, ""),
            "no target": (-2, ""),
        }[change]
        cells[at] = value
        lines[place] = ",".join(cells)
    world.replaying = True
    after = commanded(world, monkeypatch, tmp_path / "two", "\n".join(lines), pmtl_command)
    assert after["said"] == before["said"]
    assert after["public"] == before["public"]
    assert after["ledger"] == before["ledger"]
    assert after["models"] == before["models"]
