"""A run's folder after an accident: refused, or the very run that was written; never another
weight, another metric or another ε."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzzing import damaged, fuzz, judge
from hypothesis import given
from hypothesis import strategies as st

import pmtl
from pmtl.experiments.compare import Grid, compare, resume_comparison
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.privacy.request import PrivacyRequest
from pmtl.runs.config import TrainConfig
from pmtl.runs.folder import RunFolder
from pmtl.simulation import LocalTraining

pytestmark = pytest.mark.usefixtures("silent")

WEIGHTS = ("shared.safetensors", "personal.safetensors", "scaling.safetensors")
OPTIONS: dict[str, Any] = {
    "privacy": {"noise": 0.1, "rounds": 4},
    "local": {"steps": 1, "batch": 4},
    "evaluate_every": 2,
    "checkpoint_seconds": 0.0,
}
ROWS = np.random.default_rng(1).normal(size=(30, 2)).astype(np.float32)
DATA = pmtl.FederatedData.from_arrays(
    ROWS, (ROWS[:, 0] > 0).astype(int), np.arange(30) % 5, outputs=2, scale="client"
)


class PowerCut(Exception):
    pass


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("finished") / "run"
    pmtl.train(DATA, out=path, **OPTIONS)
    return path


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.MonkeyPatch.context() as patch:
        save = RunFolder.save_round

        def save_and_stop(self, line):
            save(self, line)
            if line["round"] == 3:
                raise PowerCut

        patch.setattr(RunFolder, "save_round", save_and_stop)
        with pytest.raises(PowerCut):
            pmtl.train(DATA, out=path, **OPTIONS)
    return path


def content(run: pmtl.Run) -> dict[str, Any]:
    """All that a run is used for."""
    models = {
        client: [
            [value.tolist() for value in model.state_dict().values()]
            for model in (run.personal(client), run.shared_for(client))
        ]
        for client in run.clients
    }
    passing = ("id", "written", "memory")  # These differ from one run of the same to another.
    facts = {name: value for name, value in run.facts.to_dict().items() if name not in passing}
    return {"models": models, "privacy": run.privacy, "metrics": run.metrics, "facts": facts}


def victim_of(folder: Path, *names: str) -> st.SearchStrategy[tuple[str, bytes]]:
    """One of the files, and what may have become of it."""
    odd = st.one_of(*[st.recursive(st.integers() | st.text(), st.lists)] * 2, VALUES)

    def fates(name: str) -> st.SearchStrategy[tuple[str, bytes]]:
        fate = damaged((folder / name).read_bytes())
        if name.endswith("json"):
            fate = st.one_of(fate, fate, fate, odd.map(lambda value: json.dumps(value).encode()))
        return st.tuples(st.just(name), fate)

    return st.sampled_from(names).flatmap(fates)


VALUES = st.dictionaries(
    st.sampled_from(["state", "plan", "digest", "written", "clients", "base", "algorithms"]),
    st.one_of(st.text(max_size=5), st.integers(), st.none(), st.just("complete"), st.just({})),
)


def test_a_finished_run(finished):
    whole = content(pmtl.load_run(finished))

    def same(run: pmtl.Run) -> None:
        assert content(run) == whole

    @fuzz(100)
    @given(victim_of(finished, "run.json", "run.json", "metrics.jsonl", *WEIGHTS))
    def damage(drawn: tuple[str, bytes]) -> None:
        name, content = drawn
        before = (finished / name).read_bytes()
        (finished / name).write_bytes(content)
        try:
            judge(f"finished run, {name}", lambda: pmtl.load_run(finished), same, mention=name)
        finally:
            (finished / name).write_bytes(before)

    damage()


@pytest.fixture(scope="module")
def finished_for_real(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("real")
    Ledger.create(folder / "ledger.db", DATA.clients).close()
    real = {"mode": "production", "ledger": folder / "ledger.db"}
    pmtl.train(DATA, out=folder / "run", **OPTIONS, **real)
    return folder / "run"


def test_a_finished_production_run(finished_for_real):
    """The same, where files lie in two parts and digests have a key."""
    whole = content(pmtl.load_run(finished_for_real))
    private = ("run.json", "key", "personal.safetensors", "scaling.safetensors")
    names = [
        "public/metrics.jsonl",
        "public/shared.safetensors",
        *(f"private/{n}" for n in private),
    ]

    def same(run: pmtl.Run) -> None:
        assert content(run) == whole

    @fuzz(60)
    @given(victim_of(finished_for_real, *names))
    def damage(drawn: tuple[str, bytes]) -> None:
        name, content = drawn
        file = finished_for_real / name
        before = file.read_bytes()
        file.write_bytes(content)
        # With another key it is the other files that do not fit.
        mention = "" if name == "private/key" else file.name
        try:
            judge(
                f"production run, {name}",
                lambda: pmtl.load_run(file.parents[1]),
                same,
                mention=mention,
            )
        finally:
            file.write_bytes(before)

    damage()


def test_a_stopped_run(stopped, finished, tmp_path):
    whole = content(pmtl.load_run(finished))

    def same(run: pmtl.Run) -> None:
        again = content(pmtl.load_run(tmp_path / "run"))
        assert again["models"] == content(run)["models"] == whole["models"]
        assert again == whole

    @fuzz(60)
    @given(victim_of(stopped, "run.json", "config.toml", "metrics.jsonl", "checkpoint.safetensors"))
    def damage(drawn: tuple[str, bytes]) -> None:
        name, content = drawn
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        shutil.copytree(stopped, tmp_path / "run")
        (tmp_path / "run" / name).write_bytes(content)
        resume = judge(
            f"stopped run, {name}",
            lambda: pmtl.resume(tmp_path / "run", data=DATA),
            same,
            mention=name,
        )
        if resume is None:  # What was refused is as it was: the right file can be put back.
            shutil.copy(stopped / name, tmp_path / "run" / name)
            same(pmtl.resume(tmp_path / "run", data=DATA))

    damage()


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("compared") / "out"
    privacy, local = PrivacyRequest(rounds=2), LocalTraining(steps=1, batch=4)
    base = TrainConfig(privacy=privacy, local=local)
    compare(Grid(("pmtl", "local"), (4.0,), (0,), base), path, DATA)
    return path


def test_a_comparison(compared):
    whole = (compared / "results.json").read_bytes()
    cells = [f"runs/{folder.name}" for folder in (compared / "runs").iterdir()]
    names = [f"{cell}/{file}" for cell in cells for file in ("run.json", "result.json")]

    def same(results: Any) -> None:
        assert (compared / "results.json").read_bytes() == whole

    @fuzz(50)
    @given(victim_of(compared, "comparison.json", "comparison.json", *names))
    def damage(drawn: tuple[str, bytes]) -> None:
        name, content = drawn
        before = (compared / name).read_bytes()
        (compared / name).write_bytes(content)
        mention = name.rpartition("/")[2]
        try:
            judge("comparison", lambda: resume_comparison(compared, DATA), same, mention=mention)
        finally:
            (compared / name).write_bytes(before)

    damage()


# --- by name ---


def test_an_edited_budget_is_refused(finished):
    """Fewer rounds in the plan would state a smaller ε than was spent."""
    file = finished / "run.json"
    before = file.read_text()
    edited = before.replace('"rounds": 4', '"rounds": 1')
    assert edited != before
    file.write_text(edited)
    with pytest.raises(pmtl.PmtlError, match=r"run\.json is damaged or was edited"):
        pmtl.load_run(finished)
    file.write_text(json.dumps(json.loads(before)))  # Only laid out differently.
    assert pmtl.load_run(finished).privacy.rounds == 4
    file.write_text(before)


def test_another_round_in_the_checkpoint_is_refused(stopped, tmp_path):
    """The number of a round stands in the metadata, not among the numbers."""
    shutil.copytree(stopped, tmp_path / "run")
    file = tmp_path / "run/checkpoint.safetensors"
    whole = file.read_bytes()
    assert b'\\"round\\": 2' in whole
    file.write_bytes(whole.replace(b'\\"round\\": 2', b'\\"round\\": 1'))
    with pytest.raises(pmtl.PmtlError, match=r"checkpoint\.safetensors is damaged"):
        pmtl.resume(tmp_path / "run", data=DATA)


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_missing_file_is_missed(name, finished, tmp_path):
    """Without the scaling, models would answer rows that they do not know."""
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / name).unlink()
    with pytest.raises(pmtl.PmtlError, match=f"{name} is missing"):
        pmtl.load_run(tmp_path / "run")


def test_the_models_of_another_run_are_refused(finished, tmp_path):
    pmtl.train(DATA, out=tmp_path / "other", **OPTIONS | {"seed": 9})
    shutil.copytree(finished, tmp_path / "run")
    shutil.copy(tmp_path / "other/personal.safetensors", tmp_path / "run/personal.safetensors")
    with pytest.raises(pmtl.PmtlError, match="not the file that this run wrote"):
        pmtl.load_run(tmp_path / "run")


def test_a_metric_that_was_edited_is_refused(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    file = tmp_path / "run/metrics.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(pmtl.PmtlError, match=r"metrics\.jsonl is damaged or was edited"):
        pmtl.load_run(tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("run.json", ["evaluate"]),
        ("shared.safetensors", ["evaluate", "--json"]),
        ("metrics.jsonl", ["evaluate"]),
        ("personal.safetensors", ["predict", "--client", "0", "--data", "d.npy", "--out", "o.csv"]),
        ("run.json", ["resume"]),
    ],
)
def test_the_command_line_says_it_in_a_sentence(name, command, finished, tmp_path, pmtl_command):
    shutil.copytree(finished, tmp_path / "run")
    file = tmp_path / "run" / name
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 4
    file.write_bytes(raw)
    done = pmtl_command(command[0], tmp_path / "run", *command[1:])
    assert done.status == 2
    assert done.out == ""
    assert done.err.startswith("error: ")
    assert name in done.err
    assert done.err.count("\n") == 1
