"""Call every function of an algorithm once, on made-up numbers, before any row is read.

Whoever writes an algorithm writes pure functions: they return new tensors and leave their arguments
as they are. A function that writes into an argument would change what the client uploads; one that
returns something of another shape fails later, where the message no longer says why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_leaves

from pmtl.algorithms import Algorithm
from pmtl.errors import PmtlError
from pmtl.models import FlatModel

#: A step size that no algorithm should reject.
_STEP_SIZE = 0.1


def check_algorithm(algorithm: Algorithm, model: FlatModel, mapped: bool) -> None:
    """Refuse an algorithm that takes steps and whose functions fail, change an argument, or return
    something of the wrong shape.

    Args:
        algorithm: the algorithm, bound to the model's layout.
        model: the model that it trains.
        mapped: whether the functions will be mapped over many clients (`torch.func.vmap`).
    """
    if algorithm.exact:
        return
    common = model.start()
    shared = algorithm.billboard_start(common).reshape(-1)
    own = _call(algorithm, "start", algorithm.start, common)
    _one_round(algorithm, own, shared, model.size)
    if mapped:
        try:
            vmap(lambda own, shared: _stages(algorithm, own, shared, _unchecked))(
                own.expand(2, -1).clone(), shared.expand(2, -1).clone()
            )
        except Exception as error:  # The user's code may raise anything.
            raise PmtlError(
                f"The algorithm {algorithm.name!r} cannot be computed for many clients at once "
                f"({_text(error)}). Its functions are mapped by torch.func.vmap: use torch.where "
                "instead of an if about a tensor, and neither .item() nor random numbers. "
                "--engine debug computes one client after the other."
            ) from error


def _one_round(algorithm: Algorithm, own: Tensor, shared: Tensor, weights: int) -> None:
    """One client's round; every result must have the shape that is needed."""

    def call(stage: str, function: Callable[..., Any], *given: Any) -> Any:
        return _call(algorithm, stage, function, *given)

    upload, kept, predicts = _stages(algorithm, own, shared, call)
    lengths = [("keep", kept, len(own)), ("predict", predicts, weights)]
    if algorithm.shares and not algorithm.overrides("upload_size"):
        lengths.append(("upload", upload, len(shared)))
    for stage, result, length in lengths:
        if not isinstance(result, Tensor) or result.shape != (length,):
            given = (
                f"shape {tuple(result.shape)}" if isinstance(result, Tensor) else "several parts"
            )
            raise PmtlError(
                f"{stage} of the algorithm {algorithm.name!r} must return a tensor of shape "
                f"({length},), but returned {given}."
            )


def _stages(
    algorithm: Algorithm, own: Tensor, shared: Tensor, call: Callable[..., Any]
) -> tuple[Any, Any, Any]:
    """What a client uploads and keeps after two steps, and what it predicts with."""
    state = call("begin", algorithm.begin, own, shared)
    for _ in range(2):
        state = call("step", algorithm.step, state, shared, torch.ones_like, _STEP_SIZE)
    upload = call("upload", algorithm.upload, state, own, shared)
    kept = call("keep", algorithm.keep, state)
    return upload, kept, call("predict", algorithm.predict, kept, shared)


def _unchecked(stage: str, function: Callable[..., Any], *given: Any) -> Any:
    return function(*given)


def _call(algorithm: Algorithm, stage: str, function: Callable[..., Any], *given: Any) -> Any:
    """The result of a stage, which must be tensors, and must leave the tensors of `given` as they
    are."""
    before = [part._version for part in tree_leaves(given) if isinstance(part, Tensor)]
    try:
        result = function(*given)
    except Exception as error:  # The user's code may raise anything.
        raise PmtlError(
            f"{stage} of the algorithm {algorithm.name!r} failed ({_text(error)})."
        ) from error
    after = [part._version for part in tree_leaves(given) if isinstance(part, Tensor)]
    if before != after:
        raise PmtlError(
            f"{stage} of the algorithm {algorithm.name!r} changes a tensor that it was given, "
            "which changes what is uploaded: write w = w - …, and not w -= …"
        )
    if not all(isinstance(part, Tensor) for part in tree_leaves(result)):
        raise PmtlError(
            f"{stage} of the algorithm {algorithm.name!r} must return a tensor, or a tuple of "
            f"tensors, but returned {type(result).__name__}."
        )
    return result


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
