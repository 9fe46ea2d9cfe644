"""Train in production with umask 0, and look at every file before each operation on files.

    watched.py FOLDER

Prints what others could have read of the private files, and how often it looked. A program of its
own, because an audit hook cannot be taken away again. (`test_folder_parts.py` runs it.)
"""

import json
import os
import stat
import sys
from pathlib import Path

import torch

import pmtl
from pmtl.errors import Interrupted
from pmtl.privacy.ledger.ledger import Ledger
from pmtl.runs.folder import RunFolder

SPEC = "synthetic:clients=12,samples=8"
EVENTS = ("open", "os.chmod", "os.mkdir", "os.rename", "os.remove")


def main():
    torch.set_num_threads(1)
    root = Path(sys.argv[1])
    os.umask(0)
    Ledger.create(root / "ledger.db", pmtl.load(SPEC).clients).close()
    seen, looks, busy = set(), 0, False

    def look():
        """Whatever is in a private folder, and the folder itself, must be its owner's alone."""
        for folder, _, files in os.walk(root):
            for path in (folder, *(f"{folder}/{file}" for file in files)):
                if "/private" in path and stat.S_IMODE(os.lstat(path).st_mode) & 0o077:
                    seen.add(path)

    def hook(event, arguments):
        nonlocal looks, busy
        if event in EVENTS and not busy:
            busy = True
            looks += 1
            look()
            if event == "os.chmod" and "/private" in str(arguments[0]):
                seen.add(f"chmod {arguments[0]}")
            busy = False

    sys.addaudithook(hook)
    save = RunFolder.save_round

    def save_and_stop(self, line):
        save(self, line)
        if line["round"] == 2:
            raise Interrupted("enough")

    RunFolder.save_round = save_and_stop
    options = {"privacy": {"epsilon": 2.0, "rounds": 4}, "local": {"steps": 1}}
    run = root / "run"
    try:
        pmtl.train(
            SPEC,
            mode="production",
            ledger=root / "ledger.db",
            out=run,
            checkpoint_seconds=0.0,
            **options,
        )
    except Interrupted:
        RunFolder.save_round = save
    done = pmtl.resume(run)
    pmtl.finetune(done, "vanilla", steps=1, out=run / "private/finetuned/x")
    look()
    print(json.dumps({"seen": sorted(seen), "looks": looks}))


main()
