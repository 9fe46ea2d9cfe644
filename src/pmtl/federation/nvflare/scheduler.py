"""Which jobs the server runs: those of pmtl, one at a time, and only in its own process."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.job_def import JobMetaKey, RunStatus
from nvflare.apis.job_scheduler_spec import DispatchInfo, JobSchedulerSpec
from nvflare.apis.utils.job_utils import get_event_job_id

from pmtl.federation.nvflare.job import refusal
from pmtl.federation.nvflare.policy import OUTCOME, OUTCOMES


class Scheduler(JobSchedulerSpec, FLComponent):  # type: ignore[misc]
    """Takes the oldest job that has our definition.

    Sites get no part of it: NVFLARE would end the job when a site's job process crashes, and cannot
    start it at a site that comes back."""

    def __init__(self) -> None:
        super().__init__()
        self._running: set[str] = set()
        self._begun = False
        self._lock = threading.Lock()

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Note when the running job ends."""
        if event_type in {EventType.JOB_COMPLETED, EventType.JOB_ABORTED}:
            number = get_event_job_id(fl_ctx)
            self.remove_scheduled_job(number)
            _keep_outcome(number, fl_ctx)

    def schedule_job(
        self, job_manager: Any, job_candidates: list[Any], fl_ctx: Any
    ) -> tuple[Any, dict[str, Any] | None]:
        """The job to run next, if any, and that the server alone runs it."""
        if not self._begun:
            self._begun = True
            self._abandon(job_manager, fl_ctx)
        with self._lock:
            running = list(self._running)
        for number in running:  # Its process ends some seconds after its work.
            _keep_outcome(number, fl_ctx)
        for job in sorted(
            job_candidates, key=lambda j: j.meta.get(JobMetaKey.SUBMIT_TIME.value, 0)
        ):
            if reason := refusal(job_manager.get_content(job.meta, fl_ctx)):
                self._refuse(job_manager, job, reason, fl_ctx)
                continue
            with self._lock:
                if self._running:
                    return None, None
                self._running.add(job.job_id)
            self._note(job, "scheduled")
            return job, {"server": DispatchInfo("app", {}, None)}
        return None, None

    def _abandon(self, job_manager: Any, fl_ctx: Any) -> None:
        """Jobs of an earlier process of the server have ended with it."""
        for job in job_manager.get_jobs_by_status(
            [RunStatus.RUNNING, RunStatus.DISPATCHED], fl_ctx
        ):
            sentence = "The server ended while the run was under way: continue it with --resume."
            outcome = {"state": "failed", "sentence": sentence}
            job_manager.update_meta(job.job_id, {OUTCOME: outcome}, fl_ctx)
            job_manager.set_status(job.job_id, RunStatus.ABANDONED, fl_ctx)

    def _refuse(self, job_manager: Any, job: Any, reason: str, fl_ctx: Any) -> None:
        self.log_error(fl_ctx, f"Job {job.job_id} is refused: {reason}.", fire_event=False)
        self._note(job, f"refused: {reason}")
        keys = (JobMetaKey.SCHEDULE_HISTORY, JobMetaKey.SCHEDULE_COUNT)
        job_manager.refresh_meta(job, [key.value for key in keys], fl_ctx)
        job_manager.set_status(job.job_id, RunStatus.FINISHED_CANT_SCHEDULE, fl_ctx)

    @staticmethod
    def _note(job: Any, what: str) -> None:
        job.meta[JobMetaKey.SCHEDULE_HISTORY.value] = [what]
        job.meta[JobMetaKey.SCHEDULE_COUNT.value] = 1
        job.meta[JobMetaKey.LAST_SCHEDULE_TIME.value] = time.time()

    def restore_scheduled_job(self, job_id: str) -> None:
        """NVFLARE's call for a job that it restores."""
        with self._lock:
            self._running.add(job_id)

    def remove_scheduled_job(self, job_id: str) -> None:
        """NVFLARE's call for a job that has ended."""
        with self._lock:
            self._running.discard(job_id)


def _keep_outcome(number: str, fl_ctx: Any) -> None:
    """Record in the job's description how it ended, for the administrator."""
    engine = fl_ctx.get_engine()
    file = Path(engine.args.workspace) / OUTCOMES / f"{number}.json"
    if file.is_file():
        outcome = json.loads(file.read_text(encoding="utf-8"))
        engine.get_component("job_manager").update_meta(number, {OUTCOME: outcome}, fl_ctx)
