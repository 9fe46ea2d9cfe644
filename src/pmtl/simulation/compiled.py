"""A cohort's step as machine code of its own.

The step is a pure function of tensors, so it is recorded once as a list of operations (through
`vmap` and the derivative, whatever Python there is in a model) and the list is compiled. It fits
one number of clients, so callers round theirs up to one of a few (`schedule.widths`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten

#: No more shapes than this are compiled; a run that has more of them does the rest as it is.
MOST_SHAPES = 12


class CompiledStep:
    """Compiles a step for every shape it is called with, and runs it.

    Where that fails (no compiler, an operation that it does not know) a warning says so once, and
    all steps are run as they are.
    """

    def __init__(self, step: Callable[..., Any], backend: Any = "inductor") -> None:
        self._step = step
        self._backend = backend
        self._ready: dict[torch.Size, Callable[..., Any]] = {}
        self._failed = False

    def __call__(self, *arguments: Any) -> tuple[Any, Tensor]:
        """The state and the losses after a step; its arguments are those of `client_step`."""
        shape = arguments[4].shape  # The mask's is [K, rows]; all other sizes never change.
        run = self._ready.get(shape)
        if run is None and not self._failed and len(self._ready) < MOST_SHAPES:
            try:
                run = self._compile(arguments)
                result: tuple[Any, Tensor] = run(*arguments)
            except Exception as error:  # A compiler may raise anything.
                self._failed, run = True, None
                _warn(getattr(error, "inner_exception", error))
            else:
                self._ready[shape] = run
                return result
        return (run or self._step)(*arguments)  # type: ignore[no-any-return]

    def _compile(self, arguments: tuple[Any, ...]) -> Callable[..., Any]:
        leaves, arranged = tree_flatten(arguments)
        answer: list[Any] = []

        def flat(*parts: Tensor) -> list[Tensor]:
            result, shape = tree_flatten(self._step(*tree_unflatten(list(parts), arranged)))
            answer[:] = [shape]
            return list(result)

        # Fake tensors have shapes and no contents: nothing is computed while recording.
        graph = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)(*leaves)
        run = torch.compile(graph, backend=self._backend, dynamic=False, fullgraph=True)
        return lambda *parts: tree_unflatten(run(*tree_flatten(parts)[0]), answer[0])


def _warn(error: Exception) -> None:
    reason = str(error).strip().partition("\n")[0]
    warnings.warn(
        f"A step could not be compiled ({type(error).__name__}: {reason}): training goes on "
        "without, and more slowly. compile=False leaves it out.",
        stacklevel=3,
    )
