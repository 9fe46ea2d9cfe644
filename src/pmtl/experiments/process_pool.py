"""Several tasks at once, each in a process of its own."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process

import torch

from pmtl.errors import PmtlError
from pmtl.experiments.tasks import Result, Task, Work


def run_tasks(work: Work, tasks: Sequence[Task], jobs: int) -> Iterator[tuple[Task, Result]]:
    """Do tasks in so many processes at once, each with its own copy of the data; results come as
    they are done."""
    if jobs == 1:
        yield from ((task, work.do(task)) for task in tasks)
        return
    threads = max(1, torch.get_num_threads() // jobs)
    pool = ProcessPoolExecutor(
        min(jobs, len(tasks)), get_context("spawn"), initializer=_begin, initargs=(work, threads)
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
            for other in waiting:  # Those at work come to their end, and what they did is kept.
                other.cancel()
    except BaseException:  # Whoever asks to stop does not want to wait.
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    if isinstance(failed, BrokenProcessPool):
        raise PmtlError(
            "A process that was at work for the experiments ended before its time, perhaps for "
            "want of memory. What is done is kept: begin again, with fewer --jobs."
        ) from failed
    if failed is not None:
        raise failed


_mine: list[Work] = []


def _begin(work: Work, threads: int) -> None:
    """A process that does tasks: it ends with its parent, which alone hears Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    torch.set_num_threads(threads)
    _mine[:] = [work]


def _end_with_the_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _do(task: Task) -> Result:
    return _mine[0].do(task)
