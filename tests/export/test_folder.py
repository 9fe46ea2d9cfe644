"""The folder of an export: whole or not there, one client's model in one file, nothing private in
what is public."""

from __future__ import annotations

import json
import stat
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
import runs_to_export
import torch
from example_data import small_federation
from safetensors.torch import load_file

import pmtl
from pmtl.algorithms.related import RelatedPMTL
from pmtl.data import Bounds, FederatedData
from pmtl.errors import PmtlWarning
from pmtl.export import folder as export_folder
from pmtl.export.formats import FORMATS, Onnx, Safetensors
from pmtl.privacy.ledger.ledger import Ledger

ODD = ["../up", "a/b", "a\\b", "a b", "a:b", "CON", "Ä", "ä", "x" * 300, ".", "0"]


@pytest.fixture(scope="module")
def odd_run():
    """Clients whose names are no names of files, or the same one on some file systems."""
    random = np.random.default_rng(2)
    x = random.normal(size=(len(ODD) * 8, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int)
    data = FederatedData.from_arrays(x, y, np.repeat(ODD, 8), outputs=2)
    return runs_to_export.trained(data)


def models_in(folder):
    return {file.relative_to(folder).as_posix() for file in folder.glob("models/*")}


@pytest.mark.parametrize("to", FORMATS)
def test_all_clients_get_a_file_each_with_their_own_weights(odd_run, to, tmp_path):
    done = pmtl.export_model(odd_run, tmp_path / "out", all_clients=True, to=to)
    index = json.loads((tmp_path / "out/index.json").read_text())
    assert index["models"] == done.models
    assert set(done.models) == set(ODD)
    assert models_in(tmp_path / "out") == set(done.models.values())
    lowered = {name.lower() for name in done.models.values()}
    assert len(lowered) == len(ODD)  # Some file systems do not know small from large letters.
    assert all(name.isascii() and len(name) < 100 for name in lowered)
    seen = set()
    for client, name in done.models.items():
        content = (tmp_path / "out" / name).read_bytes()
        assert runs_to_export.read_about(content, to)["private_to"] == client
        seen.add(content.replace(json.dumps(client).encode(), b""))
        if to == "safetensors":
            weights = load_file(tmp_path / "out" / name)
            mine = odd_run.personal(client)[1].state_dict()
            assert all(torch.equal(weights[f"model.{part}"], mine[part]) for part in mine)
    assert len(seen) == len(ODD)


def test_a_file_of_all_is_the_file_of_one(odd_run, tmp_path):
    every = pmtl.export_model(odd_run, tmp_path / "all", all_clients=True)
    one = pmtl.export_model(odd_run, tmp_path / "one", client="a/b")
    rows = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    sessions = [
        onnxruntime.InferenceSession(tmp_path / "all" / every.models["a/b"]),
        onnxruntime.InferenceSession(tmp_path / "one" / one.models["a/b"]),
    ]
    first, second = (session.run(None, {"rows": rows}) for session in sessions)
    assert all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))
    assert one.private_to == "a/b"
    assert every.private_to is None


def test_a_wrong_export_is_noticed_and_nothing_is_left(odd_run, tmp_path, monkeypatch):
    """A graph that keeps the first client's weights is the mistake that checking is for."""
    honest = Onnx.content
    first = odd_run.personal(ODD[0])
    kept = export_folder.Predictor(first, "classification").eval()
    monkeypatch.setattr(Onnx, "content", lambda self, module, about: honest(self, kept, about))
    with pytest.raises(pmtl.PmtlError, match="answers differently as onnx"):
        pmtl.export_model(odd_run, tmp_path / "out", all_clients=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_an_interrupted_export_leaves_nothing(odd_run, tmp_path, monkeypatch, failure):
    honest, calls = Safetensors.content, []

    def failing(self, module, about):
        calls.append(about)
        if len(calls) == 4:
            raise failure
        return honest(self, module, about)

    monkeypatch.setattr(Safetensors, "content", failing)
    with pytest.raises((KeyboardInterrupt, pmtl.PmtlError)) as caught:
        pmtl.export_model(odd_run, tmp_path / "out", all_clients=True, to="safetensors")
    assert caught.type is KeyboardInterrupt or "The disk is full" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_client_that_diverged_is_left_out_of_all_and_refused_alone(tmp_path):
    run = runs_to_export.trained(small_federation(), "mlp", "pmtl")
    honest = run.personal_weights

    def broken(clients):
        weights = honest(clients).clone()
        weights[torch.from_numpy(clients == 3)] = torch.nan
        return weights

    run.personal_weights = broken
    done = pmtl.export_model(run, tmp_path / "all", all_clients=True, to="safetensors")
    assert list(done.left_out) == ["site-03"]
    assert "diverged" in done.left_out["site-03"]
    assert len(done.models) == 11
    with pytest.raises(pmtl.PmtlError, match="'site-03' diverged"):
        pmtl.export_model(run, tmp_path / "one", client="site-03", to="safetensors")
    assert not (tmp_path / "one").exists()


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({}, "Say which model"),
        ({"shared": True, "all_clients": True}, "--all cannot be combined"),
        ({"client": "a", "all_clients": True}, "--all cannot be combined"),
        ({"client": "nobody"}, "no client 'nobody'"),
        ({"shared": True, "to": "onx"}, "Did you mean 'onnx'"),
        ({"shared": True, "licence": "a: b\nc"}, "licence"),
    ],
)
def test_a_mistake_is_a_sentence_and_nothing_is_written(odd_run, asked, words, tmp_path):
    with pytest.raises(pmtl.PmtlError, match=words):
        pmtl.export_model(odd_run, tmp_path / "out", **asked)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_refused_and_stays(odd_run, tmp_path):
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(pmtl.PmtlError, match="exists already"):
        pmtl.export_model(odd_run, tmp_path, shared=True, to="safetensors")
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]


def test_the_shared_model_has_nothing_of_the_client_whose_scaling_it_was_read_with(tmp_path):
    data = runs_to_export.federation()
    run = runs_to_export.trained(data.bounded(Bounds(((0.0, 50.0), None, None, None))))
    assert run.scaling.means[0, 1] > 10  # A client's own, which must not get out.
    pmtl.export_model(run, tmp_path / "out", shared=True, to="safetensors")
    weights = load_file(tmp_path / "out/model.safetensors")
    assert weights["scale.mean"].tolist() == [25, 0, 0, 0]
    assert weights["scale.width"].tolist() == [25, 1, 1, 1]
    about = json.loads((tmp_path / "out/model.json").read_text())
    assert about["scaled_by_the_user"] == [f"feature {place}" for place in (1, 2, 3)]
    assert about["private_to"] is None
    named = run.shared_for("site 0")[1].state_dict()
    assert all(torch.equal(weights[f"model.{name}"], named[name]) for name in named)


@pytest.fixture(scope="module")
def production(tmp_path_factory):
    """A production run, read from its folder, with features that clients scale."""
    data, place = runs_to_export.federation(clients=12), tmp_path_factory.mktemp("production")
    Ledger.create(place / "ledger.db", data.clients).close()
    options = {"mode": "production", "ledger": place / "ledger.db", "out": place / "run"}
    pmtl.train(data.scaled(), privacy=2.0, **options)
    return pmtl.load_run(place / "run")


def test_in_production_a_shared_export_has_only_what_is_public(production, tmp_path):
    pmtl.export_model(production, tmp_path / "out", shared=True)
    plan = json.loads((production.path / "public/plan.json").read_text())
    about = json.loads((tmp_path / "out/model.json").read_text())
    public = {"task", "input_shape", "outputs", "feature_names", "pixels"}
    assert all(about[name] == plan[name] for name in public)
    assert (about["run"], about["network"]) == (plan["id"], plan["model"])
    card = (tmp_path / "out/README.md").read_text()
    assert (production.path / "public/privacy.txt").read_text().strip() in card
    assert "passed the gate" in card
    assert "worst decile" not in card
    written = b"".join(file.read_bytes() for file in (tmp_path / "out").iterdir())
    secret = production.scaling
    for values in (secret.means, secret.widths):
        for client in range(len(values)):
            assert values[client].astype(np.float32).tobytes() not in written
    assert str(production.path).encode() not in written


def test_in_production_a_shared_card_does_not_tell_that_a_client_diverged(
    production, tmp_path, monkeypatch
):
    monkeypatch.setattr(production, "facts", replace(production.facts, not_finite="It diverged."))
    pmtl.export_model(production, tmp_path / "out", shared=True, to="safetensors")
    assert "diverged" not in (tmp_path / "out/README.md").read_text()


def test_in_production_a_clients_export_is_for_its_owner_only(production, tmp_path):
    pmtl.export_model(production, tmp_path / "one", client="site 5", to="safetensors")
    pmtl.export_model(production, tmp_path / "all", all_clients=True, to="safetensors")
    for name in ("one", "all", "all/models"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o700
    for file in (tmp_path / "all").rglob("*.*"):
        assert not stat.S_IMODE(file.stat().st_mode) & 0o077, file
    card = (tmp_path / "one/README.md").read_text()
    assert "**Private to this client.**" in card
    others = [client for client in production.clients if client not in ("site 5", "site 1")]
    assert not any(other in card for other in others)
    said = (tmp_path / "one/model.safetensors").read_bytes()
    assert not any(other.encode() in said for other in others)


def test_a_clients_export_is_no_public_start(production, tmp_path):
    pmtl.export_model(production, tmp_path / "one", client="site 5", to="safetensors")
    with pytest.raises(pmtl.PmtlError, match=r"model of client 'site 5'.*private"):
        pmtl.train(small_federation(), init=tmp_path / "one/model.safetensors")


def test_a_model_that_changed_since_training_is_not_exported(tmp_path):
    data = runs_to_export.federation()
    runs_to_export.trained(data, runs_to_export.Own, "pmtl", out=tmp_path / "run")

    def other(input_shape, outputs):
        made = runs_to_export.Own(input_shape, outputs)
        made.gain.data.fill_(0.25)
        return made

    with pytest.warns(PmtlWarning, match="changed since"):
        run = pmtl.load_run(tmp_path / "run", model=other)
    with pytest.raises(pmtl.PmtlError, match="changed since this run was trained"):
        pmtl.export_model(run, tmp_path / "out", client="site 1", to="safetensors")
    same = pmtl.load_run(tmp_path / "run", model=runs_to_export.Own)
    pmtl.export_model(same, tmp_path / "out", client="site 1", to="safetensors")


def test_a_fine_tuned_model_is_the_fine_tuned_one(tmp_path):
    run = runs_to_export.trained(small_federation(), "mlp", "pmtl")
    tuned = pmtl.finetune(run, "vanilla", steps=3, lr=0.5)
    pmtl.export_model(tuned, tmp_path / "out", client="site-03", to="safetensors")
    weights = load_file(tmp_path / "out/model.safetensors")
    assert torch.equal(weights["model.1.weight"], tuned.personal("site-03")[1].weight)
    assert not torch.equal(weights["model.1.weight"], run.personal("site-03")[1].weight)


def test_a_model_of_texts_comes_with_its_rule(tmp_path):
    lines = ["user\ttext\ttag"]
    lines += [f"u{k % 4}\t{'socket ip' if k % 3 else 'typo page'} fix\t{k % 3}" for k in range(48)]
    (tmp_path / "rows.tsv").write_text("\n".join(lines) + "\n")
    data = f"{tmp_path / 'rows.tsv'}:client=user,target=tag,text=text"
    run = runs_to_export.trained(data, "logistic", "pmtl")
    pmtl.export_model(run, tmp_path / "out", client="u2", to="torch")
    rule = json.loads((tmp_path / "out/text.json").read_text())
    assert rule == json.loads(json.dumps(run.facts.text))
    about = json.loads((tmp_path / "out/model.json").read_text())
    assert about["feature_names"] is None
    assert about["input_shape"] == [10_000]  # Words are hashed unless they are public.
    card = (tmp_path / "out/README.md").read_text()
    assert "`text.json` says how a text becomes a row" in card
    assert 'pipeline_tag: "text-classification"' in card


def test_several_shared_models_need_a_client(tmp_path):
    run = runs_to_export.trained(small_federation(4), "logistic", "naive_joint")
    with pytest.raises(pmtl.PmtlError, match="different shared models"):
        pmtl.export_model(run, tmp_path / "out", shared=True, to="safetensors")
    done = pmtl.export_model(run, tmp_path / "out", shared=True, client="site-02", to="safetensors")
    assert done.private_to is None
    weights = load_file(tmp_path / "out/model.safetensors")
    assert torch.equal(weights["model.linear.bias"], run.shared_weights[2, -2:].float())


def test_a_mixture_of_shared_vectors_is_no_model_for_all(tmp_path):
    """All clients are related, so all have the same block, and each reads its own mixture."""
    omega = np.diag([1.0, 2.0, 3.0, 4.0]) + 0.1
    run = runs_to_export.trained(small_federation(4), "logistic", RelatedPMTL(omega=omega))
    assert len(set(run.facts.blocks)) == 1
    with pytest.raises(pmtl.PmtlError, match="different shared models"):
        pmtl.export_model(run, tmp_path / "out", shared=True, to="safetensors")
    with pytest.raises(pmtl.PmtlError, match="different shared models"):
        assert run.shared


def test_a_run_that_shares_nothing_has_no_shared_model(tmp_path):
    run = runs_to_export.trained(small_federation(4), "logistic", "local")
    with pytest.raises(pmtl.PmtlError, match="Nothing was shared"):
        pmtl.export_model(run, tmp_path / "out", shared=True)
