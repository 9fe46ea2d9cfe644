"""The server's job process: NVFLARE calls `control_flow`, which runs the coordinator."""

from __future__ import annotations

import json
import logging
import logging.handlers
import threading
import time
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.impl.controller import Controller
from nvflare.fuel.f3.cellnet import cell

from pmtl.errors import Interrupted, PmtlError
from pmtl.federation.nvflare.cells import CellTransport
from pmtl.federation.nvflare.echo import run_echo
from pmtl.federation.nvflare.job import SETTINGS, JobSettings, read_job
from pmtl.federation.nvflare.policy import (
    LOG_BYTES,
    LOG_FILES,
    LOG_LINE,
    OUTCOMES,
    PROGRESS,
    RUNS_LOG,
    STOP,
    WORK,
    site_names,
)
from pmtl.storage import disk_errors, write_text

_log = logging.getLogger(__name__)
# NVFLARE ends the job's process when a peer says that a message was too large; any site could.
cell._is_server_job_cell = lambda about: False


class PmtlController(Controller):  # type: ignore[misc]
    """The one class that a job may name."""

    def __init__(self) -> None:
        super().__init__()
        self._transport: CellTransport | None = None
        self._shown: dict[str, Any] = {"sentence": "The job begins."}
        self._began = time.monotonic()
        self._stop = threading.Event()

    def start_controller(self, fl_ctx: Any) -> None:
        """Answer the administrator's questions."""
        engine = fl_ctx.get_engine()
        engine.register_app_command(PROGRESS, self._progress)
        engine.register_app_command(STOP, self._stop_after_round)

    def stop_controller(self, fl_ctx: Any) -> None:
        """End what waits for sites."""
        if self._transport is not None:
            self._transport.close()

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        """Run the job, and record how it ended; its sentences are public."""
        engine, workspace = fl_ctx.get_engine(), fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
        kit, number = Path(workspace.get_root_dir()), fl_ctx.get_job_id()
        _keep_log(kit / RUNS_LOG)
        job = read_job(Path(workspace.get_app_config_dir(number)) / SETTINGS)
        ended, stop = threading.Event(), self._stop

        def watch() -> None:
            while not ended.wait(0.2):
                if abort_signal.triggered:
                    stop.set()
                    return

        def registered() -> frozenset[str]:
            clients = engine._retrieve_clients_data(number) or {}
            return frozenset(client.name for client in clients.values())

        threading.Thread(target=watch, daemon=True).start()
        self._transport = CellTransport(engine.server.cell, site_names(kit), registered)
        outcome = {"state": "failed", "sentence": "An unexpected error; see the server's log."}
        try:
            self._run(job, kit / WORK, stop)
            outcome = {"state": "finished", "sentence": self._shown["sentence"]}
        except Interrupted as why:
            outcome = {"state": "stopped", "sentence": str(why)}
        except PmtlError as error:
            _log.error("The run ended with an error: %s", error)
            outcome = {"state": "failed", "sentence": str(error)}
            raise
        finally:
            ended.set()
            self._transport.close()
            self._shown |= {"outcome": outcome}
            with disk_errors(kit / OUTCOMES):
                (kit / OUTCOMES).mkdir(mode=0o700, parents=True, exist_ok=True)
            write_text(kit / OUTCOMES / f"{number}.json", json.dumps(outcome))

    def _run(self, asked: JobSettings, folder: Path, stop: threading.Event) -> None:
        assert self._transport is not None
        with disk_errors(folder):
            folder.mkdir(mode=0o700, exist_ok=True)
        if asked.echo is not None:
            place = folder / "echo" / asked.name
            run_echo(asked.echo, self._transport, place, stop, self._tell)
            return
        assert asked.job is not None
        from pmtl.federation.coordinator import Coordinator, Job
        from pmtl.federation.server_folder import ServerFolder

        name, known = asked.name, (folder / "runs" / asked.name).exists()
        if asked.job.get("run") != name:
            raise PmtlError("The job names two runs.")
        if known != asked.resume:
            raise PmtlError(
                f"The server has a run {name}: continue it with --resume, or give another --name."
                if known
                else f"The server has no run {name} that could be resumed: leave out --resume."
            )
        job, server = Job.from_dict(asked.job), ServerFolder(folder)
        Coordinator(job, self._transport, server, stop, self._tell).run()

    def _tell(self, sentence: str) -> None:
        _log.info(sentence)
        self._shown["sentence"] = sentence

    def process_result_of_unknown_task(self, *arguments: Any, **more: Any) -> None:
        """There are no tasks: sites are asked through cells."""

    def _stop_after_round(self, topic: str, data: Any, fl_ctx: Any) -> dict[str, Any]:
        """Stop when the round that is under way is published: none is lost."""
        self._stop.set()
        return {"stops": True}

    def _progress(self, topic: str, data: Any, fl_ctx: Any) -> dict[str, Any]:
        """What the administrator may see while the job runs."""
        asked = 0 if self._transport is None else self._transport.asked
        return {**self._shown, "asked": asked, "seconds": round(time.monotonic() - self._began, 1)}


def _keep_log(file: Path) -> None:
    """Write the run's log to a file of the kit: NVFLARE archives the logs of ended jobs, and its
    main process rotates log.txt. One job runs at a time."""
    kept = logging.handlers.RotatingFileHandler(
        file, maxBytes=LOG_BYTES, backupCount=LOG_FILES, encoding="utf-8"
    )
    kept.setFormatter(logging.Formatter(LOG_LINE))
    logging.getLogger("pmtl").addHandler(kept)
