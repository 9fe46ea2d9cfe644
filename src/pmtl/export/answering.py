"""A model as it leaves a run: from raw rows to predictions, and rows to try it with."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pmtl.data.scaling import LIMIT
from pmtl.models import Task, predictions, probabilities
from pmtl.models.library import Standardise

Array = NDArray[np.generic]
#: What a model answers, by the names of its outputs.
Answers = dict[str, Array]

#: The largest difference between two probabilities, or between two numbers of size 1, that counts
#: as rounding.
TOLERANCE = 1e-4


class Answering(nn.Module):
    """Rows in, answers out: the client's scaling, its model, and predictions with probabilities.

    The names of its state are `scale.…` and `model.…` in every format.
    """

    def __init__(self, module: nn.Module, task: Task) -> None:
        super().__init__()
        self.scale, self.model = split(module)
        self.task = task

    def forward(self, rows: Tensor) -> tuple[Tensor, ...]:
        outputs = self.model(rows if self.scale is None else self.scale(rows))
        prediction = predictions(self.task)(outputs)
        if self.task == "regression":
            return (prediction,)
        return prediction, probabilities(self.task)(outputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of what `forward` returns."""
        return output_names(self.task)

    @property
    def finite(self) -> bool:
        """Whether all trained weights are finite."""
        return all(bool(part.isfinite().all()) for part in self.model.parameters())

    def answers(self, rows: Array) -> Answers:
        """What the module answers, as arrays."""
        with torch.no_grad():
            values = self(torch.from_numpy(rows))
        return dict(zip(self.outputs, (value.numpy() for value in values), strict=True))


def output_names(task: Task) -> tuple[str, ...]:
    """The names of a model's answers, in their order."""
    return ("prediction",) if task == "regression" else ("prediction", "probabilities")


def split(module: nn.Module) -> tuple[Standardise | None, nn.Module]:
    """The scaling in front of a run's module, if there is one, and the module behind it."""
    if isinstance(module, nn.Sequential) and len(module) == 2:
        first, second = module
        if isinstance(first, Standardise):
            return first, second
    return None, module


def with_public_scale(module: nn.Module) -> tuple[nn.Module, list[int]]:
    """A shared model without what belongs to the client whose scaling is in front of it.

    Features with public bounds are scaled by them. The other ones have to be scaled by the client
    that uses the model. Returns the module and the places of these features in a row.
    """
    scale, model = split(module)
    if scale is None:
        return module, []
    limit = scale.get_buffer("limit")
    own = limit == LIMIT
    mean = torch.where(own, 0.0, scale.get_buffer("mean"))
    width = torch.where(own, 1.0, scale.get_buffer("width"))
    public = Standardise(mean.numpy(), width.numpy(), limit.numpy())
    return nn.Sequential(public, model).eval(), own.reshape(-1).nonzero().flatten().tolist()


def probe(module: Answering, shape: tuple[int, ...], pixels: bool) -> NDArray[np.float32]:
    """Rows to try an export with: ordinary ones, far ones and, if the model fills missing cells,
    missing ones. They are drawn from a fixed seed and from the model's own scaling."""
    random = np.random.default_rng(0)
    tables = [part.num_embeddings for part in module.modules() if isinstance(part, nn.Embedding)]
    if tables:  # Features are places in a table.
        return np.asarray(random.integers(0, min(tables), (5, *shape)), dtype=np.float32)
    if pixels:
        return np.asarray(random.uniform(0, 1, (5, *shape)), dtype=np.float32)
    far = np.array([0, 1, 1, 1, 9 if module.scale is not None else 3])
    drawn = (random.normal(size=(*shape, 5)) * far).T.reshape(5, *shape)
    rows = np.asarray(drawn, dtype=np.float32)
    if module.scale is None:
        return rows
    width = np.nan_to_num(module.scale.get_buffer("width").numpy(), posinf=1.0)
    rows = module.scale.get_buffer("mean").numpy() + width * rows
    missing = np.full((1, *shape), np.nan, dtype=np.float32)
    filled = bool(module.scale(torch.from_numpy(missing)).isfinite().all())
    return np.asarray(np.concatenate([rows, missing] if filled else [rows]), dtype=np.float32)


def difference(expected: Answers, found: Answers, task: Task) -> float:
    """The largest difference between two models' answers; infinite if they predict otherwise.

    Predictions may differ where two classes are equally probable up to `TOLERANCE`.
    """
    if any(expected[name].shape != found[name].shape for name in expected):
        return float("inf")
    if task == "regression":
        wanted, got = (one["prediction"].astype(np.float64) for one in (expected, found))
        return float((np.abs(wanted - got) / np.maximum(1.0, np.abs(wanted))).max(initial=0))
    shares = expected["probabilities"].astype(np.float64)
    if task == "classification":
        two = np.sort(shares, axis=-1)[:, -2:]
        close = two[:, -1] - two[:, 0] < TOLERANCE if shares.shape[1] > 1 else np.True_
    else:
        close = np.abs(shares - 0.5) < TOLERANCE
    if not bool(((expected["prediction"] == found["prediction"]) | close).all()):
        return float("inf")
    return float(np.abs(shares - found["probabilities"].astype(np.float64)).max(initial=0))
