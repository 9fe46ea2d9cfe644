"""Federations of clients that have nothing to say, so that whatever a round publishes is the gate's
doing and that of the uploads under test."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pmtl.audit.canaries import Canary
from pmtl.data import FederatedData
from pmtl.models import build_model
from pmtl.privacy.plan import PrivacyPlan
from pmtl.simulation import LocalTraining, simulate

GATES = pytest.mark.parametrize("hardened", [False, True], ids=["ordinary", "hardened"])
GAMMA, SIGMA = 0.5, 0.05


def plan_for(clients=4, **changes):
    values = {"cohort": clients, "sampling": "full", "clip_norm": GAMMA, "noise_std": SIGMA}
    return PrivacyPlan(**{"clients": clients, "rounds": 6, "delta": 1e-3, **values, **changes})


def silent_federation(hardened, plan=None, features=2, dtype=torch.float64, **options):
    """Clients whose rows are zero, and who have nothing to upload unless they are canaries."""
    plan = plan or plan_for()
    m = plan.clients
    x, y = np.zeros((m, features), dtype=np.float32), np.zeros(m, dtype=np.float32)
    names, split = [f"client-{k:03d}" for k in range(m)], np.full(m, "train")
    data = FederatedData.from_arrays(x, y, names, split, task="regression", validation=0.0)
    model = build_model("linear", data.input_shape, data.outputs, data.task, 0)
    local = LocalTraining(steps=1, batch=0)
    values = {"seed": 0, "dtype": dtype, "hardened": hardened, **options}
    return simulate(data, model, Canary(size=m), plan, local, **values)
