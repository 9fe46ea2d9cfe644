"""Every task is computed once and stored; asked for again, its result is read.

Whoever needs results just asks (`get`). A result that is not there is noted as missing, and the
answer is empty. `fill` computes what is missing, several tasks at once if wished; then one asks
again. A task that fails is not tried again by the same cache.
"""

from __future__ import annotations

from typing import Generic

from pmtl.errors import PmtlError
from pmtl.experiments.process_pool import Result, TaskT, Worker, run_tasks
from pmtl.progress import progress_bar


class ResultCache(Generic[TaskT]):
    """The results of a worker's tasks."""

    def __init__(
        self, worker: Worker[TaskT], title: str, jobs: int = 1, show: bool = False
    ) -> None:
        """`jobs` tasks are done at once; `show` a progress bar with this `title`."""
        if jobs < 1:
            raise PmtlError(f"There is at least one job at a time, and not {jobs}.")
        self.missing: dict[TaskT, None] = {}  #: asked for and not there, in order
        self.failures: dict[str, str] = {}  #: names of tasks that failed, and why
        self._known: dict[TaskT, Result] = {}
        self._worker = worker
        self._progress = (title, show)
        self._jobs = jobs

    def get(self, task: TaskT) -> Result:
        """The task's result; empty if it is missing or the task failed."""
        if task not in self._known and task.name() not in self.failures:
            result = self._worker.read(task)
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
            for task, result in run_tasks(self._worker, tasks, self._jobs):
                if "error" in result:
                    self.failures[task.name()] = result["error"]
                else:
                    self._known[task] = result
                del self.missing[task]
                bar.advance(task.name())
