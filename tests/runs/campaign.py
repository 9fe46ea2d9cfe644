"""`make crash`: many runs of `killed.py`, each with kills at other instants, and what came of them.

Not a test by itself (`test_resume.py` runs one such campaign); its figures are in docs/privacy.md.
With PMTL_MEMORY_LIMIT=0 the clients' vectors lie on disk, and finished runs have no checkpoint.
"""

import filecmp
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from pmtl.progress import progress_bar

KILLS = 12
FILES = ("metrics.jsonl", "checkpoint.safetensors", "personal.safetensors", "shared.safetensors")


def campaign(seed: int) -> dict[str, int]:
    """One run, killed and resumed until it is done."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(__file__).with_name("killed.py")
        command = [sys.executable, str(script), folder, str(KILLS), str(seed)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
        report = json.loads(done.stdout.splitlines()[-1])
        whole, killed = Path(folder, "whole"), Path(folder, "killed")
        there = [file for file in FILES if (whole / file).exists()]
        same = [filecmp.cmp(whole / file, killed / file, shallow=False) for file in there]
    return {
        "kills": report["killed"],
        "kills_in_mid_run": report["killed_mid_run"],
        "runs": 1,
        "runs_with_other_bytes": int(not all(same)),
        "runs_with_a_round_not_charged_once": int(report["charged"] != list(range(150))),
    }


def main() -> None:
    totals: dict[str, int] = {}
    campaigns = int(sys.argv[1])
    with progress_bar("campaigns", campaigns) as bar:
        for seed in range(campaigns):
            for name, value in campaign(seed).items():
                totals[name] = totals.get(name, 0) + value
            bar.advance()
    print(json.dumps(totals, indent=2))
    if totals["runs_with_other_bytes"] or totals["runs_with_a_round_not_charged_once"]:
        sys.exit(1)


main()
