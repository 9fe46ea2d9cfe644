"""From NumPy to the training device, without waiting for what the device is busy with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(values: NDArray[Any], device: torch.device) -> Tensor:
    """The values on the device. A copy to a graphics card is staged before this returns and made
    in its turn, so that the CPU can go on at once; an ordinary `to` would wait for all work that
    was queued before."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(device, non_blocking=True)
