"""The job that NVFLARE runs: always the same definition, with the run's settings as data."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pmtl.errors import PmtlError
from pmtl.federation.messages import check_run_name, refuse_code
from pmtl.federation.nvflare.policy import CONTROLLER, LARGEST_MESSAGE
from pmtl.spec import from_values

FOLDER = "pmtl"  #: the job's folder, and its name
SETTINGS = "pmtl.json"
LARGEST_SETTINGS = 2**20  #: bytes
#: The files with which the submitter's side signs every folder.
_SIGNATURES = {".__nvfl_sig.json", ".__nvfl_submitter.crt"}
_META = {
    "name": FOLDER,
    "deploy_map": {"app": ["@ALL"]},  # The scheduler deploys it to the server alone.
    "resource_spec": {},
    "min_clients": 1,
}
_SERVER = {"format_version": 2, "workflows": [{"id": "pmtl", "path": CONTROLLER, "args": {}}]}
_SITE = {"format_version": 2, "executors": []}  # NVFLARE wants one; no site ever gets it.
_FIXED = {
    "meta.json": _META,
    "app/config/config_fed_server.json": _SERVER,
    "app/config/config_fed_client.json": _SITE,
}


@dataclass(frozen=True)
class Echo:
    """Bytes that are sent to all sites and back."""

    bytes: int  #: to each site
    rounds: int  #: how many times
    deadline: float  #: seconds for each time

    def __post_init__(self) -> None:
        sound = 0 <= self.bytes <= LARGEST_MESSAGE and 0 < self.rounds <= 10**6
        if not sound or not 0 < self.deadline <= 3600:
            raise PmtlError(
                "An echo has 0 to 2^30 bytes, 1 to 10^6 rounds, up to 3600 seconds each."
            )


@dataclass(frozen=True)
class JobSettings:
    """What an administrator asks the server for: a run or an echo."""

    name: str  #: of the run
    resume: bool = False  #: whether to continue a run that was stopped
    job: Mapping[str, Any] | None = None  #: the coordinator's `Job`
    echo: Echo | None = None

    def __post_init__(self) -> None:
        if (self.job is None) == (self.echo is None):
            raise PmtlError("A job is either a run or an echo: give one of them.")


def write_job(job: Mapping[str, Any], folder: Path) -> Path:
    """Write the job definition into an empty folder and return its path. `job` has the fields of
    `JobSettings`."""
    _checked(job)
    content = json.dumps(dict(job), indent=2, allow_nan=False)
    if len(content.encode()) > LARGEST_SETTINGS:
        raise PmtlError(f"The settings of the run are longer than {LARGEST_SETTINGS} bytes.")
    made = folder / FOLDER
    (made / "app/config").mkdir(parents=True)
    for name, fixed in _FIXED.items():
        (made / name).write_text(json.dumps(fixed, indent=2), encoding="utf-8")
    (made / "app/config" / SETTINGS).write_text(content, encoding="utf-8")
    return made


def read_job(file: Path) -> JobSettings:
    """The settings of a job that was deployed."""
    return _settings(file.read_bytes())


def refusal(archive: bytes | None) -> str | None:
    """Why a submitted job (a zip file) is not run, or None: it must have our definition and nothing
    else."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive or b"")) as opened:
            files = {i.filename: i for i in opened.infolist() if not i.is_dir()}
            signatures = {name for name in files if name.rpartition("/")[2] in _SIGNATURES}
            folders = {i.filename for i in opened.infolist() if i.is_dir()}
            own = f"app/config/{SETTINGS}"
            wanted = {f"{FOLDER}/{name}" for name in (*_FIXED, own)}
            if more := ((set(files) - signatures) ^ wanted):
                return f"it has other files than a job of pmtl: {sorted(more)[0]!r}"
            allowed = {f"{FOLDER}/", f"{FOLDER}/app/", f"{FOLDER}/app/config/"}
            if more := (folders | {f"{name.rpartition('/')[0]}/" for name in signatures}) - allowed:
                return f"it has other folders than a job of pmtl: {sorted(more)[0]!r}"
            if any(info.file_size > LARGEST_SETTINGS for info in files.values()):
                return "it has a file that is too long"
            for name, fixed in _FIXED.items():
                if json.loads(opened.read(f"{FOLDER}/{name}")) != fixed:
                    return f"its {name} is not that of pmtl"
            _settings(opened.read(f"{FOLDER}/{own}"))
    except PmtlError as error:
        return str(error)
    except (ValueError, KeyError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        return f"it cannot be read: {error}"
    return None


def _settings(content: bytes) -> JobSettings:
    try:
        job = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise PmtlError(f"The job's settings cannot be read: {error}.") from error
    return _checked(job)


def _checked(job: Any) -> JobSettings:
    if not isinstance(job, Mapping) or not isinstance(job.get("name"), str):
        raise PmtlError("The job's settings have no name of a run.")
    check_run_name(job["name"])
    asked, echo = job.get("job"), job.get("echo")
    refuse_code(asked.get("config") if isinstance(asked, Mapping) else None)
    if isinstance(echo, Mapping):
        job = {**job, "echo": from_values(Echo, echo, "the echo")}
    return from_values(JobSettings, job, "the job's settings")
