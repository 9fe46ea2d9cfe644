"""`make crash`: many runs of `killed.py`, each with kills at other instants, and what came of them.

Not a test by itself (`test_training_resume.py` runs one such campaign); its figures are in
docs/privacy.md. With PMTL_MEMORY_LIMIT=0 the clients' vectors lie on disk, and finished runs have
no checkpoint.
"""

import filecmp
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from pmtl.views.progress import progress_bar

KILLS = 12
FILES = ("metrics.jsonl", "checkpoint.safetensors", "personal.safetensors", "shared.safetensors")


def campaign(seed: int, mode: str) -> dict[str, int]:
    """One run, killed and resumed until it is done."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(__file__).with_name("killed.py")
        command = [sys.executable, str(script), folder, str(KILLS), str(seed), mode]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
        report = json.loads(done.stdout.splitlines()[-1])
        whole, killed = Path(folder, "whole"), Path(folder, "killed")
        there = [file for file in FILES if (whole / file).exists()]
        same = [filecmp.cmp(whole / file, killed / file, shallow=False) for file in there]
    totals = {f"{mode}_runs": 1, "kills": report["killed"], "in_mid_run": report["killed_mid_run"]}
    if mode == "experiment":
        once = report["charged"] == list(range(150))
        return totals | {
            "runs_with_other_bytes": int(not all(same)),
            "runs_with_a_round_not_charged_once": int(not once),
        }
    # Each round that stands was charged, replayed ones again, and never more than was planned.
    charged = report["charged"]
    kept = set(range(report["rounds"])) <= set(charged) and len(charged) <= 150
    return totals | {
        "replayed_rounds": len(charged) - len(set(charged)),
        "runs_with_a_release_not_charged": int(not kept),
        "runs_beyond_their_epsilon": int(report["population_epsilon"] > 3.0),
    }


def main() -> None:
    totals: dict[str, int] = {}
    campaigns = int(sys.argv[1])
    with progress_bar("campaigns", campaigns) as bar:
        for seed in range(campaigns):
            mode = "production" if seed % 2 else "experiment"
            for name, value in campaign(seed, mode).items():
                totals[name] = totals.get(name, 0) + value
            bar.advance()
    print(json.dumps(totals, indent=2))
    if any(count for name, count in totals.items() if name.startswith("runs_")):
        sys.exit(1)


main()
