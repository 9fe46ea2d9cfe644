"""Results of tasks, each computed once and stored.

`get` reads a result; if it is not stored, the task is noted as missing, and the answer is empty.
`fill` computes what is missing; then callers call `get` again. A cache tries a failed task only
once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from pmtl.errors import PmtlError
from pmtl.experiments.process_pool import run_tasks
from pmtl.progress import progress_bar

Task = TypeVar("Task")
Result = dict[str, Any]


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
