"""Several tasks at once, each in a process of its own."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from typing import Any, Protocol, TypeVar

import torch

from pmtl.errors import PmtlError

Result = dict[str, Any]


class Named(Protocol):
    """A task: anything hashable that has a name."""

    def name(self) -> str: ...

    def __hash__(self) -> int: ...


TaskT = TypeVar("TaskT", bound=Named)
TaskIn = TypeVar("TaskIn", bound=Named, contravariant=True)


class Worker(Protocol[TaskIn]):
    """Computes tasks and stores their results."""

    def read(self, task: TaskIn) -> Result | None:
        """The stored result, or None if the task is still to be done."""

    def do(self, task: TaskIn) -> Result:
        """Compute and store the result; `{"error": …}` if the task failed and others may go on."""


def run_tasks(
    worker: Worker[TaskT], tasks: Sequence[TaskT], jobs: int
) -> Iterator[tuple[TaskT, Result]]:
    """Do tasks in `jobs` processes, each with its own copy of the data; results come as they are
    done."""
    if jobs == 1:
        yield from ((task, worker.do(task)) for task in tasks)
        return
    threads = max(1, torch.get_num_threads() // jobs)
    pool = ProcessPoolExecutor(
        min(jobs, len(tasks)), get_context("spawn"), initializer=_begin, initargs=(worker, threads)
    )
    failed: BaseException | None = None
    try:
        waiting = {pool.submit(_do, task): task for task in tasks}
        for done in as_completed(waiting):
            if done.cancelled():
                continue
            if (error := done.exception()) is None:
                yield waiting[done], done.result()
                continue
            failed = failed or error
            for other in waiting:  # Those that run already go on to their end.
                other.cancel()
    except BaseException:  # Whoever asks to stop does not want to wait.
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    if isinstance(failed, BrokenProcessPool):
        raise PmtlError(
            "A process of the experiments ended unexpectedly, perhaps for lack of memory. What is "
            "done is kept: begin again, with fewer --jobs."
        ) from failed
    if failed is not None:
        raise failed


_worker: list[Worker[Any]] = []  #: of this process, which does nothing else


def _begin(worker: Worker[Any], threads: int) -> None:
    """Prepare a process: it ends with its parent, and only the parent handles Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    torch.set_num_threads(threads)
    _worker[:] = [worker]


def _end_with_the_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _do(task: Any) -> Result:
    return _worker[0].do(task)
