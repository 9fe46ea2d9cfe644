"""What the administrator does over the network: submit a job, watch it, stop it."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pmtl.errors import PmtlError
from pmtl.federation.nvflare import require_nvflare
from pmtl.federation.nvflare.job import write_job
from pmtl.federation.nvflare.kits import check_certificate
from pmtl.federation.nvflare.policy import ADMIN, OUTCOME, PROGRESS, STOP, check_role

_CONNECT = 10.0  # Seconds to reach the server.
_LONGEST_PAUSE = 5.0  # Seconds between questions: the server's audit.log has a line for each.
#: What NVFLARE calls the states of a job, and what we call them.
STATES = {
    "SUBMITTED": "waiting",
    "DISPATCHED": "starting",
    "RUNNING": "running",
    "FINISHED:COMPLETED": "finished",
    "FINISHED:ABORTED": "stopped",
    "FINISHED:CAN_NOT_SCHEDULE": "refused",
}
_ACTIVE_STATES = {"waiting", "starting", "running"}


@dataclass(frozen=True)
class JobState:
    """What is known of a job."""

    job: str  #: its number
    state: str  #: one of `STATES`, or failed
    submitted: str = ""  #: the time, in ISO 8601
    duration: str = ""
    sentence: str = ""  #: its last one; public
    asked: int | None = None  #: how many requests were sent; of a job that runs
    seconds: float | None = None  #: how long it has run

    @property
    def ended(self) -> bool:
        return self.state not in _ACTIVE_STATES

    def to_dict(self) -> dict[str, Any]:
        """The state for JSON."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        return given | {"ended": self.ended}


class Administrator:
    """A session with the server."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def submit(self, job: Mapping[str, Any]) -> str:
        """Submit a job, with settings as JSON takes them, and return its number."""
        with tempfile.TemporaryDirectory() as folder, _sentences("take the job"):
            return str(self._session.submit_job(str(write_job(job, Path(folder)))))

    def status(self) -> tuple[list[str], list[JobState]]:
        """The sites that are connected, and all jobs, newest first."""
        with _sentences("show its status"):
            system = self._session.get_system_info()
            jobs = self._session.list_jobs(detailed=True)
        connected = sorted(client.name for client in system.client_info)
        found = sorted(map(self._job, jobs), key=lambda job: job.submitted)
        return connected, found[::-1]

    def job(self, number: str) -> JobState:
        """A job's state, and its progress while it runs."""
        with _sentences("show the job"):
            return self._job(self._session.get_job_meta(number))

    def stop(self, number: str, now: bool = False) -> None:
        """Stop a job after its round, or `now`; what it has published stays."""
        with _sentences("stop the job"):
            try:
                if not now:
                    self._session.do_app_command(number, STOP, None)
                    return
            except Exception:  # It does not run yet, or does not answer.
                pass
            self._session.abort_job(number)

    def wait(self, number: str) -> Iterator[JobState]:
        """A job's state again and again, until it has ended."""
        pause = 0.5
        while True:
            state = self.job(number)
            yield state
            if state.ended:
                return
            time.sleep(pause)
            pause = min(1.05 * pause, _LONGEST_PAUSE)

    def _job(self, meta: Mapping[str, Any]) -> JobState:
        status = str(meta.get("status", ""))
        state = STATES.get(status, "failed" if status.startswith("FINISHED") else status.lower())
        history = meta.get("schedule_history") or ()
        job = JobState(
            job=str(meta.get("job_id")),
            state=state,
            submitted=str(meta.get("submit_time_iso") or ""),
            duration=str(meta.get("duration") or ""),
            sentence="; ".join(map(str, history)) if state == "refused" else "",
        )
        outcome = meta.get(OUTCOME)
        if state == "running":
            with contextlib.suppress(Exception):  # It begins, or has ended meanwhile.
                shown = self._session.do_app_command(job.job, PROGRESS, None)
                outcome = shown.pop("outcome", None)
                job = replace(job, **shown)
        return replace(job, **outcome) if outcome else job


@contextlib.contextmanager
def administrator(kit: Path) -> Iterator[Administrator]:
    """A session with the server of a federation; `kit` is the administrator's."""
    require_nvflare()
    check_role(kit, "admin")
    check_certificate(kit)
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    place = json.loads((kit / "startup/fed_admin.json").read_text(encoding="utf-8"))["admin"]
    logging.getLogger("nvflare").setLevel(logging.CRITICAL)  # Errors are sentences of ours.
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        try:
            session = new_secure_session(ADMIN, str(kit.resolve()), timeout=_CONNECT)
        except Exception as error:
            raise PmtlError(
                f"The server at {place['host']}:{place['port']} does not answer ({_short(error)}). "
                "Is pmtl federation server running there, with a kit of the same federation?"
            ) from error
    try:
        yield Administrator(session)
    finally:
        with contextlib.suppress(Exception), contextlib.redirect_stdout(output):
            session.close()


@contextlib.contextmanager
def _sentences(what: str) -> Iterator[None]:
    """Errors of NVFLARE's session as sentences."""
    try:
        yield
    except PmtlError:
        raise
    except Exception as error:
        raise PmtlError(f"The server did not {what}: {_short(error)}.") from error


def _short(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:300].rstrip(".")
