"""What the process of a real server loads: neither rows, nor what trains on them."""

from __future__ import annotations

import subprocess
import sys

import pytest

SERVER = """
import sys, threading
from pathlib import Path
from pmtl.federation.coordinator import Coordinator, Job
from pmtl.federation.messages import Message
from pmtl.federation.server_folder import ServerFolder

COLUMNS = dict(input_shape=[3], task="classification", outputs=2, labels=None, feature_names=None)

class TwoSites:
    '''Sites that join and then fall silent.'''
    sites = ("a", "b")
    def ask(self, messages, deadline, wait_for=None):
        return {site: answer.to_bytes() for site, content in messages.items()
                if (answer := self.answer(site, Message.from_bytes(content)))}
    def answer(self, site, message):
        if message.kind == "invite":
            return Message("joined", {"clients": [f"{site}/1", f"{site}/2"], "columns": COLUMNS})
        return Message("ready") if message.kind == "start" else None

config, folder = {config!r}, Path({folder!r})
job = Job.from_dict({"run": "r1", "config": config})
Coordinator(job, TwoSites(), ServerFolder(folder), threading.Event(), print).run()
print("loaded", *(name for name in sys.modules if name.startswith("pmtl.")))
"""

ABSENT = ("pmtl.data", "pmtl.client", "pmtl.engines", "pmtl.simulation", "pmtl.prediction")
#: `LocalTraining`, settings of a run, is declared in this module, which imports no other of these.
SETTINGS = {"pmtl.client", "pmtl.client.batches"}


@pytest.mark.parametrize("algorithm", ["pmtl", "pooling", "anchored"])
def test_a_server_runs_a_job_and_loads_neither_rows_nor_clients_nor_engines(tmp_path, algorithm):
    config = {
        "algorithm": algorithm,
        "model": "mlp" if algorithm == "anchored" else "logistic",
        "seed": 0,
        "privacy": {"epsilon": 8.0},
    }
    code = SERVER.replace("{config!r}", repr(config)).replace("{folder!r}", repr(str(tmp_path)))
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "The run r1 is finished." in result.stdout
    loaded = result.stdout.splitlines()[-1].split()
    assert loaded[0] == "loaded"
    assert "pmtl.server.server" in loaded
    assert not {name for name in loaded if name.startswith(ABSENT)} - SETTINGS
