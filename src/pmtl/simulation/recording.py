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
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

#: Recording takes about as long as some hundred steps of a small network, so a shape has to have
#: been seen so often; and at most so many shapes are recorded.
OFTEN, MOST_SHAPES = 256, 16


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
    """The programs of a step, by the number of rows of its batch. They may be run by many threads
    at once, but are made by one."""

    def __init__(self) -> None:
        self._seen: Counter[int] = Counter()
        self._ready: dict[int, Callable[..., Any]] = {}
        self._failed = False

    def due(self, sizes: Iterable[int]) -> list[int]:
        """Of batches that are going to be trained, the sizes that should be recorded by now."""
        if self._failed:
            return []
        self._seen.update(sizes)
        often = [size for size, seen in self._seen.most_common() if seen >= OFTEN]
        room = MOST_SHAPES - len(self._ready)
        return [size for size in often if size not in self._ready][:room]

    def make(self, step: Callable[..., Any], state: Any, *given: Any) -> None:
        """Record a step with these arguments, which are those of `client_step`."""
        # First as it is: what a model works out once and keeps is not part of the program.
        after, _ = step(state, *given)
        try:
            program = _program(step, (state, *given))
            same = all(_same(program(now, *given), step(now, *given)) for now in (state, after))
        except Exception:  # Whatever it is that cannot be recorded: it still can be run.
            same = False
        if same:
            self._ready[len(given[3])] = program
        self._failed = not same

    def __getitem__(self, rows: int) -> Callable[..., Any] | None:
        """The program for batches of so many rows, if there is one."""
        return self._ready.get(rows)


def _same(one: Any, other: Any) -> bool:
    return all(map(torch.equal, tree_flatten(one)[0], tree_flatten(other)[0]))


def _program(step: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[..., Any]:
    *tensors, lr = arguments
    # With a step size in double precision numbers are rounded where those of Python's would be.
    graph, _, arranged = record(step, (*tensors, torch.tensor(lr, dtype=torch.float64)))
    _spell_out(graph)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of deprecation, and of what is not in this graph.
        run = torch.jit.script(graph)

    def program(*arguments: Any) -> Any:
        *tensors, lr = arguments
        leaves = tree_flatten(tensors)[0]
        return tree_unflatten(run(*leaves, torch.tensor(lr, dtype=torch.float64)), arranged)

    return program


def _spell_out(graph: GraphModule) -> None:
    """Write the graph's operations as TorchScript wants them."""
    aten = torch.ops.aten
    for node in graph.graph.nodes:
        if node.target is aten.addmm.default and not node.kwargs:
            # Into memory of its own: it would be made a product and a sum, which round differently.
            with graph.graph.inserting_before(node):
                size = list(node.meta["val"].shape)
                node.kwargs = {
                    "out": graph.graph.call_function(aten.new_empty, (node.args[1], size))
                }
        if isinstance(node.target, torch._ops.OpOverload):
            node.target = node.target.overloadpacket
    graph.recompile()
