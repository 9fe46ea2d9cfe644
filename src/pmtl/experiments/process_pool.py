"""Several tasks at once, in processes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from typing import Any, TypeVar

import torch

from pmtl.errors import PmtlError

Task = TypeVar("Task")
Result = TypeVar("Result")


def run_tasks(
    do: Callable[[Task], Result], tasks: Sequence[Task], jobs: int
) -> Iterator[tuple[Task, Result]]:
    """Do tasks in `jobs` processes, each with a copy of `do`; yields results as they are done."""
    if jobs == 1:
        yield from ((task, do(task)) for task in tasks)
        return
    threads = max(1, torch.get_num_threads() // jobs)
    pool = ProcessPoolExecutor(
        min(jobs, len(tasks)), get_context("spawn"), initializer=_begin, initargs=(do, threads)
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
            for other in waiting:  # Tasks that are running are not cancelled.
                other.cancel()
    except BaseException:  # After Ctrl-C the user does not want to wait.
        for process in list((pool._processes or {}).values()):
            process.kill()  # Runs handle SIGTERM by ending after a round; they can be resumed.
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    if isinstance(failed, BrokenProcessPool):
        raise PmtlError(
            "A process of the experiments ended unexpectedly, perhaps for lack of memory. Finished "
            "results are kept: start again, with fewer --jobs."
        ) from failed
    if failed is not None:
        raise failed


_do_task: list[Callable[[Any], Any]] = []  #: what this process was started for


def _begin(do: Callable[[Any], Any], threads: int) -> None:
    """Prepare a process: it ends with its parent, and only the parent handles Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    torch.set_num_threads(threads)
    _do_task[:] = [do]


def _end_with_the_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _do(task: Any) -> Any:
    return _do_task[0](task)
