"""Small federations for the tests of pooling."""

from __future__ import annotations

import numpy as np

from pmtl.data import FederatedData

TASKS = [("regression", 1), ("regression", 3), ("classification", 2), ("classification", 4)]
TASKS += [("multilabel", 3)]


def federation(
    m=12,
    rows=8,
    d=3,
    seed=0,
    task="regression",
    outputs=1,
    level=0.0,
    size=1.0,
    differ=0.3,
    error=0.5,
):
    """Clients of which every second differs by `differ`; the first has two rows fewer."""
    random = np.random.default_rng(seed)
    client = np.repeat(np.arange(m), rows)[2:]
    x = random.normal(size=(len(client), d)).astype(np.float32)
    own = np.where(np.arange(m) % 2, differ, 0.1)[:, None, None]
    slopes = random.normal(size=(d, outputs)) + own * random.normal(size=(m, d, outputs))
    answers = np.einsum("nd,ndo->no", x, slopes[client]) + random.normal(size=(m, outputs))[client]
    answers += error * random.normal(size=answers.shape)
    if task == "classification":
        y = answers.argmax(1) if outputs > 2 else (answers[:, 0] > 0).astype(np.int64)
    elif task == "multilabel":
        y = (answers > 0).astype(np.float32)
    else:
        y = (level + size * answers / answers.std()).astype(np.float64)
        y = y[:, 0] if outputs == 1 else y
    names = np.array([f"site {k:03d}" for k in client])
    split = np.where(np.arange(len(client)) % 4 == 3, "test", "train")
    given = {"task": task, "outputs": None if task == "regression" else max(2, outputs)}
    return FederatedData.from_arrays(x, y, names, split, validation=0, **given)


def rows_of(data):
    """(x, y) of every client's training rows, as the page reads them."""
    found = []
    for client in range(data.m):
        mine = data.rows("train").of(client)
        x = np.concatenate([np.ones((len(mine), 1)), data.x[mine]], axis=1).astype(np.float64)
        y = data.y[mine].astype(np.float64).reshape(len(mine), -1)
        if data.task == "classification":
            y = np.eye(data.outputs)[data.y[mine]]
        found.append((x, y))
    return found


def vector(weights):
    """A matrix, intercepts first, as the layer's vector."""
    return np.concatenate([weights[1:].T.ravel(), weights[0]])
