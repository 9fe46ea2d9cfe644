"""Several tasks at once: what is kept, and how it ends."""

from __future__ import annotations

import math
import signal
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import pytest
from tiny import TINY

from pmtl.errors import PmtlError
from pmtl.experiments.result_cache import run_tasks
from pmtl.experiments.results import Results
from pmtl.experiments.tasks import Cell, Task, TaskRunner


def test_what_is_at_work_beside_a_failure_is_kept(results):
    several = Results(TINY, results.out / "several", device="cpu", jobs=2)
    several.curve(Cell("local", 0.0, math.inf, 0))
    several.curve(Cell("local", 0.0, math.inf, "no number"))  # Not a sentence, but a mistake.
    with pytest.raises(TypeError):
        several.fill()
    assert several.curve(Cell("local", 0.0, math.inf, 0))


def test_after_a_mistake_nothing_new_is_begun(results, monkeypatch):
    class Waiting(Future):
        def cancel(self):
            super().cancel()
            return self.set_running_or_notify_cancel()

    wrong, waiting = Future(), Waiting()
    wrong.set_exception(TypeError("no number"))
    futures = iter([wrong, waiting])

    class Pool:
        def __init__(self, *args, **kwargs):
            pass

        def submit(self, *args):
            return next(futures)

        def shutdown(self, **kwargs):
            pass

    monkeypatch.setattr("pmtl.experiments.result_cache.ProcessPoolExecutor", Pool)
    tasks = [Task("curve", Cell("local", 0.0, math.inf, seed)) for seed in (0, 1)]
    with pytest.raises(TypeError, match="no number"):
        list(run_tasks(TaskRunner(TINY, results.out / "cells", device="cpu").do, tasks, 2))
    assert waiting.cancelled()


def test_stopping_does_not_wait_for_the_workers(results, monkeypatch):
    made = []

    class Pool(ProcessPoolExecutor):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr("pmtl.experiments.result_cache.ProcessPoolExecutor", Pool)
    tasks = [Task("curve", Cell("local", 0.0, math.inf, seed)) for seed in range(4)]
    running = run_tasks(TaskRunner(TINY, results.out / "cells", device="cpu").do, tasks, 2)
    next(running)
    workers = list(made[0]._processes.values())
    running.close()  # As an interrupt would.
    # Not by SIGTERM alone, which a run answers by ending after its round. (When one worker has
    # ended, the pool itself may end the other by that signal first.)
    ends = [worker.exitcode for worker in workers]
    assert -signal.SIGKILL in ends
    assert {*ends} <= {-signal.SIGKILL, -signal.SIGTERM}


def test_a_worker_that_ends_before_its_time_is_a_sentence(results, monkeypatch):
    class Broken:
        def __init__(self, *args, **kwargs):
            pass

        def submit(self, *args):
            broken = Future()
            broken.set_exception(BrokenProcessPool("A child process terminated abruptly"))
            return broken

        def shutdown(self, **kwargs):
            pass

    monkeypatch.setattr("pmtl.experiments.result_cache.ProcessPoolExecutor", Broken)
    several = Results(TINY, results.out / "several", device="cpu", jobs=2)
    several.curve(Cell("local", 0.0, math.inf, 0))
    with pytest.raises(PmtlError, match="fewer --jobs"):
        several.fill()
