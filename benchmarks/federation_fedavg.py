"""A round of pmtl's federation beside a round of NVFLARE's own FedAvg, all on this machine.

    python benchmarks/federation_fedavg.py [--sizes 1000 1000000] [--rounds 5] [--json FILE]

Both have a server and three sites as processes of their own, with certificates and mutual TLS, and
the same numbers of float32. NVFLARE's sites add one to what they get (`NumpyFedAvgRecipe`, which
starts a process for each job at each site). Ours train an `mlp` of about that size for one step on
eight rows, with `fedavg`, and the server clips, charges, adds exact noise, publishes and writes a
checkpoint. The two take turns, so that other work on the machine hits both.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from federation import command, free_port, processes, wait_until
from measure import machine

SIZES = (1_000, 1_000_000, 5_000_000, 30_000_000)
SITES = ("site-1", "site-2", "site-3")
TASK = """\
import nvflare.client as flare

flare.init()
while flare.is_running():
    model = flare.receive()
    params = {name: value + 1 for name, value in model.params.items()}
    flare.send(flare.FLModel(params=params))
"""


def seconds_of(stamps: list[datetime]) -> dict[str, float]:
    """The median and the slowest of the times between lines of a log."""
    lasted = [(b - a).total_seconds() for a, b in pairwise(stamps)]
    return {"seconds": statistics.median(lasted), "slowest_seconds": max(lasted)}


def stamps_of(text: str, line: str) -> list[datetime]:
    found = re.findall(rf"(\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d,\d+)[^\n]*{line}", text)
    return [datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S,%f") for stamp in found]


class Theirs:
    """NVFLARE's kits, processes and job."""

    def __init__(self, folder: Path) -> None:
        from nvflare.lighter.entity import Project
        from nvflare.lighter.impl.cert import CertBuilder
        from nvflare.lighter.impl.static_file import StaticFileBuilder
        from nvflare.lighter.impl.workspace import WorkspaceBuilder
        from nvflare.lighter.provisioner import Provisioner

        self.folder, port = folder, free_port()
        folder.mkdir()
        project = Project("fedavg", "a federation of NVFLARE")
        project.set_server("localhost", "org", {"fed_learn_port": port, "admin_port": port})
        for name in SITES:
            project.add_client(name, "org", {})
        project.add_admin("admin@org.local", "org", {"role": "project_admin"})
        static = StaticFileBuilder(config_folder="config", scheme="tcp")
        with contextlib.redirect_stdout(io.StringIO()):
            made = Provisioner(str(folder), [WorkspaceBuilder(), static, CertBuilder()])
            context = made.provision(project)
        self.kits = Path(context["current_prod_dir"])

    def commands(self) -> dict[str, list[str]]:
        app, more = "nvflare.private.fed.app", ("secure_train=true", "org=org")
        lines = {
            "server": command(
                *(f"{app}.server.server_train", "-m", self.kits / "localhost"),
                *("-s", "fed_server.json", "--set", *more, "config_folder=config"),
            )
        }
        for name in SITES:
            lines[name] = command(
                *(f"{app}.client.client_train", "-m", self.kits / name, "-s", "fed_client.json"),
                *("--set", *more, f"uid={name}", "config_folder=config"),
            )
        return lines

    def connected(self) -> bool:
        logs = [self.kits / name / "log.txt" for name in SITES]
        return all(f.exists() and "Successfully registered client" in f.read_text() for f in logs)

    def job(self, size: int, rounds: int) -> dict[str, Any]:
        """One job; seconds of its rounds, and from submission to the end."""
        from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        script, start = self.folder / "task.py", self.folder / f"start-{size}.npy"
        script.write_text(TASK)
        np.save(start, np.zeros(size, dtype=np.float32))
        recipe = NumpyFedAvgRecipe(
            name=f"fedavg-{size}", initial_ckpt=str(start), min_clients=len(SITES),
            num_rounds=rounds + 1, train_script=str(script),
        )  # fmt: skip
        with contextlib.redirect_stdout(io.StringIO()):
            recipe.export(str(self.folder / f"job-{size}"))
            session = new_secure_session("admin@org.local", str(self.kits / "admin@org.local"))
            began = time.monotonic()
            place = self.folder / f"job-{size}"
            number = session.submit_job(str(place / f"fedavg-{size}"))
            outcome = session.monitor_job(number, timeout=3600, poll_interval=0.5)
            whole = time.monotonic() - began
            session.close()
        text = (self.folder / "server.out").read_text(errors="replace")
        title = r"(?:Round \d+ started|Finished FedAvg)\."
        stamps = stamps_of(text, rf"{number}[^\n]*\n[-=]+\n +{title}")
        assert len(stamps) == rounds + 2, "the log has other lines"
        return {
            "who": "NVFLARE's FedAvg",
            "parameters": size,
            "rounds": rounds + 1,
            "outcome": str(outcome),
            "whole_seconds": whole,
            **seconds_of(stamps),
        }


class Ours:
    """The same with pmtl."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.kits = folder, folder / "kits"
        folder.mkdir()
        named = [part for name in SITES for part in ("--site", name)]
        place = f"localhost:{free_port()}"
        line = command("pmtl", "federation", "provision", "--server", place, *named)
        subprocess.run([*line, "--out", str(self.kits)], check=True, stdout=subprocess.DEVNULL)
        for number, name in enumerate(SITES):
            rng = np.random.default_rng(number)
            rows = [
                f"c,{','.join(f'{v:.3f}' for v in rng.normal(size=3))},{i % 2}" for i in range(8)
            ]
            text = "\n".join(["client,x0,x1,x2,target", *rows]) + "\n"
            (folder / f"{name}.csv").write_text(text)
        (folder / "limits.toml").write_text("[limits]\nepsilon = 1000\n")

    def commands(self) -> dict[str, list[str]]:
        lines = {"server": command("pmtl", "federation", "server", self.kits / "server")}
        for name in SITES:
            data = f"{self.folder / name}.csv:validation=0,test=0"
            reading = ("--client-column", "client", "--target", "target")
            lines[name] = command(
                *("pmtl", "federation", "site", self.kits / name, "--data", data, *reading),
                *("--limits", self.folder / "limits.toml", "--one-client"),
            )
        return lines

    def connected(self) -> bool:
        logs = [self.kits / name / "log.txt" for name in SITES]
        return all(f.exists() and "is connected" in f.read_text() for f in logs)

    def job(self, size: int, rounds: int) -> dict[str, Any]:
        hidden = max(1, round((size - 2) / 6))  # 3 features, 2 classes: 6 numbers for each unit.
        settings = ("--algorithm", "fedavg", "--model", f"mlp:hidden={hidden}", "--epsilon", 8)
        settings += ("--rounds", rounds + 1, "--steps", 1, "--batch", 8, "--name", f"run-{size}")
        line = command("pmtl", "federation", "run", self.kits / "admin", *settings, "--json")
        began = time.monotonic()
        done = subprocess.run(line, check=True, capture_output=True, text=True, timeout=3600)
        whole = time.monotonic() - began
        log = (self.kits / "server/runs.log").read_text().split(f"take part in run run-{size}")[1]
        return {
            "who": "pmtl",
            "parameters": 6 * hidden + 2,
            "rounds": rounds + 1,
            "outcome": json.loads(done.stdout)["state"],
            "whole_seconds": whole,
            **seconds_of(stamps_of(log, r"Round \d+ of \d+ is published")),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="*", default=list(SIZES))
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    results: dict[str, Any] = {"machine": machine(torch.device("cpu")), "sites": len(SITES)}
    results["rounds"] = []
    with tempfile.TemporaryDirectory() as folder:
        both = [kind(Path(folder) / kind.__name__) for kind in (Theirs, Ours)]
        with ExitStack() as stack:
            for made in both:
                stack.enter_context(processes(made.commands(), made.folder))
                wait_until(made.connected, "the sites")
            for size in asked.sizes:
                for made in both:
                    results["rounds"].append(made.job(size, asked.rounds))
                    print(json.dumps(results["rounds"][-1]), file=sys.stderr, flush=True)
                    if asked.json:  # What was measured stays if the rest takes too long.
                        asked.json.write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
