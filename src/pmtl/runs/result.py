"""What training gives back: a model for every client, the shared one, and what they cost."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pmtl import storage as files
from pmtl.billboard import Billboard
from pmtl.data import FederatedData, Scaling, Split, load
from pmtl.data.checks import as_model_input, is_sparse, row_chunks
from pmtl.errors import PmtlError, PmtlWarning
from pmtl.models import FlatModel, build_model, predictions, probabilities
from pmtl.privacy.ledger.events import GaussianEvent
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.statement.statement import Statement, make_statement
from pmtl.runs.config import IN_MEMORY
from pmtl.runs.facts import UNDIVIDED, check_data
from pmtl.runs.folder import RunFolder
from pmtl.runs.personal import PersonalFile
from pmtl.simulation import Feed, Metrics, Weights, evaluate


class Run:
    """A finished run, in memory or read back from its folder."""

    def __init__(
        self,
        facts: dict[str, Any],
        model: FlatModel,
        personal: Weights | None,
        shared: Tensor,
        statement: Statement,
        metrics: list[dict[str, Any]],
        data: FederatedData | None = None,
        path: Path | None = None,
        scaling: Scaling | None = None,
        board: Billboard | None = None,
        key: bytes = b"",
    ) -> None:
        """`key` is the key of the digests in `facts` (`runs/folder.py`)."""
        self.facts = facts
        self.clients: tuple[str, ...] = tuple(facts["clients"])
        self.privacy = statement
        self.metrics = metrics
        self.path = path
        self._model = model
        self._weights = self._published if personal is None else personal
        self._shared = shared
        self._billboard = board or Billboard(np.asarray(facts["blocks"], dtype=np.int64))
        self._data = data
        self._scaling = scaling
        self._key = key
        self._positions = {client: i for i, client in enumerate(self.clients)}

    def personal(self, client: str) -> nn.Module:
        """The client's own model, an ordinary module in evaluation mode.

        It reads rows of features as floats (pixels between 0 and 1); the client's own scaling, if
        any, is part of it.
        """
        place = self._position(client)
        return self._module(self._weights(np.array([place]))[0], place)

    @property
    def shared(self) -> nn.Module:
        """The published model; with several clusters, see `shared_for`."""
        if not self.facts["shares"]:
            raise PmtlError(f"Nothing was shared in this run of {self.facts['algorithm']}.")
        if len(self._shared) > 1:
            raise PmtlError(
                f"This run published {len(self._shared)} models, not one: use shared_for(client)."
            )
        if self._scaling is not None:
            raise PmtlError(
                "The shared model of this run reads rows as each client scales them: use "
                "shared_for(client)."
            )
        return self._model.with_weights(self._shared[0])

    def shared_for(self, client: str) -> nn.Module:
        """The published model that the client reads."""
        place = self._position(client)
        return self._module(self._published(np.array([place]))[0], place)

    @property
    def not_finite(self) -> str | None:
        """The sentence for a run whose models are not all finite numbers, or None."""
        return self.facts.get("not_finite")

    def predict(self, client: str, x: Any) -> NDArray[Any]:
        """What the client's model answers to rows (an array or a sparse matrix): class numbers, 0/1
        per label, or numbers."""
        return self._answers(client, x, predictions(self.facts["task"]))

    def predict_proba(self, client: str, x: Any) -> NDArray[np.float32]:
        """How sure the client's model is of every class or label, `[rows, classes]`."""
        return self._answers(client, x, probabilities(self.facts["task"]))

    def _answers(self, client: str, x: Any, answer: Callable[[Tensor], Tensor]) -> NDArray[Any]:
        shape = tuple(self.facts["input_shape"])
        x = x if is_sparse(x) else np.asarray(x)
        if self.facts["pixels"] and x.dtype == np.uint8:
            x = as_model_input(x)
        if x.shape[1:] != shape:
            raise PmtlError(
                f"The model reads rows of shape {shape}, but rows of shape {x.shape[1:]} came."
            )
        module = self.personal(client).cpu().float()
        if not all(bool(part.isfinite().all()) for part in module.parameters()):
            raise PmtlError(
                f"The model of client {client!r} diverged: some of its weights are no numbers, and "
                "it answers nothing. Train again with a smaller step (--lr) or a smaller λ."
            )
        with torch.no_grad():
            if not is_sparse(x):
                return np.asarray(answer(module(torch.from_numpy(np.array(x, np.float32)))).numpy())
            # Sparse rows are made dense a few at a time.
            parts = (x[rows].toarray() for rows in row_chunks(x.shape[0], 4 * x.shape[1]))
            answers = [answer(module(torch.from_numpy(part.astype(np.float32)))) for part in parts]
        return np.asarray(torch.cat(answers).numpy())

    def evaluate(self) -> dict[str, dict[str, Metrics] | None]:
        """Metrics of the personal and the shared models on test and validation rows."""
        if self.facts["mode"] == "production":
            raise PmtlError(
                "Exact metrics are private, and this is a production run: it withholds them."
            )
        data = self.data
        device, dtype = self._shared.device, self._shared.dtype
        feed = Feed(data, device, dtype)
        splits: tuple[Split, ...] = ("test", "validation")
        return {split: evaluate(data, feed, self._model, self.views(), split) for split in splits}

    def views(self) -> dict[str, Weights]:
        """What answers: the weights of any clients' own models and, where there is one, of the
        shared model."""
        views = {"personal": self._weights}
        if self.facts["shares"]:
            views["shared"] = self._published
        return views

    def released(self) -> list[dict[str, Any]]:
        """The average metrics that passed the gate: one entry an evaluation, with the standard
        deviation of its noise; empty where metrics were exact or there were none."""
        return [
            {"round": line["round"], **line["validation"], "noise": line["noise"]}
            for line in self.metrics
            if "noise" in line
        ]

    @property
    def data(self) -> FederatedData:
        """The federation the run was trained on, read again if need be, and checked to be it."""
        if self._data is None:
            spec = self.facts["data"]
            if spec == IN_MEMORY:
                raise PmtlError(
                    f"The run at {self.path} was trained on data from a Python program: give it "
                    "again, with pmtl.load_run(path, data=…)."
                )
            self._data = load(spec, production=self.facts["mode"] == "production")
        check_data(self._data, self.facts, self._key)
        return self._data

    def _module(self, weights: Tensor, place: int) -> nn.Module:
        module = self._model.with_weights(weights)
        if self._scaling is None:
            return module
        scale = Standardise(self._scaling.means[place], self._scaling.widths[place])
        return nn.Sequential(scale.to(weights), module).eval()

    def _published(self, clients: NDArray[np.int64]) -> Tensor:
        return self._billboard.read(self._shared, clients)

    def _position(self, client: str) -> int:
        client = str(client)
        if client not in self._positions:
            raise PmtlError(
                f"There is no client {client!r} in this run; it has {len(self.clients)}, from "
                f"{self.clients[0]!r} to {self.clients[-1]!r}."
            )
        return self._positions[client]


class Standardise(nn.Module):
    """(x − mean) / width, as a client did to its rows before training."""

    def __init__(self, mean: NDArray[np.float32], width: NDArray[np.float32]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.from_numpy(np.array(mean)))
        self.register_buffer("width", torch.from_numpy(np.array(width)))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.width  # type: ignore[operator]


def load_run(path: str | Path, data: FederatedData | None = None, model: Any = None) -> Run:
    """Read a finished run; `data` and `model` only for what existed in a program alone."""
    folder = RunFolder.open(path)
    facts = folder.facts()
    if facts.get("mode") == "production" and not folder.divided:
        warnings.warn(PmtlWarning(UNDIVIDED.format(path)), stacklevel=2)
    if facts.get("state") != "complete":
        raise PmtlError(
            f"The run at {path} is not finished: continue it with `pmtl resume {path}`."
        )
    flat = rebuild_model(facts, model)
    written = facts["written"]
    published, _ = files.read_tensors(folder.shared_file, written["shared"])
    shared, blocks = published["weights"], np.asarray(facts["blocks"], dtype=np.int64)
    personal = None
    if facts["personal"]:
        personal = PersonalFile(folder.personal_file, blocks, written["personal"], folder.key)
    statement = statement_of(facts)
    flat.to(torch.device("cpu"), shared.dtype)
    return Run(
        facts,
        flat,
        personal,
        shared,
        statement,
        folder.metrics(written["metrics"]),
        data,
        folder.path,
        folder.load_scaling(written),
        Billboard.from_tensors(blocks, published),
        folder.key,
    )


def statement_of(facts: dict[str, Any]) -> Statement:
    """The statement of a finished run: of what was charged, where there is a ledger."""
    charged = facts.get("charged")
    return make_statement(
        PrivacyPlan.from_dict(facts["plan"]),
        shares=facts["shares"],
        personal=facts["personal"],
        mode=facts["mode"],
        hardened=facts["hardened"],
        metrics=metrics_plan(facts),
        charged=None if charged is None else dict(map(_charge, charged)),
        population_epsilon=facts.get("population_epsilon"),
        population_filter=facts.get("population_filter"),
        finetuned="finetuned" in facts,
        disclosed=tuple(facts.get("disclosed", ())),
        relations=facts.get("relations"),
    )


def metrics_plan(facts: dict[str, Any]) -> PrivacyPlan | None:
    """The plan of a run's average metrics, if it releases any."""
    values = facts["metrics_plan"]
    return None if values is None else PrivacyPlan.from_dict(values)


def _charge(values: dict[str, Any]) -> tuple[GaussianEvent, int]:
    event = {name: value for name, value in values.items() if name != "count"}
    return GaussianEvent.from_dict(event), values["count"]


def rebuild_model(facts: dict[str, Any], model: Any = None) -> FlatModel:
    """The run's model, from its spec or from the factory given again."""
    spec = model if model is not None else facts["model"]
    if spec == IN_MEMORY:
        raise PmtlError(
            "This run's model came from a Python program: give its factory again as model=…."
        )
    shape = tuple(facts["input_shape"])
    folder = facts.get("model_folder")
    if folder and folder not in sys.path:
        sys.path.append(folder)  # Where the user's own module was when the run began.
    begin = facts.get("initialisation", facts["seed"] or 0)
    return build_model(spec, shape, facts["outputs"], facts["task"], begin)
