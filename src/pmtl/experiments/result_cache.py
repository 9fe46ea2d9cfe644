"""Results of tasks, each computed once, several at a time in processes, and stored.

`get` reads a result; if it is not stored, the task is noted as missing, and the answer is empty.
`fill` computes what is missing; then callers call `get` again. A cache tries a failed task only
once.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from typing import Any, Generic, TypeVar

import torch

from pmtl.errors import PmtlError
from pmtl.views.progress import progress_bar

Task = TypeVar("Task")
Result = dict[str, Any]
Done = TypeVar("Done")


class ResultCache(Generic[Task]):
    """The results of tasks, which are hashable and have names (`str`)."""

    def __init__(
        self,
        read: Callable[[Task], Result | None],
        do: Callable[[Task], Result],
        title: str,
        jobs: int = 1,
        show: bool = False,
    ) -> None:
        """`read` gives the stored result of a task, or None; `do` computes and stores the result,
        which is `{"error": …}` if the task failed."""
        if jobs < 1:
            raise PmtlError(f"jobs must be at least 1, but {jobs} was given.")
        self.missing: dict[Task, None] = {}  #: tasks without a result, in order
        self.failures: dict[str, str] = {}  #: names of tasks that failed, and why
        self._known: dict[Task, Result] = {}
        self._read, self._do, self._jobs = read, do, jobs
        self._progress = (title, show)

    def get(self, task: Task) -> Result:
        """The task's result; empty if it is missing or the task failed."""
        if task not in self._known and str(task) not in self.failures:
            result = self._read(task)
            if result is None:
                self.missing[task] = None
            else:
                self._known[task] = result
        return self._known.get(task, {})

    def fill(self) -> None:
        """Compute what is missing."""
        tasks, (title, show) = list(self.missing), self._progress
        if not tasks:
            return
        with progress_bar(title, len(tasks), show=show) as bar:
            for task, result in run_tasks(self._do, tasks, self._jobs):
                if "error" in result:
                    self.failures[str(task)] = result["error"]
                else:
                    self._known[task] = result
                del self.missing[task]
                bar.advance(str(task))


def run_tasks(
    do: Callable[[Task], Done], tasks: Sequence[Task], jobs: int
) -> Iterator[tuple[Task, Done]]:
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
            "A process of the experiments ended unexpectedly. Finished results are kept. If memory "
            "was short, start again with fewer --jobs; in a script of your own, call pmtl below "
            'if __name__ == "__main__":, because every process imports the script.'
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
