"""Training on text: rows stay sparse, the words belong to the run, and the statement names them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pmtl import load_run, train
from pmtl.data import FederatedData, load
from pmtl.engines import sparse
from pmtl.errors import PmtlError
from pmtl.runs.folder import RunFolder
from pmtl.runs.training import resume

COMMITS = Path(__file__).parents[4] / "shared" / "data" / "commit_tags" / "commit_tags.tsv.gz"


@pytest.fixture
def never_dense(monkeypatch):
    """Fails where rows are made dense, and counts the rounds of the sparse trainer."""
    rounds = []
    train = sparse.SparseTrainer.train

    def counted(self, *arguments):
        rounds.append(self)
        return train(self, *arguments)

    def dense(self, index):
        raise AssertionError("the rows were made dense")

    monkeypatch.setattr(sparse.SparseTrainer, "train", counted)
    monkeypatch.setattr(FederatedData, "gather", dense)
    return rounds


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(2)
    topics = {"net": ["socket", "ip"], "doc": ["typo", "page"], "usb": ["host", "cable"]}
    lines = ["user\ttext\ttag"]
    for user in range(6):
        for _ in range(12):
            tag = rng.choice(list(topics))
            words = [*rng.choice(topics[tag], 3), *rng.choice(["fix", "add", "the"], 2)]
            lines.append(f"u{user}\t{' '.join(words)}\t{tag}")
    path = tmp_path / "rows.tsv"
    path.write_text("\n".join(lines) + "\n")
    return path


def settings(**more):
    return {
        "model": "logistic",
        "privacy": {"epsilon": 8.0, "rounds": 2},
        "local": {"lr": 5.0},
        **more,
    }


def test_end_to_end(table, tmp_path, never_dense, pmtl_command):
    spec = f"{table}:client=user,text=text,target=tag,words=8,tags=2"
    run = train(spec, out=tmp_path / "run", **settings())
    assert len(never_dense) == 2
    scores = run.evaluate()["test"]["personal"]
    assert scores["accuracy"] > 0.8
    assert scores["recall_at_5"] == 1.0  # There are but two.

    counted = [item for item in run.privacy.not_covered if "most clients use" in item]
    assert len(counted) == 2
    text = (tmp_path / "run" / "privacy.txt").read_text()
    assert "The 8 words that most clients use" in " ".join(text.split())
    assert load_run(tmp_path / "run").privacy.not_covered == run.privacy.not_covered

    (tmp_path / "new.csv").write_text("text\nsocket ip\nhost cable fix\n")
    outcome = pmtl_command(
        *("predict", tmp_path / "run", "--client", "u3"),
        *("--data", tmp_path / "new.csv", "--out", tmp_path / "answers.csv"),
    )
    assert outcome.status == 0, outcome.err
    head, first, second = (tmp_path / "answers.csv").read_text().splitlines()
    names = [f"prediction of {label}" for label in run.facts.labels]
    names += [f"probability of {label}" for label in run.facts.labels]
    assert json.loads(f"[{head}]") == names
    assert len(first.split(",")) == len(second.split(",")) == 4


def test_hashed_words_need_no_word_of_warning(table):
    spec = f"{table}:client=user,text=text,target=tag,hash=64"
    run = train(spec, **settings(algorithm="local", privacy={"epsilon": 8.0, "rounds": 5}))
    assert run.facts.disclosed == ()
    assert not any("most clients use" in item for item in run.privacy.not_covered)
    assert run.evaluate()["test"]["personal"]["accuracy"] > 0.5


def _power_cut(self, line):
    raise SystemError


def test_another_vocabulary_is_refused(table, tmp_path, monkeypatch):
    words = tmp_path / "words.txt"
    words.write_text("socket\ntypo\nhost\n")
    spec = f"{table}:client=user,text=text,target=tag,vocabulary={words}"
    train(spec, out=tmp_path / "whole", **settings())
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_round", _power_cut)
        with pytest.raises(SystemError):
            train(spec, out=tmp_path / "run", **settings())
    words.write_text("socket\npage\nhost\n")
    with pytest.raises(PmtlError, match=r"other words.*'page' in place of 'typo'"):
        resume(tmp_path / "run")
    with pytest.raises(PmtlError, match=r"other words.*'page' in place of 'typo'"):
        load_run(tmp_path / "whole").evaluate()
    hashed = load(f"{table}:client=user,text=text,target=tag,hash=3")
    with pytest.raises(PmtlError, match=r"other words.*0 in place of 3"):
        load_run(tmp_path / "whole", data=hashed).evaluate()


@pytest.mark.skipif(not COMMITS.exists(), reason="../shared/data/commit_tags is not here")
def test_the_papers_size_on_real_commits_stays_sparse(never_dense):
    """10,000 words and 491 tags: a dense batch of a client would be 10,000 times 4 bytes a row."""
    options = "client=user,text=text,target=tag,words=10000,tags=500,largest=2"
    quick = settings(privacy={"epsilon": 8.0, "rounds": 1}, local={"steps": 2})
    run = train(f"{COMMITS}:{options}", evaluate_every=0, **quick)
    assert run.facts.parameters == 491 * 10_001
    assert len(never_dense) >= 1
    assert run.metrics[-1]["round"] == 1
