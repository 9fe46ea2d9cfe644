"""Call the functions of an algorithm that takes steps on made-up numbers, before training begins.

The functions must be pure: they return new tensors, leave their arguments unchanged and remember
nothing. A function that writes into an argument would change what the client uploads, without any
error. These checks find mistakes; code that hides what it does passes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_leaves

from pmtl.algorithms import Algorithm
from pmtl.errors import PmtlError, is_out_of_memory, place_in_code
from pmtl.models import FlatModel

#: A step size that no algorithm should reject.
_STEP_SIZE = 0.1


def check_algorithm(algorithm: Algorithm, model: FlatModel, mapped: bool) -> None:
    """Refuse an algorithm whose `start`, `begin`, `step`, `upload`, `keep` or `predict` fails,
    changes an argument, or returns something of the wrong shape. Exact algorithms are not checked.

    Args:
        algorithm: the algorithm, bound to the model's layout.
        model: the model that it trains.
        mapped: whether all these functions will be mapped over many clients (`torch.func.vmap`).
            `predict` always is.
    """
    if algorithm.exact:
        return
    weights = model.start()
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(weights.shape, generator=generator).to(weights)
    shared = _call(algorithm, "billboard_start", algorithm.billboard_start, common)
    own = _call(algorithm, "start", algorithm.start, common)
    _check_vector(algorithm, "start", own, None)
    upload, kept, predicts = _one_round(algorithm, own, shared, _call)
    size = algorithm.upload_size(0) if algorithm.overrides("upload_size") else len(shared)
    _check_vector(algorithm, "upload", upload, size if algorithm.shares else None)
    _check_vector(algorithm, "keep", kept, len(own))
    _check_vector(algorithm, "predict", predicts, len(weights))
    _check_memory(algorithm, own, shared)

    def predict(own: Tensor, shared: Tensor) -> Tensor:
        return algorithm.predict(own, shared)

    def one_round(own: Tensor, shared: Tensor) -> Tensor:
        return _one_round(algorithm, own, shared, _without_checks)[1]

    randomness = "different" if model.traits.random_forward else "error"
    for what, function in (("predict", predict), ("the algorithm", one_round))[: 1 + mapped]:
        try:
            vmap(function, randomness=randomness)(*(part.expand(2, -1) for part in (own, shared)))
        except (Exception, SystemExit) as error:  # The user's code may raise anything.
            raise PmtlError(
                f"The algorithm {algorithm.name!r} cannot be computed for many clients at once "
                f"({_text(error)}). {what.capitalize()} is mapped by torch.func.vmap: use "
                "torch.where instead of an if about a tensor, and neither .item() nor random "
                "numbers."
            ) from error


def _one_round(
    algorithm: Algorithm, own: Tensor, shared: Tensor, call: Callable[..., Any]
) -> tuple[Tensor, Tensor, Tensor]:
    """What a client uploads and keeps after two steps, and the weights it predicts with."""
    state = call(algorithm, "begin", algorithm.begin, own, shared)
    for _ in range(2):
        state = call(algorithm, "step", algorithm.step, state, shared, torch.ones_like, _STEP_SIZE)
    upload = call(algorithm, "upload", algorithm.upload, state, own, shared)
    kept = call(algorithm, "keep", algorithm.keep, state)
    return upload, kept, call(algorithm, "predict", algorithm.predict, kept, shared)


def _check_memory(algorithm: Algorithm, own: Tensor, shared: Tensor) -> None:
    """Refuse an algorithm that remembers something from one client to the next: one client's rows
    would change the uploads of others, and ε would not hold."""

    def one_round(factor: float) -> Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            parts = _one_round(algorithm, factor * own, factor * shared, _without_checks)
        return torch.cat([part.reshape(-1) for part in parts])

    before, _, after = one_round(1.0), one_round(3.0), one_round(1.0)
    if before.shape != after.shape or not _same(before, after):
        raise PmtlError(
            f"The algorithm {algorithm.name!r} remembers something from one call to the next: the "
            "same client gets another result after another client. Keep what a client needs in "
            "the state or in its own vector, and nothing in attributes or global variables."
        )


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one shape have the same values; NaN counts as equal to NaN."""
    return torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def _without_checks(
    algorithm: Algorithm, stage: str, function: Callable[..., Any], *given: Any
) -> Any:
    return function(*given)


def _call(algorithm: Algorithm, stage: str, function: Callable[..., Any], *given: Any) -> Any:
    """The result of a stage, which must be tensors. The tensors of `given` must stay unchanged."""
    tensors = [part for part in tree_leaves(given) if isinstance(part, Tensor)]
    before = [(part._version, part.clone()) for part in tensors]
    try:
        result = function(*given)
    except (Exception, SystemExit) as error:  # The user's code may raise anything.
        if is_out_of_memory(error):
            raise
        raise PmtlError(
            f"{stage} of the algorithm {algorithm.name!r} failed ({place_in_code(error)}): "
            f"{_text(error)}"
        ) from error
    for part, (version, copy) in zip(tensors, before, strict=True):
        if part._version != version or not _same(part, copy):
            raise PmtlError(
                f"{stage} of the algorithm {algorithm.name!r} changes a tensor that it was given. "
                "Functions of an algorithm must be pure: write w = w - …, and not w -= …"
            )
    if not all(isinstance(part, Tensor) for part in tree_leaves(result)):
        raise PmtlError(
            f"{stage} of the algorithm {algorithm.name!r} must return a tensor, or a tuple of "
            f"tensors, but returned {type(result).__name__}."
        )
    return result


def _check_vector(algorithm: Algorithm, stage: str, result: object, length: int | None) -> None:
    """Refuse a result that is not a vector, or not one of this length, if one is given."""
    if not isinstance(result, Tensor):
        given = "several parts"
    elif result.dim() != 1 or length not in (None, len(result)):
        given = f"shape {tuple(result.shape)}"
    elif not result.isfinite().all():
        given = "infinite or NaN values"
    else:
        return
    wanted = "one vector" if length is None else f"a tensor of shape ({length},)"
    raise PmtlError(
        f"{stage} of the algorithm {algorithm.name!r} must return {wanted}, but returned {given}."
    )


def _text(error: BaseException) -> str:
    """The first line of the error's message, and its class."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
