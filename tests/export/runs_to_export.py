"""Small runs of every kind, really trained, from which models are exported."""

from __future__ import annotations

import io
import json
import warnings
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn

import pmtl
from pmtl.data import FederatedData
from pmtl.export.formats import KEY


class Words(nn.Module):
    """A table of vectors: rows are places in it."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.head = nn.Linear(4, outputs)

    def forward(self, x):
        return self.head(self.table(x.long()).mean(1))


class Own(nn.Module):
    """Own layers, a buffer, a frozen parameter, dropout, and one weight used twice."""

    def __init__(self, input_shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.inner = nn.Linear(input_shape[0], input_shape[0])
        self.gain = nn.Parameter(torch.full((1,), 0.5), requires_grad=False)
        self.register_buffer("shift", torch.arange(float(input_shape[0])))
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(input_shape[0], outputs)

    def forward(self, x):
        hidden = torch.tanh(self.inner(torch.tanh(self.inner(x + self.shift)))) * self.gain
        return self.head(self.drop(hidden))


def federation(
    task: str = "classification",
    shape: tuple[int, ...] = (4,),
    clients: int = 3,
    kind: str = "numbers",
    labels: tuple[str, ...] | None = None,
) -> FederatedData:
    """Eight rows a client."""
    random = np.random.default_rng(3)
    rows = 8 * clients
    x: Any = (random.normal(size=(rows, *shape)) * 5 + 20).astype(np.float32)
    if kind == "pixels":
        x = random.integers(0, 256, (rows, *shape)).astype(np.uint8)
    if kind == "places":
        x = random.integers(0, 7, (rows, *shape)).astype(np.float32)
    y: Any = random.integers(0, 3, rows)
    y[:3] = (0, 1, 2)
    if task == "multilabel":
        y = random.integers(0, 2, (rows, 3)).astype(np.uint8)
    if task == "regression":
        y = (x.reshape(rows, -1)[:, 0] * 2).astype(np.float32)
    if labels is not None:
        y = np.array(labels)[y]
    names = np.repeat([f"site {k}" for k in range(clients)], 8)
    return FederatedData.from_arrays(x, y, names)


def trained(data: FederatedData, model: Any = "auto", algorithm: str = "auto", **more: Any):
    """A run of one short round, or of pooling."""
    quick: dict[str, Any] = {"privacy": {"noise": 0.01}}
    if algorithm != "auto":
        quick = {"privacy": {"noise": 0.01, "rounds": 1}, "local": {"steps": 1}}
    return pmtl.train(data, model, algorithm, **{**quick, "evaluate_every": 0, **more})


#: name: the federation, the model and the algorithm.
RUNS: dict[str, tuple[dict[str, Any], Any, str]] = {
    "logistic": ({"labels": ("ill", "née|`x`", "well")}, "auto", "auto"),
    "linear": ({"task": "regression"}, "linear", "auto"),
    "multilabel": ({"task": "multilabel"}, "logistic", "auto"),
    "mlp": ({}, "mlp:hidden=5,layers=2", "pmtl"),
    "femnist_cnn": ({"shape": (28, 28), "kind": "pixels"}, "femnist_cnn", "pmtl"),
    "celeba_cnn": ({"shape": (3, 84, 84), "kind": "pixels"}, "celeba_cnn", "ditto"),
    "hog": ({"shape": (28, 28), "kind": "pixels"}, "hog", "pmtl"),
    "hog with uneven cells": ({"shape": (28, 28), "kind": "pixels"}, "hog:cells=5", "fedavg"),
    "own layers": ({}, Own, "pmtl"),
    "a table of vectors": ({"kind": "places"}, Words, "local"),
}


def run_of(name: str):
    """The run of this name."""
    about, model, algorithm = RUNS[name]
    return trained(federation(**about), model, algorithm)


def read_about(content: bytes, to: str) -> dict[str, Any]:
    """What a file of the format `to` says of its model."""
    if to == "onnx":
        props = onnx.load_from_string(content).metadata_props
        text = {prop.key: prop.value for prop in props}[KEY]
    elif to == "torch":
        extra: dict[str, Any] = {KEY: ""}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.export.load(io.BytesIO(content), extra_files=extra)
        text = extra[KEY]
    else:
        length = int.from_bytes(content[:8], "little")
        text = json.loads(content[8 : 8 + length])["__metadata__"][KEY]
    return dict(json.loads(text))
