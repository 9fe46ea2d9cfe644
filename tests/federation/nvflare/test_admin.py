"""What the administrator is told of jobs."""

from __future__ import annotations

import pytest

from pmtl.federation.nvflare.admin import Administrator, JobState
from pmtl.federation.nvflare.policy import OUTCOME


class Session:
    """What NVFLARE's session answers about one job."""

    def __init__(self, meta, shown=None):
        self.meta, self.shown = {"job_id": "7", **meta}, shown

    def get_job_meta(self, number):
        return self.meta

    def do_app_command(self, number, command, options):
        if self.shown is None:
            raise RuntimeError("the job does not answer")
        return dict(self.shown)


RUNS = {"sentence": "Round 1 of 3 is published.", "asked": 2, "seconds": 1.5}


@pytest.mark.parametrize(
    ("session", "state"),
    [
        (Session({"status": "SUBMITTED"}), JobState("7", "waiting")),
        (Session({"status": "FINISHED:EXCEPTION"}), JobState("7", "failed")),
        (Session({"status": "RUNNING"}), JobState("7", "running")),
        (Session({"status": "RUNNING"}, RUNS), JobState("7", "running", **RUNS)),
        (
            Session({"status": "RUNNING"}, RUNS | {"outcome": {"state": "stopped"}}),
            JobState("7", "stopped", **RUNS),
        ),
        (
            Session({"status": "FINISHED:CAN_NOT_SCHEDULE", "schedule_history": ["a", "b"]}),
            JobState("7", "refused", sentence="a; b"),
        ),
        (
            Session(
                {"status": "FINISHED:COMPLETED", OUTCOME: {"state": "failed", "sentence": "s"}}
            ),
            JobState("7", "failed", sentence="s"),
        ),
    ],
)
def test_the_state_of_a_job(session, state):
    found = Administrator(session).job("7")
    assert found == state
    assert found.ended == (state.state not in ("waiting", "running"))
    assert found.to_dict()["ended"] == found.ended
    assert ("asked" in found.to_dict()) == (state.asked is not None)
