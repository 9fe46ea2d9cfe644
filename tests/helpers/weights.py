"""The weights that answer for the clients of a run, through what a run says in public."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor


def personal(run: Any) -> Tensor:
    """[m, P] the weights of every client's own model."""
    return _view(run, "personal")


def shared(run: Any) -> Tensor:
    """[m, P] the published weights, as every client reads them."""
    return _view(run, "shared")


def _view(run: Any, name: str) -> Tensor:
    weights: Tensor = run.views()[name](np.arange(len(run.clients)))
    return weights
