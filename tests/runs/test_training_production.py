"""Production: the system's randomness, every release charged first, nothing exact shown."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
import torch
from weights import shared

import pmtl
from pmtl.algorithms import FedAvg
from pmtl.errors import Interrupted, PmtlError
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.privacy.noise import system_source
from pmtl.privacy.release import Release
from pmtl.runs.budget import Budget
from pmtl.runs.folder import RunFolder

PLAN = {"epsilon": 2.0, "rounds": 5, "cohort": 6}


@pytest.fixture
def ledger(small, tmp_path):
    path = tmp_path / "ledger.db"
    Ledger.create(path, small.clients).close()
    return path


def produce(small, ledger, **options):
    values = {"privacy": PLAN, "local": {"steps": 1}, "mode": "production", "ledger": ledger}
    return pmtl.train(small, **{**values, **options})


def charged(ledger, kind="training"):
    with Ledger.open(ledger, write=False) as opened:
        charges = [entry for entry in opened.entries() if entry.kind == "charge"]
        return [entry.round for entry in charges if entry.values["kind"] == kind]


def test_every_release_is_charged_and_the_statement_is_of_what_was(small, ledger, tmp_path):
    run = produce(small, ledger, out=tmp_path / "run")
    assert charged(ledger) == [0, 1, 2, 3, 4]
    assert charged(ledger, "validation") == [5]
    assert run.privacy.mode == "production"
    assert 1.9 < run.privacy.epsilon <= 2.0
    assert run.privacy.population_epsilon == run.privacy.epsilon
    assert [entry["count"] for entry in run.privacy.charged] == [5, 1]
    said = str(run.privacy)
    assert "operating system" in said
    assert "seeded experiment" not in said
    second = produce(small, ledger)
    assert second.privacy.population_epsilon > 1.3 * run.privacy.population_epsilon


def test_nothing_exact_is_written_or_shown(small, ledger, tmp_path, pmtl_command):
    run = produce(small, ledger, out=tmp_path / "run")
    names = {file.name for file in (tmp_path / "run").rglob("*")}
    assert "result.json" not in names
    told = (tmp_path / "run/public/metrics.jsonl").read_text()
    lines = [json.loads(line) for line in told.splitlines()]
    assert lines[:4] == [{"round": number} for number in range(1, 5)]
    assert set(lines[4]) == {"round", "validation", "noise"}
    assert set(lines[4]["validation"]["personal"]) == {"accuracy_mean", "loss_mean"}
    assert json.loads((tmp_path / "run/private/run.json").read_text())["seed"] is None
    with pytest.raises(pmtl.PmtlError, match="withholds"):
        run.evaluate()
    refused = pmtl_command("evaluate", tmp_path / "run")
    assert refused.status == 2
    assert "withholds" in refused.err


def test_warnings_do_not_speak_of_the_rows(small, ledger):
    """How many clients have one class only is a fact about their data; δ is not."""
    lone = pmtl.FederatedData.from_arrays(
        small.x, [0] * len(small.y), [small.clients[k % 12] for k in range(len(small.y))], outputs=2
    )
    told: list[str] = []
    produce(lone, ledger, warn=told.append, privacy={**PLAN, "delta": 0.5})
    assert any("Delta is 0.5" in sentence for sentence in told)
    assert not any("class" in sentence for sentence in told)
    told.clear()
    produce(lone, ledger, warn=told.append, mode="experiment")
    assert any("only one class" in sentence for sentence in told)


def test_two_production_runs_differ_and_no_seed_is_taken(small, ledger):
    one, two = produce(small, ledger), produce(small, ledger)
    assert not torch.equal(shared(one), shared(two))
    with pytest.raises(pmtl.PmtlError, match="seed"):
        produce(small, ledger, seed=3)
    with pytest.raises(pmtl.PmtlError, match="ledger"):
        produce(small, None)
    with pytest.raises(pmtl.PmtlError, match="no mode"):
        produce(small, ledger, mode="prodution")


def test_a_missing_ledger_is_refused_and_not_made(small, tmp_path):
    with pytest.raises(pmtl.PmtlError, match="no ledger"):
        produce(small, tmp_path / "nothing.db")
    assert list(tmp_path.iterdir()) == []


def test_the_charge_is_on_disk_before_the_noise_is_drawn(small, ledger, monkeypatch):
    seen = []

    def spy(round):
        seen.append((round, charged(ledger), charged(ledger, "validation")))
        return system_source(round)

    monkeypatch.setattr("pmtl.simulation.noise_key.system_source", spy)
    produce(small, ledger)
    training = [(t, list(range(t + 1)), []) for t in range(5)]
    assert seen == [*training, (5, [0, 1, 2, 3, 4], [5])]


def test_a_run_that_would_pass_the_cap_is_refused_before_it_starts(small, ledger, tmp_path):
    with Ledger.open(ledger) as opened:
        opened.cap(1.0)
    with pytest.raises(pmtl.PmtlError, match="cannot be paid for"):
        produce(small, ledger, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert charged(ledger) == []


def test_a_round_that_would_pass_the_cap_is_not_sampled_and_the_last_model_stays(
    small, ledger, tmp_path, monkeypatch
):
    """Somebody lowers the cap while the run is under way."""
    monkeypatch.setattr(Budget, "refuse_unaffordable", lambda self: None)
    with Ledger.open(ledger) as opened:
        opened.cap(1.2)
    alike = {**PLAN, "metrics": 0.0}  # Releases that are all of one kind may be cut short.
    run = produce(small, ledger, out=tmp_path / "run", privacy=alike)
    spent = len(charged(ledger))
    assert 0 < spent < 5
    assert run.privacy.rounds == spent
    assert run.privacy.epsilon <= 1.2
    assert "cap" in run.facts.stopped
    assert run.personal("site-03") is not None
    assert pmtl.load_run(tmp_path / "run", data=small).privacy.rounds == spent


def crash(monkeypatch, where, round):
    """Die in the gate at the given round: before the charge, after it, or after the release."""
    publish = Release.publish

    def dying(self, tally, shared, *how):
        if tally.round == round and where == "before":
            raise SystemError("power cut")
        if tally.round == round and where == "charged":
            self._charge(round)
            raise SystemError("power cut")
        result = publish(self, tally, shared, *how)
        if tally.round == round:
            raise SystemError("power cut")
        return result

    monkeypatch.setattr(Release, "publish", dying)


@pytest.mark.parametrize(
    ("where", "rounds"),
    [("before", [0, 1, 2, 3, 4]), ("charged", [0, 1, 2, 2, 3]), ("released", [0, 1, 2, 2, 3])],
)
def test_a_crash_never_loses_a_charge_nor_costs_more_than_the_plan(
    where, rounds, small, ledger, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        crash(patch, where, 2)
        with pytest.raises(SystemError):
            produce(small, ledger, out=tmp_path / "run", checkpoint_seconds=0.0)
    run = pmtl.resume(tmp_path / "run", data=small)
    assert charged(ledger) == rounds
    assert run.privacy.rounds == 5
    assert run.privacy.epsilon <= 2.0


def test_an_experiment_that_is_replayed_is_charged_once(small, ledger, tmp_path, monkeypatch):
    options = {"mode": "experiment", "seed": 4, "checkpoint_seconds": 60.0}
    with monkeypatch.context() as patch:
        crash(patch, "released", 3)
        with pytest.raises(SystemError):
            produce(small, ledger, out=tmp_path / "run", **options)
    resumed = pmtl.resume(tmp_path / "run", data=small)
    assert charged(ledger) == [0, 1, 2, 3, 4]
    whole = produce(small, ledger, mode="experiment", seed=4)
    assert torch.equal(shared(resumed), shared(whole))


def test_a_checkpoint_that_was_rolled_back_is_refused(small, ledger, tmp_path, monkeypatch):
    older: list[bytes] = []
    save = RunFolder.save_round

    def keep_and_stop(self, line):
        save(self, line)
        if line["round"] == 2:
            older.append(self.checkpoint_file.read_bytes())
        if line["round"] == 4:
            raise Interrupted("enough")

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_round", keep_and_stop)
        with pytest.raises(Interrupted):
            produce(small, ledger, out=tmp_path / "run", checkpoint_seconds=0.0)
    checkpoint = tmp_path / "run/private/checkpoint.safetensors"
    newest = checkpoint.read_bytes()
    checkpoint.write_bytes(older[0])
    with pytest.raises(pmtl.PmtlError, match="rolled back"):
        pmtl.resume(tmp_path / "run", data=small)
    checkpoint.unlink()
    with pytest.raises(pmtl.PmtlError, match="rolled back"):
        pmtl.resume(tmp_path / "run", data=small)
    checkpoint.write_bytes(newest)
    assert pmtl.resume(tmp_path / "run", data=small).privacy.rounds == 5


def test_two_servers_cannot_share_a_ledger(small, ledger):
    with Ledger.open(ledger), pytest.raises(pmtl.PmtlError, match=r"[Aa]nother process"):
        produce(small, ledger)


def test_training_alone_needs_no_charge(small, ledger):
    run = produce(small, ledger, algorithm="local")
    assert charged(ledger) == []
    assert run.privacy.epsilon == 0


def test_coins_are_the_systems_and_poisson(small, ledger):
    from pmtl.privacy.plan import PrivacyPlan
    from pmtl.streams import name_keys

    plan = PrivacyPlan(small.m, 3, "poisson", 1.0, 1.0, 4000, 1e-3)
    sampler = plan.sampler(None, name_keys(small.clients))
    sizes = [len(sampler.draw(t)) for t in range(4000)]
    assert abs(sum(sizes) / 4000 - 3) < 0.15  # six standard errors
    assert len({tuple(sampler.draw(0)) for _ in range(50)}) > 10
    fixed = PrivacyPlan(small.m, 3, "fixed", 1.0, 1.0, 5, 1e-3).sampler(
        None, name_keys(small.clients)
    )
    assert {len(fixed.draw(t)) for t in range(5)} == {3}


def test_metrics_are_charged_again_after_a_crash_and_never_more_often_than_planned(
    small, ledger, tmp_path, monkeypatch
):
    """Two evaluations are planned. The first is lost to a crash, the second comes, and then there
    is none left."""
    options = {"evaluate_every": 2, "privacy": {**PLAN, "rounds": 4}, "checkpoint_seconds": 0.0}
    with monkeypatch.context() as patch:
        crash_after_metrics(patch, 2)
        with pytest.raises(SystemError):
            produce(small, ledger, out=tmp_path / "run", **options)
    run = pmtl.resume(tmp_path / "run", data=small)
    assert charged(ledger) == [0, 1, 1, 2]
    assert charged(ledger, "validation") == [2, 2]
    assert [line["round"] for line in run.released()] == [2]
    assert run.privacy.epsilon <= 2.0


def crash_after_metrics(monkeypatch, round):
    from pmtl.simulation import Simulation

    measure = Simulation.measure

    def dying(self, progress):
        measure(self, progress)
        if progress.round == round:
            raise SystemError("power cut")

    monkeypatch.setattr(Simulation, "measure", dying)


def test_the_share_for_metrics_can_be_none(small, ledger, tmp_path):
    run = produce(small, ledger, privacy={**PLAN, "metrics": 0.0}, out=tmp_path / "run")
    assert run.released() == []
    assert charged(ledger, "validation") == []
    assert run.privacy.metrics is None


def test_production_is_hardened_unless_asked_otherwise(small, ledger, tmp_path):
    run = produce(small, ledger, out=tmp_path / "run")
    assert run.privacy.hardened
    assert "drawn exactly" in " ".join(str(run.privacy).split())
    assert "floating point" not in str(run.privacy)
    plain = produce(small, ledger, privacy={**PLAN, "hardened": False})
    assert not plain.privacy.hardened
    assert "floating point" in str(plain.privacy)
    assert pmtl.load_run(tmp_path / "run", data=small).privacy == run.privacy


def test_a_hardened_experiment_can_be_repeated_and_resumed(small, tmp_path, monkeypatch):
    options = {"privacy": {**PLAN, "hardened": True}, "local": {"steps": 1}, "seed": 3}
    whole = pmtl.train(small, **options)
    with monkeypatch.context() as patch:
        crash(patch, "released", 3)
        with pytest.raises(SystemError):
            pmtl.train(small, **options, out=tmp_path / "run", checkpoint_seconds=0.0)
    assert torch.equal(shared(pmtl.resume(tmp_path / "run", data=small)), shared(whole))
    assert not torch.equal(shared(pmtl.train(small, **{**options, "seed": 4})), shared(whole))


PATIENT = {"evaluate_every": 1, "patience": 1, "privacy": {**PLAN, "rounds": 30}}


class TestPatience:
    def test_stopping_early_is_charged_as_if_it_had_not_stopped(self, small, ledger, tmp_path):
        """With so much noise on the metrics a loss is soon not the lowest."""
        run = produce(small, ledger, out=tmp_path / "run", **PATIENT)
        assert "not lower" in run.facts.stopped
        taken = run.metrics[-1]["round"]
        assert taken < 30
        assert charged(ledger) == list(range(30))
        assert len(charged(ledger, "validation")) == 30
        assert run.privacy.rounds == 30
        assert 1.9 < run.privacy.epsilon <= 2.0
        assert run.personal("site-03") is not None

    def test_without_a_ledger_the_statement_is_of_the_whole_plan(self, small):
        options = {**PATIENT, "privacy": {**PLAN, "rounds": 30, "metrics": 0.1}}
        run = pmtl.train(small, **options, local={"steps": 1}, seed=2)
        assert run.metrics[-1]["round"] < 30
        assert run.privacy.rounds == 30
        assert 1.9 < run.privacy.epsilon <= 2.0

    def test_it_is_refused_on_exact_scores(self, small, pmtl_command):
        with pytest.raises(pmtl.PmtlError, match="depends on validation rows, which are private"):
            pmtl.train(small, patience=2)
        with pytest.raises(pmtl.PmtlError, match="depends on validation rows, which are private"):
            pmtl.train(small, patience=2, privacy={"metrics": 0.1}, evaluate_every=0)
        with pytest.raises(pmtl.PmtlError, match="at least 1"):
            pmtl.train(small, patience=0, privacy={"metrics": 0.1})
        refused = pmtl_command("train", "--patience", "2")
        assert refused.status == 2
        assert "depends on validation rows, which are private" in refused.err


def test_nothing_public_says_how_many_clients_were_ever_sampled(small, ledger, tmp_path):
    """Who was drawn is a secret, and so is how many were: with a seed of 0 or 1 sampled client the
    files that everybody may read have the same words and numbers but for ids and digests."""
    seen = set()
    for number in range(6):
        path = tmp_path / f"run-{number}"
        produce(small, ledger, out=path, privacy={**PLAN, "cohort": 2, "rounds": 1, "metrics": 0.0})
        for file in ("private/run.json", "public/plan.json"):  # Not even the owner has to know.
            facts = json.loads((path / file).read_text())
            facts.pop("initialisation")
            seen.add(json.dumps([file, words_of(facts)], sort_keys=True))
    assert len(seen) == 2


def words_of(facts):
    """The facts without what is drawn anew for each run: its id, digests, spending and times."""
    numbers = {}
    for name, value in facts.items():
        if isinstance(value, dict):
            numbers[name] = words_of(value)
        elif name in ("population_epsilon", "population_filter", "id") or (
            isinstance(value, str) and len(value) >= 32
        ):
            numbers[name] = "…"
        else:
            numbers[name] = value
    return numbers


def test_a_client_that_fails_has_a_row_like_everybody_who_was_drawn(small, ledger):
    """Its absence from the store would be seen in what is saved."""
    from pmtl.models import build_model
    from pmtl.privacy.plan import PrivacyPlan
    from pmtl.simulation import LocalTraining, simulate

    plan = PrivacyPlan(12, 12, "full", 1.0, 0.1, 2, 1e-3)
    model = build_model("logistic", small.input_shape, small.outputs, small.task, 0)
    made = simulate(
        small,
        model,
        pmtl.algorithms.build_algorithm("pmtl"),
        plan,
        LocalTraining(steps=1),
        None,
        charge=lambda round: None,
    )
    train = made.sites.train_clients

    def failing(clients, *rest):
        if 5 in clients:
            raise ValueError("only with this client's data")
        return train(clients, *rest)

    made.sites.train_clients = failing
    progress = made.start()
    for _ in made.rounds(progress):
        assert progress.store.seen.tolist() == list(range(12))


def test_a_wrong_server_step_is_refused_before_anything_is_charged(small, ledger):
    @dataclass(frozen=True)
    class Wrong(FedAvg):
        def server_step(self, shared, update, memory):
            return update[:, :1], memory

    with pytest.raises(PmtlError, match="must return a billboard of shape"):
        produce(small, ledger, algorithm=Wrong())
    assert charged(ledger) == []
