"""A step as a list of operations, and the list as a program that runs without Python.

A step is a pure function of tensors, so it can be recorded once for every shape of its arguments:
through derivatives, `vmap` and whatever Python there is in a model. The client axis has the list
compiled (`compiled.py`). Threads that train a client each have it run by TorchScript's interpreter:
they share Python's lock, and between two small operations each would wait for the others, which
takes longer than the operations.

A program gives the same bits as the step it was recorded from, or is not used: which steps of a run
were programs can never be seen in its results. PyTorch calls TorchScript deprecated; where it is
gone, steps are run as they are.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

#: Recording takes about as long as some hundred steps of a small network, so a shape has to have
#: been seen so often; and at most so many shapes are recorded.
OFTEN, MOST_SHAPES = 256, 16

#: Recording changes what belongs to the whole process, and puts it back.
_ONE_AT_A_TIME = Lock()


def record(
    step: Callable[..., Any], arguments: tuple[Any, ...]
) -> tuple[GraphModule, list[Tensor], TreeSpec]:
    """The step as a function of its arguments' tensors, which are the second part of the answer;
    the third is how what it returns is arranged."""
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
    return graph, leaves, answer[0]


class Programs:
    """The programs of a step, by the number of rows of its batch."""

    def __init__(self) -> None:
        self._seen: Counter[int] = Counter()
        #: None for a size that cannot be recorded.
        self._made: dict[int, Callable[..., Any] | None] = {}

    def due(self, sizes: list[int]) -> list[int]:
        """Of batches that are going to be trained, the sizes that should be recorded by now."""
        self._seen.update(sizes)
        often = [size for size in dict.fromkeys(sizes) if self._seen[size] >= OFTEN]
        room = MOST_SHAPES - len(self._made)
        return [size for size in often if size not in self._made][:room]

    def make(self, step: Callable[..., Any], state: Any, *given: Any) -> None:
        """Record a step with these arguments, which are those of `client_step`."""
        rows = len(given[3])
        self._made[rows] = None
        # Whatever it is that cannot be recorded can still be run; and if a client's rows are to
        # blame, that is for its training to find out.
        with suppress(Exception):
            # First as it is: what a model works out once and keeps is not part of the program.
            after, _ = step(state, *given)
            with _ONE_AT_A_TIME:
                program = _program(step, (state, *given))
            if all(_same(program(now, *given), step(now, *given)) for now in (state, after)):
                self._made[rows] = program

    def __getitem__(self, rows: int) -> Callable[..., Any] | None:
        """The program for batches of so many rows, if there is one."""
        return self._made.get(rows)


def _same(one: Any, other: Any) -> bool:
    """Whether two results have the same bits: no number is as good as itself, and −0 is not 0."""
    pairs = zip(tree_flatten(one)[0], tree_flatten(other)[0], strict=True)
    return all(torch.equal(*(part.flatten().view(torch.uint8) for part in pair)) for pair in pairs)


def _program(step: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[..., Any]:
    *tensors, lr = arguments
    # With a step size in double precision numbers are rounded where those of Python's would be.
    graph, _, arranged = record(step, (*tensors, torch.tensor(lr, dtype=torch.float64)))
    for node in graph.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            node.target = node.target.overloadpacket
    graph.recompile()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of deprecation, and of what is not in this graph.
        run = torch.jit.script(graph)

    def program(*arguments: Any) -> Any:
        *tensors, lr = arguments
        leaves = tree_flatten(tensors)[0]
        # TorchScript's own optimisations change the order of sums.
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            return tree_unflatten(run(*leaves, torch.tensor(lr, dtype=torch.float64)), arranged)

    return program
