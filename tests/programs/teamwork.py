"""What every process of a team runs in `test_team.py`, started by torch.distributed.run.

    teamwork.py FOLDER JOB

`die`: one run in FOLDER/run, in which the last process dies in the middle. `all`: go on with it,
then train every kind of run and keep what came out. `differ`: the last process differs from the
others, each time in something else; each process writes what it was told to FOLDER/told-RANK, and
to FOLDER/told-command-RANK what the command line said where the data differs.
"""

import contextlib
import io
import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

import pmtl
from pmtl.algorithms import PMTL
from pmtl.cli import app
from pmtl.privacy.sampling import SamplingScheme
from pmtl.runs import preparation
from pmtl.simulation import Simulation

SPEC = "synthetic:clients=25,samples=12"
RUNS = {
    "pmtl": {"algorithm": "pmtl"},
    "ditto": {"algorithm": "ditto"},
    "fedavg": {"algorithm": "fedavg"},
    "local": {"algorithm": "local"},
    "naive_joint": {"algorithm": "naive_joint"},
    "poisson": {"algorithm": "pmtl", "privacy": {"epsilon": 3.0, "rounds": 4, "cohort": 8}},
    "hardened": {"algorithm": "pmtl", "privacy": {"epsilon": 3.0, "rounds": 4, "hardened": True}},
    "metrics": {"algorithm": "pmtl", "privacy": {"epsilon": 3.0, "rounds": 4, "metrics": 0.2}},
    "shared part": {"algorithm": "fedavg", "model": "mlp:hidden=4", "share": "biases"},
    "subspace": {"algorithm": "pmtl", "model": "mlp:hidden=4", "share": "subspace:k=9"},
}


def options(name):
    common = {"privacy": {"epsilon": 3.0, "rounds": 4}, "local": {"steps": 3}, "evaluate_every": 2}
    return {**common, **RUNS[name]}


def dying(team):
    """Let the last process be killed in its third round. The others do not end when torchrun tells
    them to, so that they come to say what they noticed themselves."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    advance = Simulation.advance

    def advance_or_die(self, progress):
        if progress.round == 2 and team.rank == team.size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return advance(self, progress)

    Simulation.advance = advance_or_die


class Model(nn.Linear):
    """Two processes that have another `by` have another model of the same size and start."""

    by = 1.0

    def __init__(self, input_shape, outputs):
        super().__init__(input_shape[0], outputs)

    def forward(self, x):
        return super().forward(x) * self.by


class SameClients(SamplingScheme):
    """Every round has the same clients, `first` and those after it."""

    first = 0

    def draw(self, sampler, round):
        return np.arange(self.first, self.first + sampler.plan.cohort)

    def chance(self, rate):
        return 1.0


def differing(folder, team):
    """What each way to differ ended in, in this process: the sentence."""
    odd = team.rank == team.size - 1
    spec = f"{folder}/{'odd' if odd else 'even'}.npz"
    same = {"data": f"{folder}/even.npz", **options("pmtl")}
    real = {"mode": "production", "ledger": folder / "ledger.db"}
    cases = {
        "the data": {"data": spec},
        "the data, in production": {"data": spec, **real},
        "the settings": {"local": {"steps": 4 if odd else 3}},
        "the model": {"model": Model},
        "the algorithm": {"algorithm": PMTL(lam=0.4 if odd else 0.3)},
        "the sampling scheme": {"privacy": {"cohort": 4, "sampling": "__main__:SameClients"}},
        "the version of pmtl": {},
        "the version of Python or torch": {},
    }
    told = {}
    sources, versions = preparation._sources, preparation.versions
    for name, changes in cases.items():
        Model.by = 2.0 if odd and name == "the model" else 1.0
        SameClients.first = 2 if odd and name == "the sampling scheme" else 0
        if odd and name == "the version of pmtl":
            preparation._sources = lambda: "edited"
        if odd and name == "the version of Python or torch":
            preparation.versions = lambda: {**versions(), "torch": "1.0"}
        told[name] = refusal(pmtl.train, **{**same, **changes}, out=folder / "new", team=team)
        preparation._sources, preparation.versions = sources, versions
    for run in ("stopped", "stopped-real"):
        data = pmtl.load(spec)
        told[run] = refusal(pmtl.resume, folder / run, data=data, team=team)
    return told


def refusal(work, *arguments, **options):
    try:
        work(*arguments, **options)
    except pmtl.PmtlError as error:
        return str(error)
    return None


def command(folder):
    """The command line's status and its words, where the data differs."""
    odd = os.environ["RANK"] != "0"
    os.chdir(folder / ("odd" if odd else "even"))
    sys.argv = ["pmtl", "train", "--data", "d.npz", "--rounds", "2", "--out", str(folder / "new")]
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            app.main()
            return 0, said.getvalue()
        except SystemExit as end:
            return end.code, said.getvalue()


def main():
    torch.set_num_threads(1)
    folder, job = Path(sys.argv[1]), sys.argv[2]
    with pmtl.join_team() as team:
        if job == "all":
            pmtl.resume(folder / "run", team=team)
            for name in RUNS:
                run = pmtl.train(SPEC, out=folder / name, team=team, **options(name))
                if not team.leader:
                    try:
                        run.personal("0")
                    except pmtl.PmtlError as error:
                        (folder / f"refused-{team.rank}").write_text(str(error))
            ledger = folder / "ledger.db"
            pmtl.train(
                SPEC,
                out=folder / "real",
                team=team,
                mode="production",
                ledger=ledger,
                **options("pmtl"),
            )
        elif job == "die":
            dying(team)
            pmtl.train(
                SPEC, out=folder / "run", team=team, checkpoint_seconds=0.0, **options("poisson")
            )
        else:
            (folder / f"told-{team.rank}").write_text(json.dumps(differing(folder, team)))
    if job == "differ":  # The command joins the team by itself.
        (folder / f"told-command-{os.environ['RANK']}").write_text(json.dumps(command(folder)))


if __name__ == "__main__":
    main()
