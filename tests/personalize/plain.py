"""Fine-tuning as one would write it down first: one client, one step, plain autograd."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from pmtl.data import FederatedData
from pmtl.models import build_model
from pmtl.simulation import RowTensors

D, C, M = 5, 3, 6
SIZES = (4, 9, 23, 7, 30, 12)
CPU = torch.device("cpu")


def federation(task="classification", seed=2, x=None, **options):
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(M), SIZES)
    rows = rng.normal(size=(len(owner), D)).astype(np.float32) if x is None else x
    y = {
        "classification": rng.integers(0, C, len(owner)),
        "multilabel": (rng.random((len(owner), C)) < 0.4).astype(np.uint8),
        "regression": rng.normal(size=(len(owner), C)).astype(np.float32),
    }[task]
    names = [f"c{k}" for k in owner]
    return FederatedData.from_arrays(rows, y, names, task=task, outputs=C, **options)


def layers(input_shape, outputs):
    """The linear model, as a module that is not known to be linear."""
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(input_shape)), outputs))


def pieces(data, model="mlp:hidden=4"):
    """The tensors and the model, in double precision, and two sets of weights."""
    flat = build_model(model, data.input_shape, data.outputs, data.task, 1)
    flat.to(CPU, torch.float64)
    rng = torch.Generator().manual_seed(7)
    start = torch.randn(data.m, flat.size, generator=rng, dtype=torch.float64) / 2
    anchor = torch.randn(data.m, flat.size, generator=rng, dtype=torch.float64) / 2
    return RowTensors(data, CPU, torch.float64), flat, start, anchor


def answers(flat, vector, rows):
    return torch.func.functional_call(flat.module, flat.layout.cut(vector), (rows,))


def loss(task, outputs, targets):
    if task == "classification":
        return nn.functional.cross_entropy(outputs, targets)
    if task == "multilabel":
        kind = nn.functional.binary_cross_entropy_with_logits
        return kind(outputs, targets.double(), reduction="none").sum(-1).mean()
    return ((outputs - targets) ** 2).sum(-1).mean()


def divergence(task, outputs, published):
    """½[KL(p‖q) + KL(q‖p)], averaged over rows, by torch's own distributions."""
    d = torch.distributions
    if task == "classification":
        p, q = d.Categorical(logits=outputs), d.Categorical(logits=published)
    elif task == "multilabel":
        p = d.Independent(d.Bernoulli(logits=outputs), 1)
        q = d.Independent(d.Bernoulli(logits=published), 1)
    else:
        p = d.Independent(d.Normal(outputs, 1.0), 1)
        q = d.Independent(d.Normal(published, 1.0), 1)
    return (d.kl_divergence(p, q) + d.kl_divergence(q, p)).mean() / 2


def objective(name, lam, flat, task, w, published, fisher, rows, targets):
    outputs = answers(flat, w, rows)
    value = loss(task, outputs, targets)
    if name == "mean":
        return value + lam / 2 * ((w - published) ** 2).sum()
    if name == "kl":
        return value + lam * divergence(task, outputs, answers(flat, published, rows))
    if name == "ewc":
        return value + lam / 2 * (fisher * (w - published) ** 2).sum()
    return value


def tuned(name, lam, data, flat, start, anchor, fisher, index, real, lr):
    """Every client by itself, through its batches `index` [m, steps, batch] where they are real."""
    x, y = data.gather(np.arange(len(data.y)))
    x, y = torch.from_numpy(x).double(), torch.from_numpy(y)
    y = y.double() if y.is_floating_point() else y
    results = []
    for k in range(data.m):
        w = start[k].clone()
        for step in range(index.shape[1]):
            mine = torch.from_numpy(index[k, step][real[k, step]])
            if not len(mine):
                continue
            w.requires_grad_()
            published = None if anchor is None else anchor[k]
            weighed = None if fisher is None else fisher[k]
            value = objective(name, lam, flat, data.task, w, published, weighed, x[mine], y[mine])
            (slope,) = torch.autograd.grad(value, w)
            w = (w - lr * slope).detach()
        results.append(w)
    return torch.stack(results)
