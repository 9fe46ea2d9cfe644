"""Decides the algorithm and its settings from public numbers, before the first round.

Simulations and real federations use the same rules. Nothing here sees a row.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from pmtl.algorithms import Algorithm, ExactAlgorithm, Sizes
from pmtl.errors import PmtlError
from pmtl.models import FlatModel, Task
from pmtl.models.linear.last_layer import last_layer
from pmtl.models.network.rows import last_places
from pmtl.privacy.request import PrivacyRequest


def sizes_of(
    model: FlatModel,
    input_shape: tuple[int, ...],
    task: Task,
    outputs: int,
    bounded: bool = False,
    target_range: tuple[float, float] | None = None,
    public_start: bool = False,
) -> Sizes:
    """The public numbers on which an exact algorithm's settings depend; the arguments are the
    fields of `Sizes` and the shape of a row."""
    layer = last_layer(model, input_shape)
    return Sizes(
        task=task,
        outputs=outputs,
        columns=0 if layer is None else layer.columns + 1,
        linear=layer is not None,
        factor=1.0 if layer is None else layer.factor,
        bounded=bounded,
        target_range=target_range,
        weights=model.size,
        start_norm=float(model.start().double().norm()),
        public_start=public_start,
        last=last_places(model, input_shape),
        public_head=layer is not None and layer.start is not None,
    )


def resolve_algorithm(
    method: Algorithm, asked: PrivacyRequest, clients: int, sizes: Sizes
) -> Algorithm:
    """The algorithm with all settings that follow from public numbers."""
    if not isinstance(method, ExactAlgorithm):
        return method
    if asked.rounds is not None or asked.clip is not None:
        raise PmtlError(
            f"The algorithm {method.name!r} chooses the number of releases and the clip norm: "
            f"leave rounds and clip out, or use {method.name}:rounds=…."
        )
    if asked.noise is not None:
        asked.resolve(clients)  # Refuses noise that is not a number of at least 0.
        strength = math.inf if asked.noise == 0 else 2 * math.sqrt(method.releases) / asked.noise
    elif math.isinf(asked.target):
        strength = math.inf
    else:
        from pmtl.privacy.accounting.gaussian import mu_for

        checked = replace(asked, epsilon=None, noise=0.0).resolve(clients)  # δ is a probability.
        strength = clients * mu_for(asked.target, checked.delta)
    return method.resolve(sizes, strength)


#: The warning if settings made `algorithm=auto` the paper's algorithm.
WHY_PMTL = (
    "The algorithm is pmtl (the paper's Algorithm 1), because rounds, a clip or local steps were "
    "given. The default method needs none of them: leave them out. Or write --algorithm pmtl and, "
    "for a table, --scale client."
)


def auto_algorithm(asked: PrivacyRequest, local: Any, share: str | None, linear: bool) -> str:
    """The meaning of `algorithm=auto`: pooling for linear models and anchored for others, unless
    settings of Algorithm 1 were given. `local` is a `LocalTraining`."""
    if asked.rounds is not None or asked.clip is not None or local != type(local)():
        return "pmtl"
    return "pooling" if linear and share is None else "anchored"
