"""A cohort's step as machine code of its own.

The step is recorded as a list of operations (`record`), and the list is compiled. It fits one
number of clients, so callers round theirs up to one of a few (`schedule.widths`).

On a graphics card the compiled step is recorded a second time, as the launches it consists of
(`Replayed`): a small step takes longer to launch, kernel by kernel, than to compute.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map, tree_unflatten

#: No more shapes than this are compiled; a run that has more of them does the rest as it is.
MOST_SHAPES = 12


class CompiledStep:
    """Compiles a step for every shape it is called with, and runs it.

    Where that fails (no compiler, an operation that it does not know) a warning says so once, and
    all steps are run as they are. What it gives back may be overwritten by the next step.
    """

    def __init__(
        self, step: Callable[..., Any], backend: Any = "inductor", replay: bool = True
    ) -> None:
        """`replay` is for steps that draw no random numbers."""
        self._step = step
        self._backend = backend
        self._replay = replay
        self._pool: Any = None
        self._ready: dict[torch.Size, Callable[..., Any]] = {}
        self._failed = False

    def __call__(self, *arguments: Any) -> tuple[Any, Tensor]:
        """The state and the losses after a step; its arguments are the mapped ones of
        `client_step`."""
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
        replay = self._replay and tree_flatten(arguments)[0][0].is_cuda
        if replay:
            arguments = tree_map(_own, arguments)
        graph, arranged = record(self._step, arguments)
        run = torch.compile(graph, backend=self._backend, dynamic=False, fullgraph=True)
        if replay:
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            run = Replayed(run, tree_flatten(arguments)[0], self._pool)
        return lambda *parts: tree_unflatten(run(*tree_flatten(parts)[0]), arranged)


def record(step: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[GraphModule, TreeSpec]:
    """The step as a list of operations on its arguments' tensors, through derivatives and `vmap`;
    and how what it returns is arranged."""
    leaves, arranged = tree_flatten(arguments)
    answer: list[TreeSpec] = []

    def flat(*parts: Tensor) -> list[Tensor]:
        result, shape = tree_flatten(step(*tree_unflatten(list(parts), arranged)))
        answer[:] = [shape]
        return list(result)

    # Arguments that are one and the same now need not be in the next step.
    apart = [leaf.detach() for leaf in leaves]
    # Fake tensors have shapes and no contents: nothing is computed while recording.
    graph = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)(*apart)
    return graph, answer[0]


class Replayed:
    """All launches of a function on a graphics card as one, on tensors of its own.

    Arguments are copied to where they were when the launches were recorded, and results are where
    they were then.
    """

    def __init__(self, run: Callable[..., Any], places: list[Tensor], pool: Any) -> None:
        self._places = places
        beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(2):  # Compiling and choosing kernels cannot be recorded.
                run(*places)
        torch.cuda.current_stream().wait_stream(beside)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._results = run(*places)

    def __call__(self, *arguments: Tensor) -> Any:
        for place, given in zip(self._places, arguments, strict=True):
            if _repeats(place):
                place[:1].copy_(given[:1])
            else:
                place.copy_(given)
        self._graph.replay()
        return self._results


def _own(tensor: Tensor) -> Tensor:
    """A copy in memory of its own; a row that is read many times is still one row."""
    return tensor[:1].clone().expand_as(tensor) if _repeats(tensor) else tensor.contiguous().clone()


def _repeats(tensor: Tensor) -> bool:
    return tensor.dim() > 1 and len(tensor) > 1 and tensor.stride(0) == 0


def _warn(error: Exception) -> None:
    reason = str(error).strip().partition("\n")[0]
    warnings.warn(
        f"A step could not be compiled ({type(error).__name__}: {reason}): training goes on "
        "without, and more slowly. compile=False leaves it out.",
        stacklevel=3,
    )
