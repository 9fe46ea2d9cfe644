"""What every process of a team runs in `test_team.py`, started by torch.distributed.run.

    teamwork.py FOLDER JOB

`all`: train every kind of run and keep what came out. `run`: one run in FOLDER/run, in which the
last process dies in the middle if the file FOLDER/die is there. `resume`: go on with it.
"""

import os
import signal
import sys
from pathlib import Path

import torch

import pmtl
from pmtl.simulation import Federation

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
}


def options(name):
    common = {"privacy": {"epsilon": 3.0, "rounds": 4}, "local": {"steps": 3}, "evaluate_every": 2}
    return {**common, **RUNS[name]}


def dying(folder, team):
    """Let the last process be killed in its third round."""
    advance = Federation.advance

    def advance_or_die(self, progress):
        if progress.round == 2 and team.rank == team.size - 1 and (folder / "die").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return advance(self, progress)

    Federation.advance = advance_or_die


def main():
    torch.set_num_threads(1)
    folder, job = Path(sys.argv[1]), sys.argv[2]
    with pmtl.join_team() as team:
        if job == "all":
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
        elif job == "run":
            dying(folder, team)
            pmtl.train(
                SPEC, out=folder / "run", team=team, checkpoint_seconds=0.0, **options("poisson")
            )
        else:
            pmtl.resume(folder / "run", team=team)


if __name__ == "__main__":
    main()
