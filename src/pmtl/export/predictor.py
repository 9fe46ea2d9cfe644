"""The model that is exported, from raw rows to predictions, and rows to test it with."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pmtl.data.scaling import LIMIT
from pmtl.models import Task, predictions, probabilities
from pmtl.models.library import Standardise

Array = NDArray[np.generic]
#: The answers of a model, by the names of its outputs.
Answers = dict[str, Array]

#: The largest difference between two probabilities, or between two numbers of size 1, that counts
#: as rounding.
TOLERANCE = 1e-4


class Predictor(nn.Module):
    """From rows to answers: the client's scaling, its model, and predictions with probabilities.

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
    """A shared model without the private scaling of the client in front of it.

    Features with public bounds are scaled by them, and their empty cells become the middle. The
    user of the model has to fill and scale all others. Returns the module and the places of the
    features to be scaled.
    """
    scale, model = split(module)
    if scale is None:
        return module, []
    limit = scale.get_buffer("limit")
    own = (limit == LIMIT) | limit.isinf()
    mean = torch.where(own, 0.0, scale.get_buffer("mean"))
    width = torch.where(own, 1.0, scale.get_buffer("width"))
    parts = [mean, width, limit]
    if getattr(scale, "fill", None) is not None:
        parts.append(torch.where(own, torch.nan, mean))
    public = Standardise(*(part.numpy() for part in parts))
    places = (limit == LIMIT).reshape(-1).nonzero().flatten().tolist()
    return nn.Sequential(public, model).eval(), places


def trial_rows(
    module: Predictor, shape: tuple[int, ...], pixels: bool = False, places: bool = False
) -> NDArray[np.float32]:
    """Rows to try an export with: ordinary ones, far ones and, if the model fills missing cells,
    missing ones. They are drawn from a fixed seed and from the model's own scaling. Features may be
    `pixels`, or `places` in a table."""
    random = np.random.default_rng(0)
    tables = [part.num_embeddings for part in module.modules() if isinstance(part, nn.Embedding)]
    if tables or places:
        most = min(tables, default=1)
        return np.asarray(random.integers(0, most, (5, *shape)), dtype=np.float32)
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


def finite_rows(answers: Answers) -> NDArray[np.bool_]:
    """The rows whose answers are all finite."""
    values = list(answers.values())[-1].astype(np.float64)  # Probabilities, if there are any.
    return np.asarray(np.isfinite(values).reshape(len(values), -1).all(axis=1))


def difference(expected: Answers, found: Answers, task: Task) -> float:
    """The largest difference between two models' answers; infinite if any predicted class differs.

    Predictions may differ where two classes are equally probable up to `TOLERANCE`. Rows for which
    both models answer with NaN or infinity are not compared, but some have to be finite.
    """
    if any(expected[name].shape != found[name].shape for name in expected):
        return float("inf")
    there = finite_rows(expected)
    if not there.any() or (there != finite_rows(found)).any():
        return float("inf")
    expected, found = (
        {name: values[there] for name, values in one.items()} for one in (expected, found)
    )
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
