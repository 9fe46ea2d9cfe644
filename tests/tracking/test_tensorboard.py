"""`--callback tensorboard`, read back by TensorBoard's own reader."""

from __future__ import annotations

import sys

import pytest

import pmtl
from pmtl.errors import PmtlError
from pmtl.runs.callbacks import Callback, build_callback

reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def scalars(folder):
    read = reader.EventAccumulator(str(folder))
    read.Reload()
    return {
        name: [(event.step, event.value) for event in read.Scalars(name)]
        for name in read.Tags()["scalars"]
    }, read.Tags()["tensors"]


def test_every_round_is_written(tmp_path, monkeypatch, pmtl_command):
    monkeypatch.chdir(tmp_path)
    done = pmtl_command(
        *("train", "--data", "synthetic:clients=8", "--algorithm", "pmtl", "--rounds", 3),
        *("--evaluate-every", 1, "--out", "here/run", "--callback", "tensorboard"),
    )
    assert done.status == 0, done.err
    run = pmtl.load_run("here/run")
    found, texts = scalars(tmp_path / "tensorboard/run")
    assert [step for step, _ in found["train_loss"]] == [1, 2, 3]
    wanted = [line["validation"]["personal"]["loss"] for line in run.metrics]
    assert [value for _, value in found["validation/personal/loss"]] == pytest.approx(wanted)
    assert found["privacy/epsilon"] == [(3, pytest.approx(2.0))]
    assert "privacy/text_summary" in texts
    assert not (tmp_path / "here/run/tensorboard").exists()


class Failing(Callback):
    def on_round(self, event):
        if event.round == 2:
            raise RuntimeError("stop")


def test_a_resumed_run_continues_its_curve(small, tmp_path):
    name = f"tensorboard:folder={tmp_path / 'logs'}"
    path = tmp_path / "run"
    with pytest.raises(PmtlError, match="stop"):
        pmtl.train(
            small, privacy={"rounds": 4}, algorithm="pmtl", callbacks=[name, Failing], out=path
        )
    pmtl.resume(path, data=small, callbacks=[name])
    found, _ = scalars(tmp_path / "logs/run")
    assert [step for step, _ in found["train_loss"]] == [1, 2, 3, 4]


def test_runs_in_memory_get_folders_of_their_own(small, tmp_path):
    for _ in range(2):
        pmtl.train(
            small,
            privacy={"rounds": 1},
            algorithm="pmtl",
            callbacks=[f"tensorboard:folder={tmp_path}"],
        )
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["run-1", "run-2"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tensorbord", "Did you mean 'tensorboard'"),
        ("tensorboard:dir=x", "no option of callback tensorboard named 'dir'"),
        ("mlflow:url=x", "no option of callback mlflow named 'url'"),
    ],
)
def test_mistakes_are_sentences(name, words):
    with pytest.raises(PmtlError, match=words):
        build_callback(name)


@pytest.mark.parametrize(
    ("name", "module"), [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow.tracking")]
)
def test_a_missing_extra_is_a_sentence(monkeypatch, name, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(PmtlError, match=rf"pip install 'pmtl\[{name}\]'"):
        build_callback(name)
