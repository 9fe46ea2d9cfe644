"""Compile a cohort's step.

The step is recorded as a list of operations (`record`), and the list is compiled. It fits one
number of clients, so callers round theirs up to one of a few (`axis.widths`). On a GPU
the kernel launches of the compiled step are recorded, too (`CudaGraph`): launching the kernels of a
small step one by one takes longer than running them.
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

#: At most this many shapes are compiled; steps of further shapes run without compiling.
MOST_SHAPES = 12


class CompiledStep:
    """Compiles a step for every shape it is called with, and runs it.

    If compiling fails (no compiler, an unknown operation), it warns once and runs all steps without
    compiling. The next call may overwrite the results of this one.
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
        """The state and the losses after a `client_step` that is mapped over clients."""
        shape = arguments[4].shape  # The mask's, [K, rows]; all other sizes never change.
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
            arguments = tree_map(_copy, arguments)
        graph, structure = record(self._step, arguments)
        run = torch.compile(graph, backend=self._backend, dynamic=False, fullgraph=True)
        if replay:
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            run = CudaGraph(run, tree_flatten(arguments)[0], self._pool)
        return lambda *parts: tree_unflatten(run(*tree_flatten(parts)[0]), structure)


def record(step: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[GraphModule, TreeSpec]:
    """The step, with derivatives and `vmap` resolved, as a list of operations on the tensors of its
    arguments; and the structure of its result."""
    leaves, structure = tree_flatten(arguments)
    result_structure: list[TreeSpec] = []

    def flat(*parts: Tensor) -> list[Tensor]:
        result, shape = tree_flatten(step(*tree_unflatten(list(parts), structure)))
        result_structure[:] = [shape]
        return list(result)

    # Two arguments may be the same tensor now, but differ in the next step.
    separate = [leaf.detach() for leaf in leaves]
    # Fake tensors have shapes but no contents: recording computes nothing.
    graph = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)(*separate)
    return graph, result_structure[0]


class CudaGraph:
    """All kernel launches of a function as one launch (a CUDA graph).

    The graph reads and writes fixed memory: arguments are copied into `buffers`.
    """

    def __init__(self, run: Callable[..., Any], buffers: list[Tensor], pool: Any) -> None:
        self._buffers = buffers
        side_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            for _ in range(2):  # Compiling and choosing kernels cannot be recorded.
                run(*buffers)
        torch.cuda.current_stream().wait_stream(side_stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._results = run(*buffers)

    def __call__(self, *arguments: Tensor) -> Any:
        for buffer, given in zip(self._buffers, arguments, strict=True):
            if _is_expanded(buffer):
                buffer[:1].copy_(given[:1])
            else:
                buffer.copy_(given)
        self._graph.replay()
        return self._results


def _copy(tensor: Tensor) -> Tensor:
    """A copy; a row that is expanded to many stays one row in memory."""
    row = tensor[:1] if _is_expanded(tensor) else tensor
    return row.contiguous().clone().expand_as(tensor)


def _is_expanded(tensor: Tensor) -> bool:
    return tensor.dim() > 1 and len(tensor) > 1 and tensor.stride(0) == 0


def _warn(error: Exception) -> None:
    reason = str(error).strip().partition("\n")[0]
    warnings.warn(
        f"A step could not be compiled ({type(error).__name__}: {reason}): training goes on "
        "without compiling, more slowly. compile=False avoids the attempt.",
        stacklevel=3,
    )
