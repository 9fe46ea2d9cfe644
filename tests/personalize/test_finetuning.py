"""`pmtl.finetune`: from a run to a folder and back, in one sentence where that cannot be."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch

import pmtl
from pmtl import storage as files
from pmtl.algorithms import ClusteredPMTL
from pmtl.personalize import result
from pmtl.personalize.finetuning import folder_of
from pmtl.privacy.ledger.ledger import Ledger

PLAN = {"epsilon": 8.0, "rounds": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A finished run, made once; tests work on copies."""
    path = tmp_path_factory.mktemp("personalize") / "run"
    pmtl.train("synthetic:clients=15,samples=12", privacy=PLAN, local={"steps": 3}, out=path)
    return path


@pytest.fixture
def run(folder, tmp_path):
    return pmtl.load_run(shutil.copytree(folder, tmp_path / "run"))


@pytest.fixture
def production(small, tmp_path):
    Ledger.create(tmp_path / "ledger.db", small.clients).close()
    return pmtl.train(
        small,
        privacy=PLAN,
        local={"steps": 1},
        mode="production",
        ledger=tmp_path / "ledger.db",
        out=tmp_path / "run",
    )


def weights(run):
    answering = next(iter(run.views().values()))
    return answering(np.arange(len(run.clients)))


def test_from_the_folder_comes_what_was_put_into_it(run):
    tuned = pmtl.finetune(run, "mean", steps=4, lam=0.3, out=folder_of(run, "mean", None))
    assert tuned.path == run.path / "finetuned/mean-personal"
    again = pmtl.load_finetuned(tuned.path)
    assert torch.equal(weights(again), weights(tuned))
    assert not torch.equal(weights(again), weights(run))
    assert again.evaluate() == tuned.evaluate()
    written = json.loads((tuned.path / "result.json").read_text())
    assert written["test"] == tuned.evaluate()["test"]
    assert set(written["test"]) == {"finetuned", "personal", "shared"}
    assert written["test"]["personal"] == run.evaluate()["test"]["personal"]
    about = again.about
    assert (about.method, about.start, about.lam) == ("mean", "personal", 0.3)
    assert about.local["steps"] == 4
    assert about == tuned.about
    x = run.data.gather(np.arange(3))[0]
    answers = tuned.personal("3")(torch.from_numpy(x)).argmax(-1)
    assert again.predict("3", x).tolist() == answers.tolist()


def test_a_start_a_seed_and_a_method_make_a_difference_and_the_same_ones_do_not(run):
    def tuned(**options):
        return weights(pmtl.finetune(run, **{"steps": 3, **options}))

    first = tuned()
    assert torch.equal(first, tuned(start="personal", seed=0))
    for other in ({"start": "shared"}, {"seed": 1}, {"method": "ewc"}, {"lr": 0.2}, {"batch": 3}):
        assert not torch.equal(first, tuned(**other)), other


def test_a_run_in_memory_stays_there(small):
    run = pmtl.train(small, privacy=PLAN, local={"steps": 1})
    before = weights(run).clone()
    tuned = pmtl.finetune(run, "kl", steps=2)
    assert tuned.evaluate()["test"]["finetuned"]["accuracy"] > 0.4
    assert torch.equal(weights(run), before)
    assert tuned.path is None
    with pytest.raises(pmtl.PmtlError, match="nothing to refer to"):
        pmtl.finetune(run, out="somewhere")


def test_clients_read_the_model_of_their_own_cluster(small):
    clusters = {client: str(k % 2) for k, client in enumerate(small.clients)}
    run = pmtl.train(small, algorithm=ClusteredPMTL(clusters=clusters), privacy=PLAN)
    held = weights(pmtl.finetune(run, "mean", "personal", lam=9.0, lr=0.1, steps=50, batch=0))
    shared = run.views()["shared"](np.arange(12))
    other = shared[torch.tensor([1, 0] * 6)]
    assert ((held - shared).norm(dim=1) < (held - other).norm(dim=1)).all()


def test_a_clients_own_scaling_is_part_of_its_model(small):
    raw = 5 + 3 * np.asarray(small.x)
    owner = np.repeat(small.clients, 14)
    scaled = pmtl.FederatedData.from_arrays(raw, small.y, owner, outputs=2, scale="client")
    tuned = pmtl.finetune(pmtl.train(scaled, privacy=PLAN), steps=20)
    mine = weights(tuned)[3]
    exact = tuned.flat_model.apply(mine, torch.from_numpy(scaled.x[42:56])).argmax(-1)
    assert tuned.predict(small.clients[3], raw[42:56]).tolist() == exact.tolist()
    assert 0 < exact.sum() < 14


def test_the_statement_says_that_it_was_free_and_only_then(run):
    tuned = pmtl.finetune(run, steps=1, out=folder_of(run, "vanilla", None))
    said = " ".join((tuned.path / "privacy.txt").read_text().split())
    assert "Fine-tuning and choosing inside a client: free." in said
    assert json.loads((tuned.path / "privacy.json").read_text())["afterwards"] in said
    assert tuned.privacy.epsilon == run.privacy.epsilon
    before = json.loads((run.path / "privacy.json").read_text())
    assert "afterwards" not in before
    assert "Fine-tuning" not in str(run.privacy)


def test_a_run_of_fedavg_gets_personal_models_and_says_whose_they_are(small):
    run = pmtl.train(small, algorithm="fedavg", privacy=PLAN)
    tuned = pmtl.finetune(run, steps=2)
    assert tuned.about.start == "shared"
    assert set(tuned.evaluate()["test"]) == {"finetuned", "shared"}
    assert "protects the other clients, not the client itself" not in " ".join(
        str(run.privacy).split()
    )
    assert "protects the other clients, not the client itself" in " ".join(
        str(tuned.privacy).split()
    )


class TestSelect:
    def test_choices_are_known_in_an_experiment(self, run):
        tuned = pmtl.finetune(run, "select", steps=2, lam=1.0, out=folder_of(run, "select", None))
        assert tuned.path.name == "select"
        assert sum(tuned.chosen.values()) == 15
        again = pmtl.load_finetuned(tuned.path)
        assert again.chosen == tuned.chosen
        before, after = (r.evaluate()["validation"] for r in (run, tuned))
        assert after["finetuned"]["accuracy_mean"] >= before["personal"]["accuracy_mean"]
        with pytest.raises(pmtl.PmtlError, match="nothing was chosen"):
            pmtl.finetune(run, steps=1).chosen  # noqa: B018

    def test_choices_are_private_in_production(self, production, small):
        tuned = pmtl.finetune(
            production, "select", steps=2, lam=1.0, out=folder_of(production, "select", None)
        )
        names = {file.name for file in tuned.path.iterdir()}
        expected = {"finetuned.json", "personal.safetensors", "privacy.txt", "privacy.json"}
        assert names == expected
        about = json.loads((tuned.path / "finetuned.json").read_text())
        assert about["picks"] is None
        assert about["seed"] is None
        for found in (tuned, pmtl.load_finetuned(tuned.path, data=small)):
            with pytest.raises(pmtl.PmtlError, match="where it is private"):
                found.chosen  # noqa: B018
            with pytest.raises(pmtl.PmtlError, match="withholds"):
                found.evaluate()
            assert len(found.predict(small.clients[0], small.x[:2])) == 2
        with pytest.raises(pmtl.PmtlError, match="leave it out"):
            pmtl.finetune(production, seed=3)


class TestOneMistake:
    def test_in_what_is_asked_for(self, run):
        mistakes = {
            "Did you mean 'vanilla'": {"method": "vanlla"},
            "Did you mean 'shared'": {"start": "share"},
            "not negative": {"method": "kl", "lam": -0.1},
            "has no λ": {"lam": 0.1},
            "give one of them": {"steps": 1, "epochs": 1},
            "steps must be at least 1": {"steps": 0},
            "lr must be": {"lr": 0.0},
            "seed must be at least 0": {"seed": -1},
            "no engine": {"engine": "axes"},
        }
        for sentence, options in mistakes.items():
            with pytest.raises(pmtl.PmtlError, match=sentence):
                pmtl.finetune(run, **options)
        with pytest.raises(pmtl.PmtlError, match="without slashes"):
            folder_of(run, "vanilla", None, "../elsewhere")

    def test_in_the_run(self, small, run, tmp_path):
        alone = pmtl.train(small, algorithm="local", privacy={"rounds": 1})
        with pytest.raises(pmtl.PmtlError, match="no published model"):
            pmtl.finetune(alone, "mean")
        with pytest.raises(pmtl.PmtlError, match="use --start personal"):
            pmtl.finetune(alone, start="shared")
        assert pmtl.finetune(alone, steps=1).about.start == "personal"
        average = pmtl.train(small, algorithm="fedavg", privacy=PLAN)
        with pytest.raises(pmtl.PmtlError, match="use --start shared"):
            pmtl.finetune(average, start="personal")
        with pytest.raises(pmtl.PmtlError, match="already"):
            pmtl.finetune(pmtl.finetune(average, steps=1))
        with pytest.raises(pmtl.PmtlError, match="no run at"):
            pmtl.finetune(tmp_path / "nothing")

    def test_in_the_data(self, run, small):
        changed = pmtl.load_run(run.path, data=pmtl.load("synthetic:clients=15,samples=13"))
        with pytest.raises(pmtl.PmtlError, match="fingerprint differs"):
            pmtl.finetune(changed)
        unvalidated = pmtl.FederatedData.from_arrays(
            small.x, small.y, np.repeat(small.clients, 14), outputs=2, validation=0
        )
        finished = pmtl.train(unvalidated, privacy=PLAN)
        with pytest.raises(pmtl.PmtlError, match="validation rows, but this data has none"):
            pmtl.finetune(finished, "select")


class TestTheFolder:
    def test_it_is_whole_or_not_there(self, run, monkeypatch):
        """A crash at any of its files leaves no folder of that name."""
        place = folder_of(run, "vanilla", None)
        tuned = pmtl.finetune(run, steps=1)
        for broken in ("write_text", "write_json", "place"):
            with monkeypatch.context() as patch:
                patch.setattr(files, broken, _fail)
                with pytest.raises(KeyboardInterrupt):
                    result.save_finetuned(tuned, place)
            assert not place.exists()
            assert not list(place.parent.glob(".*"))
        with pytest.raises(pmtl.PmtlError, match="no fine-tuned result"):
            pmtl.load_finetuned(place)
        result.save_finetuned(tuned, place)
        with pytest.raises(pmtl.PmtlError, match="exists already"):
            pmtl.finetune(run, steps=1, out=place)

    def test_what_a_crash_left_is_not_taken_for_whole(self, run):
        tuned = pmtl.finetune(run, steps=1, out=folder_of(run, "vanilla", None))
        (tuned.path / "finetuned.json").unlink()
        with pytest.raises(pmtl.PmtlError, match="no fine-tuned result"):
            pmtl.load_finetuned(tuned.path)

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"format": 99}, "format 99.*version that wrote it"),
            ({"run": 3}, "'run' is not valid"),
            ({"local": None}, "'local' is not valid"),
            ({"picks": ["a"]}, "'picks' is not valid"),
            ({"run_folder": ""}, "does not name its run"),
            ({"written": {}}, "does not name its run and its models"),
            ({"colour": "red"}, "no entry of .* named 'colour'"),
            ("method", "no entry 'method' in .*finetuned.json"),
        ],
    )
    def test_a_wrong_entry_is_a_sentence(self, run, changes, words):
        tuned = pmtl.finetune(run, steps=1, out=folder_of(run, "vanilla", None))
        values = files.read_json(tuned.path / "finetuned.json")
        if isinstance(changes, str):
            del values[changes]
        else:
            values |= changes
        files.write_json(tuned.path / "finetuned.json", values)
        with pytest.raises(pmtl.PmtlError, match=words):
            pmtl.load_finetuned(tuned.path)

    def test_a_file_of_an_earlier_version_is_read(self, run):
        tuned = pmtl.finetune(run, steps=1, out=folder_of(run, "vanilla", None))
        values = files.read_json(tuned.path / "finetuned.json")
        for name in ("format", "picks", "candidates"):
            del values[name]
        files.write_json(tuned.path / "finetuned.json", values)
        assert pmtl.load_finetuned(tuned.path).about == tuned.about

    def test_a_changed_model_is_noticed(self, run):
        tuned = pmtl.finetune(run, steps=1, out=folder_of(run, "vanilla", None))
        other = pmtl.finetune(run, "ewc", steps=1, out=folder_of(run, "ewc", None))
        file = tuned.path / "personal.safetensors"
        good = file.read_bytes()
        file.write_bytes((other.path / "personal.safetensors").read_bytes())
        with pytest.raises(pmtl.PmtlError, match="not the file"):
            pmtl.load_finetuned(tuned.path)
        bad = bytearray(good)
        bad[-40 - 32 * 15] ^= 1  # In the last client's weights, before all digests.
        file.write_bytes(bad)
        again = pmtl.load_finetuned(tuned.path)
        with pytest.raises(pmtl.PmtlError, match="damaged"):
            weights(again)

    def test_it_moves_with_its_run_and_not_to_another(self, run, folder, tmp_path):
        pmtl.finetune(run, steps=1, out=folder_of(run, "vanilla", None))
        moved = run.path.rename(tmp_path / "moved")
        assert pmtl.load_finetuned(moved / "finetuned/vanilla-personal").facts.id
        strange = tmp_path / "strange"
        pmtl.train("synthetic:clients=15,samples=12", privacy=PLAN, out=strange)
        shutil.copytree(moved / "finetuned", strange / "finetuned")
        with pytest.raises(pmtl.PmtlError, match="another run"):
            pmtl.load_finetuned(strange / "finetuned/vanilla-personal")
        lonely = shutil.copytree(moved / "finetuned/vanilla-personal", tmp_path / "a/b/lonely")
        shutil.rmtree(strange)
        with pytest.raises(pmtl.PmtlError, match=r"is not at|no run|not a run"):
            pmtl.load_finetuned(lonely)


def _fail(*arguments, **options):
    raise KeyboardInterrupt


def test_clients_with_few_rows_keep_what_an_exact_algorithm_gave_them(small):
    run = pmtl.train(small, privacy=2.0, seed=1)
    assert run.facts.algorithm.startswith("pooling")
    assert small.rows("validation").counts.max() < 8
    chosen = pmtl.finetune(run, method="select", steps=2)
    for client in small.clients:
        before, after = run.personal(client).state_dict(), chosen.personal(client).state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before)
