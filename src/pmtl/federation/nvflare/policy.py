"""What NVFLARE is allowed to do in a kit.

The files are written anew whenever a process starts (`write_policy`): paths follow the kit when it
is moved, and a changed file has no effect.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pmtl.errors import PmtlError
from pmtl.storage import write_text

#: The one class that a job may name.
CONTROLLER = "pmtl.federation.nvflare.controller.PmtlController"
LARGEST_MESSAGE = 2**30  #: bytes; 268 million float32
ADMIN = "admin@pmtl.local"  #: the name in the administrator's certificate
WORK = "federation"  #: in the server's kit: the ledger and the runs
PROGRESS, STOP = "pmtl_progress", "pmtl_stop"  #: what the administrator may ask of a job
OUTCOMES = "nvflare/outcomes"  #: in the kit: how jobs ended, for which NVFLARE has only a code
OUTCOME = "pmtl_outcome"  #: the same in a job's description
RUNS_LOG = "runs.log"  #: in the server's kit: what runs said
LOG_LINE = "%(asctime)s %(levelname)s %(name)s %(message)s"
LOG_BYTES, LOG_FILES = 20 * 2**20, 5  #: of a log file before it is rotated, and how many are kept
SITE_FILE = Path("local/pmtl-site.toml")  #: in a site's kit: its rows and its limits
SITES_FILE = "pmtl-sites.json"  #: in the server's kit: the names of all sites
_HERE = "pmtl.federation.nvflare"
_ROLES = ("project_admin", "org_admin", "lead", "member")
_MOST_SITES = 10_000
_HEARTBEAT_TIMEOUT = 30  # Seconds without a sign of life, after which a site is not present.


def write_policy(kit: Path) -> None:
    """Write the files in `local/` that say what NVFLARE may do in the server's or a site's kit."""
    server = role_of(kit) == "server"
    local = kit / "local"
    if any(local.glob("*__*resources.json")) or (local / "custom").exists():
        raise PmtlError(
            f"{local} has more than a kit's files: NVFLARE would load components from them. Remove "
            "custom/ and all files that end in __resources.json."
        )
    contents = {
        "resources.json": _server_resources(kit) if server else _site_resources(),
        "authorization.json": _authorization(server),
        "comm_config.json": {
            "allow_adhoc_conns": False,
            "backbone_conn_gen": 2,
            "streaming_max_blob_size": LARGEST_MESSAGE,
        },
        "log_config.json": _logging(),
    }
    for name, content in contents.items():
        write_text(local / name, json.dumps(content, indent=2) + "\n")


def role_of(kit: Path) -> str:
    """What a kit is for: `server`, `site` or `admin`."""
    for role, name in (("server", "fed_server"), ("site", "fed_client"), ("admin", "fed_admin")):
        if (kit / "startup" / f"{name}.json").is_file():
            return role
    raise PmtlError(
        f"{kit} is not a kit: it has no startup folder of pmtl federation provision. Give the "
        "folder of one participant, for example KITS/server."
    )


def check_role(kit: Path, wanted: str) -> None:
    """Refuse a kit that is not for `wanted`: `server`, `site` or `admin`."""
    if not kit.is_dir():
        raise PmtlError(f"There is no folder {kit}: make kits with pmtl federation provision.")
    if (role := role_of(kit)) != wanted:
        raise PmtlError(
            f"{kit} is the kit of {_OWNERS[role]}, and this command needs that of "
            f"{_OWNERS[wanted]}."
        )


_OWNERS = {"server": "the server", "site": "a site", "admin": "the administrator"}


def server_address(kit: Path) -> tuple[str, int]:
    """The host and the port of the server, from its kit or a site's."""
    name = "fed_server" if role_of(kit) == "server" else "fed_client"
    known = json.loads((kit / "startup" / f"{name}.json").read_text(encoding="utf-8"))
    host, _, port = str(known["servers"][0]["service"]["target"]).partition(":")
    return host, int(port)


def site_names(kit: Path) -> tuple[str, ...]:
    """The names of all sites, from the server's kit."""
    names = json.loads((kit / "local" / SITES_FILE).read_text(encoding="utf-8"))
    return tuple(str(name) for name in names)


def write_site_names(kit: Path, names: Sequence[str]) -> None:
    """Say in the server's kit who may take part. A running server applies the change
    immediately."""
    write_text(kit / "local" / SITES_FILE, json.dumps(list(names)) + "\n")


def _server_resources(kit: Path) -> dict[str, Any]:
    kept = kit.resolve() / "nvflare"
    storage = "nvflare.app_common.storages.filesystem_storage.FilesystemStorage"
    persistor = "nvflare.app_common.state_persistors.storage_state_persistor.StorageStatePersistor"
    launcher = "nvflare.app_common.job_launcher.server_process_launcher.ServerProcessJobLauncher"
    jobs = {"uri_root": str(kept / "jobs"), "job_store_id": "job_store"}
    snapshots = {"root_dir": str(kept / "snapshots"), "uri_root": "/"}
    return {
        "format_version": 2,
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": [CONTROLLER],
        "servers": [
            {
                "admin_storage": "transfer",
                "max_num_clients": _MOST_SITES,  # Who may connect is for the guard to say.
                "heart_beat_timeout": _HEARTBEAT_TIMEOUT,
                "check_engine_frequency": 0.5,
                "download_job_url": "http://localhost/",
                "admin_timeout": 5.0,
            }
        ],
        "snapshot_persistor": {
            "path": persistor,
            "args": {"uri_root": "/", "storage": {"path": storage, "args": snapshots}},
        },
        "components": [
            {"id": "job_scheduler", "path": f"{_HERE}.scheduler.Scheduler"},
            {
                "id": "job_manager",
                "path": "nvflare.apis.impl.job_def_manager.SimpleJobDefManager",
                "args": jobs,
            },
            {"id": "job_store", "path": storage},
            {"id": "process_launcher", "path": launcher, "args": {}},
            {"id": "pmtl_guard", "path": f"{_HERE}.guard.Guard"},
        ],
    }


def _site_resources() -> dict[str, Any]:
    return {
        "format_version": 2,
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": [],  # Sites run no jobs.
        "allow_log_streaming": False,
        "client": {"retry_timeout": 30, "communication_timeout": 30.0},
        "components": [{"id": "pmtl_site", "path": f"{_HERE}.site.SiteComponent"}],
    }


def _authorization(server: bool) -> dict[str, Any]:
    """No role has permissions at a site. At the server, the administrator's role may submit, watch
    and stop jobs; no role may submit code, use a shell, or fetch what a job left there."""
    permissions: dict[str, Any] = dict.fromkeys(_ROLES, "none")
    if server:
        rights = dict.fromkeys(("submit_job", "manage_job", "view", "app_command"), "any")
        denied = ("byoc", "shell_commands", "operate", "clone_job", "download_job")
        permissions["lead"] = rights | dict.fromkeys(denied, "none")
    return {"format_version": "1.0", "permissions": permissions}


def _logging() -> dict[str, Any]:
    rotating = {"class": "logging.handlers.RotatingFileHandler", "formatter": "plain"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"plain": {"format": LOG_LINE}},
        "handlers": {
            "logFileHandler": {
                **rotating,
                "level": "INFO",
                "filename": "log.txt",
                "mode": "a",
                "maxBytes": LOG_BYTES,
                "backupCount": LOG_FILES,
            },
            "console": {
                "class": "logging.StreamHandler",
                "level": "INFO",
                "formatter": "plain",
                "stream": "ext://sys.stdout",
            },
        },
        "loggers": {
            "root": {"level": "INFO", "handlers": ["logFileHandler"]},
            "pmtl": {"level": "INFO", "handlers": ["console"]},
        },
    }
