"""The server's job process: NVFLARE calls `control_flow`, which runs the coordinator."""

from __future__ import annotations

import json
import logging
import threading
import time
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.impl.controller import Controller

from pmtl.errors import PmtlError
from pmtl.federation.nvflare.cells import CellTransport
from pmtl.federation.nvflare.echo import run_echo
from pmtl.federation.nvflare.job import SETTINGS, read_job
from pmtl.federation.nvflare.policy import site_names

PROGRESS = "pmtl_progress"  #: the administrator's question for a job's progress
PROGRESS_FILE = "progress.json"  #: in the run's folder; what it has is public
_log = logging.getLogger(__name__)


class PmtlController(Controller):  # type: ignore[misc]
    """The one class that a job may name."""

    def __init__(self) -> None:
        super().__init__()
        self._folder: Path | None = None
        self._transport: CellTransport | None = None
        self._began = time.monotonic()

    def start_controller(self, fl_ctx: Any) -> None:
        """Answer the administrator's questions.

        Args:
            fl_ctx: NVFLARE's context.
        """
        fl_ctx.get_engine().register_app_command(PROGRESS, self._progress)

    def stop_controller(self, fl_ctx: Any) -> None:
        """End what waits for sites.

        Args:
            fl_ctx: NVFLARE's context.
        """
        if self._transport is not None:
            self._transport.close()

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        """Run the job; an error is a sentence in the server's log and in the run's folder.

        Args:
            abort_signal: whether the job is to stop.
            fl_ctx: NVFLARE's context.
        """
        engine, workspace = fl_ctx.get_engine(), fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
        kit, job_id = Path(workspace.get_root_dir()), fl_ctx.get_job_id()
        job = read_job(Path(workspace.get_app_config_dir(job_id)) / SETTINGS)
        self._folder = kit / "runs" / job["name"]
        self._folder.parent.mkdir(mode=0o700, exist_ok=True)
        ended, stop = threading.Event(), threading.Event()

        def watch() -> None:
            while not ended.wait(0.2):
                if abort_signal.triggered:
                    stop.set()
                    return

        threading.Thread(target=watch, daemon=True).start()

        def registered() -> frozenset[str]:
            clients = engine._retrieve_clients_data(job_id) or {}
            return frozenset(client.name for client in clients.values())

        cell = engine.get_cell() or engine.server.cell
        self._transport = CellTransport(cell, site_names(kit), registered, stop)
        outcome: dict[str, Any] = {"state": "finished"}
        try:
            if "echo" in job:
                run_echo(job, self._transport, self._folder, stop)
            else:
                from pmtl.federation.coordinator import run_job

                run_job(job, self._transport, self._folder, stop)
            if stop.is_set():
                outcome = {"state": "stopped"}
        except PmtlError as error:
            _log.error("The run ended with an error: %s", error)
            outcome = {"state": "failed", "error": str(error)}
            raise
        except Exception:
            outcome = {"state": "failed", "error": "An unexpected error; see the server's log."}
            raise
        finally:
            ended.set()
            self._transport.close()
            _write_outcome(kit, job_id, {"run": job["name"], **outcome})

    def process_result_of_unknown_task(self, *arguments: Any, **more: Any) -> None:
        """There are no tasks: sites are asked through cells."""

    def _progress(self, topic: str, data: Any, fl_ctx: Any) -> dict[str, Any]:
        """What the administrator may see while the job runs."""
        asked = 0 if self._transport is None else self._transport.asked
        shown: dict[str, Any] = {"asked": asked, "seconds": round(time.monotonic() - self._began, 1)}
        if self._folder is not None and (file := self._folder / PROGRESS_FILE).is_file():
            shown |= json.loads(file.read_text(encoding="utf-8"))
        return shown


def _write_outcome(kit: Path, job_id: str, outcome: dict[str, Any]) -> None:
    """Where the server keeps how a job ended: NVFLARE has only a code for it."""
    folder = kit / "nvflare/outcomes"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / f"{job_id}.json").write_text(json.dumps(outcome), encoding="utf-8")
