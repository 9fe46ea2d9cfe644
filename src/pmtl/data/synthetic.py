"""The Synthetic(α, β) family: a federation whose clients are as similar as requested.

After Li et al., "Federated Optimization in Heterogeneous Networks" (FedProx, MLSys 2020) and LEAF:
client k has a linear model W_k and inputs x ~ N(v_k, Σ) with Σ_jj = j^-1.2, and a label is the
largest of W_k x + b_k. The original's models are unrelated even at α = 0. Here they are then equal:

    W_k = W_0 + √α Δ_k      v_k = √β ξ_k      with W_0, Δ_k, ξ_k standard normal (ξ_k scaled by Σ).

With several clusters, the model of cluster k mod clusters, independent of the others, replaces W_0.
Σ is scaled so that E‖x − v_k‖² = 4, which suits step sizes near 1. Numbers of rows are lognormal.
Separate random streams keep the inputs when α changes, and the first clients when there are more.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pmtl.data.disk import physical_memory
from pmtl.data.federated import FederatedData
from pmtl.errors import PmtlError

SPREAD = 0.6  #: standard deviation of the logarithm of a client's number of rows
MIN_ROWS = 5  #: smallest number of rows of a client
SCALE = 4.0  #: E‖x − v_k‖²


def synthetic(
    clients: int = 500,
    alpha: float = 0.4,
    beta: float = 0.3,
    features: int = 10,
    classes: int = 4,
    task: Literal["classification", "regression"] = "classification",
    samples: int = 20,
    noise: float = 0.5,
    clusters: int = 1,
    seed: int = 0,
    validation: float = 0.1,
    test: float = 0.2,
    scale: str | None = None,
    source: str | None = None,
) -> FederatedData:
    """Draw a federation.

    Args:
        clients: number of clients.
        alpha: how much their models differ.
        beta: how much their inputs differ.
        features: number of features of a row.
        classes: number of classes.
        task: classification or regression.
        samples: median number of rows of a client.
        noise: scale of the noise on the outputs: Gumbel for classes (0: always the largest output;
            1: a draw from the softmax), normal for regression.
        clusters: number of groups of clients; the models of different groups are independent.
        seed: seed of the federation.
        validation: fraction of a client's rows for validation.
        test: fraction of a client's rows for testing.
        scale: "client": each client standardises its features, as in `FederatedData.from_arrays`.
        source: the spec that draws the same federation again.
    """
    if task not in ("classification", "regression"):
        raise PmtlError(f"synthetic has no task {task!r}: use classification or regression.")
    _at_least(1, clients=clients, features=features, clusters=clusters)
    _at_least(2, classes=classes)
    _at_least(MIN_ROWS, samples=samples)
    _at_least(0, alpha=alpha, beta=beta, noise=noise, seed=seed)
    outputs = classes if task == "classification" else 1
    row, model = features + outputs, outputs * (features + 1)
    needed = 8 * clients * (samples * row + 2 * model)
    if needed > physical_memory():
        raise PmtlError(
            f"A synthetic federation of this size takes about {needed >> 30:,} GiB, more than "
            "this machine has: lower clients, samples, features or classes."
        )
    sizes_from, shared_from, models_from, means_from, inputs_from, noise_from, others_from = (
        np.random.Generator(np.random.Philox(child))
        for child in np.random.SeedSequence(seed).spawn(7)
    )
    with np.errstate(over="ignore", invalid="ignore"):  # `from_arrays` refuses infinite values.
        sizes = np.rint(samples * sizes_from.lognormal(0, SPREAD, clients))
        sizes = np.maximum(MIN_ROWS, sizes).astype(np.int64)
        deviations = np.arange(1, features + 1) ** -0.6
        deviations *= np.sqrt(SCALE / (deviations**2).sum())

        # The last column of a model is its intercept, whose input is the constant 1.
        shared = shared_from.standard_normal((1, outputs, features + 1))
        if clusters > 1:
            others = others_from.standard_normal((clusters - 1, outputs, features + 1))
            shared = np.concatenate([shared, others])[np.arange(clients) % clusters]
        own = models_from.standard_normal((clients, outputs, features + 1))
        models = shared + np.sqrt(alpha) * own
        means = np.sqrt(beta) * means_from.standard_normal((clients, features))
        x = inputs_from.standard_normal((int(sizes.sum()), features))
        x += np.repeat(means, sizes, axis=0)
        x *= deviations
        parts = zip(np.split(x, np.cumsum(sizes)[:-1]), models, strict=True)
        scores = np.concatenate([rows @ model[:, :-1].T + model[:, -1] for rows, model in parts])
        if task == "regression":
            scores += noise * noise_from.standard_normal(scores.shape)
            y: NDArray[Any] = scores[:, 0].astype(np.float32)
        else:
            scores += noise * noise_from.gumbel(size=scores.shape)
            y = scores.argmax(axis=1)
        x32 = x.astype(np.float32)
    return FederatedData.from_arrays(
        *(x32, y, np.repeat(np.arange(clients), sizes)),
        task=task,
        outputs=outputs,
        validation=validation,
        test=test,
        scale=scale,
        source=source,
    )


def _at_least(minimum: int, **options: float) -> None:
    for name, value in options.items():
        if not minimum <= value < float("inf"):
            raise PmtlError(
                f"The option {name} of synthetic must be at least {minimum}, but it is {value}."
            )
