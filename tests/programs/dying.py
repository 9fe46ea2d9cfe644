"""Train in production and die at one exact instant, by kill −9; then go on. Once for each instant.

Run by `test_failure_cases_runs.py` as a program of its own: it imports torch once and forks for
every life.
"""

import json
import os
import signal
import sys
from pathlib import Path

import safetensors.torch
import torch

import pmtl
from pmtl import storage as files
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.privacy.release import Release
from pmtl.runs.budget import Budget
from pmtl.runs.folder import RunFolder

SPEC = "synthetic:clients=12,samples=8"
ROUND = 2
OPTIONS = {
    "privacy": {"epsilon": 2.0, "rounds": 4, "metrics": 0.0},
    "local": {"steps": 1},
    "mode": "production",
    "checkpoint_seconds": 0.0,
}


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def after_charge_before_release():
    charge = Budget.charge

    def charge_and_die(self, round, kind="training"):
        charge(self, round, kind)
        if round == ROUND:
            die()

    Budget.charge = charge_and_die


def after_release_before_checkpoint():
    publish = Release.publish

    def publish_and_die(self, tally, shared, *how):
        after = publish(self, tally, shared, *how)
        if tally.round == ROUND:
            die()
        return after

    Release.publish = publish_and_die


def mid_checkpoint():
    save = safetensors.torch.save_file

    def save_half_and_die(tensors, path, metadata):
        save(tensors, path, metadata)
        if json.loads(metadata["pmtl"])["round"] == ROUND:
            os.truncate(path, path.stat().st_size // 2)
            die()

    safetensors.torch.save_file = save_half_and_die


def after_checkpoint_before_its_mark():
    saved = Budget.saved

    def die_or_mark(self, round, digest):
        if round == ROUND:
            die()
        saved(self, round, digest)

    Budget.saved = die_or_mark


def life(work):
    """Run `work` in a child; the signal it died of, or 0."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status <= 0, status
    return -status


def charged(ledger):
    with Ledger.open(ledger, write=False) as opened:
        opened.verify()
        return [round for run in opened.runs() for round in opened.charged(run)]


def main():
    torch.set_num_threads(1)
    pmtl.train(SPEC, privacy={"epsilon": 3.0, "rounds": 1})  # Imported and tried before any fork.

    report = {}
    instants = (
        after_charge_before_release,
        after_release_before_checkpoint,
        mid_checkpoint,
        after_checkpoint_before_its_mark,
    )
    for instant in instants:
        out = Path(sys.argv[1]) / instant.__name__
        ledger = out.with_suffix(".db")
        Ledger.create(ledger, pmtl.load(SPEC).clients).close()

        def begin(instant=instant, out=out, ledger=ledger):
            instant()
            pmtl.train(SPEC, out=out, ledger=ledger, **OPTIONS)

        told = {"died_of": life(begin), "charged_at_death": charged(ledger)}
        folder = RunFolder(out)
        told["checkpoint"] = files.read_tensors(folder.checkpoint_file, key=folder.key)[1]["round"]
        told["left_behind"] = [file.name for file in out.rglob("*") if "partial" in file.name]
        told["resumed"] = life(lambda out=out: pmtl.resume(out))
        told["charged"] = charged(ledger)
        told["epsilon"] = json.loads((out / "public/privacy.json").read_text())["epsilon"]
        report[instant.__name__] = told
    print(json.dumps(report))


main()
