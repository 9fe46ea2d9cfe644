"""`pmtl federation provision`: a start-up kit for the server, each site and the administrator.

NVFLARE makes the certificates and the start-up files. What it may do is then written by
`policy.py`; its shell scripts are left out, because `pmtl federation` starts the processes.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pmtl.errors import PmtlError
from pmtl.federation.nvflare.extra import need_nvflare
from pmtl.federation.nvflare.policy import ADMIN, SITES_FILE, write_policy
from pmtl.secure_aggregation.identity import SITE_ROLE

PORT = 8002
SCHEME = "tcp"
_HOST = re.compile(
    r"(?=.{1,63}$)([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]*[a-z0-9])?", re.I
)
_SITE = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}", re.I)
_RESERVED = {"server", "admin", "ca", "client", "all", "relay", "simulator_server", "none"}


def provision(server: str, sites: Sequence[str], out: str | Path) -> dict[str, str]:
    """Make the kits of a federation and return where they are, by participant.

    Args:
        server: the name by which sites reach the server, HOST or HOST:PORT.
        sites: the names of the sites.
        out: the folder of all kits; it must not exist.
    """
    need_nvflare()
    host, port = parse_server(server)
    _check_names(sites)
    out = Path(out)
    if out.exists():
        raise PmtlError(
            f"{out} exists: kits are made once, and new ones do not fit old ones. Give another "
            "folder with --out."
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as made:
        kits = Path(made) / "kits"
        kits.mkdir(mode=0o700)
        _make(Path(made), host, port, sites, kits)
        kits.rename(out)
    for name in ("server", *sites):
        write_policy(out / name)  # Its paths follow the kit.
    return {name: str(out / name) for name in ("server", *sites, "admin", "ca")}


def parse_server(server: str) -> tuple[str, int]:
    """The host and the port of HOST or HOST:PORT.

    Args:
        server: as it was given.
    """
    host, _, port = server.partition(":")
    if not _HOST.fullmatch(host) or "/" in port:
        raise PmtlError(
            f"--server {server!r} is no host name: give the name by which all sites reach the "
            "server, at most 63 letters, digits, dots and hyphens, as in fl.example.org or "
            "10.0.0.5:8002. IPv6 addresses are not supported."
        )
    if port and not (port.isdecimal() and 0 < int(port) < 2**16):
        raise PmtlError(f"--server {server!r} has no valid port: give a number from 1 to 65535.")
    return host, int(port) if port else PORT


def _check_names(sites: Sequence[str]) -> None:
    if not sites:
        raise PmtlError("A federation needs at least one site: give --site NAME for each.")
    for name in sites:
        if not _SITE.fullmatch(name):
            raise PmtlError(
                f"--site {name!r} is no name for a site: use 1 to 40 letters, digits, hyphens and "
                "underscores, and begin with a letter or a digit."
            )
        if name.lower() in _RESERVED:
            raise PmtlError(f"--site {name} is a reserved name: give the site another one.")
    lower = [name.lower() for name in sites]
    if twice := {name for name in lower if lower.count(name) > 1}:
        raise PmtlError(f"--site {sorted(twice)[0]} is given twice: each site needs its own name.")


def _make(work: Path, host: str, port: int, sites: Sequence[str], kits: Path) -> None:
    """Let NVFLARE make the kits in `work`, and move them to `kits`."""
    from nvflare.lighter.constants import CtxKey
    from nvflare.lighter.entity import Project
    from nvflare.lighter.impl.cert import CertBuilder
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provisioner import Provisioner

    class Certificates(CertBuilder):  # type: ignore[misc]
        """Writes into a site's certificate that it is a site's, so that neither the server nor
        the administrator can pass for one."""

        @staticmethod
        def _generate_cert(*parts: Any, **more: Any) -> Any:
            if not (more.get("ca") or more.get("server") or more.get("role")):
                more["role"] = SITE_ROLE
            return CertBuilder._generate_cert(*parts, **more)

    project = Project("pmtl", "a federation of pmtl", props={"allow_log_streaming": False})
    project.set_server(host, "pmtl", {"fed_learn_port": port, "admin_port": port})
    for name in sites:
        project.add_client(name, "pmtl", {})
    project.add_admin(ADMIN, "pmtl", {"role": "lead"})
    builders = [
        WorkspaceBuilder(),
        StaticFileBuilder(config_folder="config", scheme=SCHEME, require_signed_jobs=True),
        Certificates(),
    ]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        context = Provisioner(str(work / "nvflare"), builders).provision(project)
    if context.get(CtxKey.BUILD_ERROR):
        raise PmtlError(f"NVFLARE could not make the kits: {said.getvalue().strip()[-500:]}")
    made = Path(context[CtxKey.CURRENT_PROD_DIR])
    for folder, name in ((host, "server"), (ADMIN, "admin"), *((site, site) for site in sites)):
        _keep(made / folder, kits / name)
    names = json.dumps(list(sites)) + "\n"
    (kits / "server/local" / SITES_FILE).write_text(names, encoding="utf-8")
    _keep_root(Path(context.get_state_dir()), kits / "ca")


def _keep(made: Path, kit: Path) -> None:
    """Move one kit without NVFLARE's scripts and examples; nobody else may read it."""
    kit.mkdir(mode=0o700)
    for part in ("startup", "local", "transfer"):
        shutil.move(made / part, kit / part)
    for file in [*(kit / "startup").iterdir(), *(kit / "local").iterdir()]:
        if file.suffix in {".sh", ".ipynb", ".sample"} or file.name == "readme.txt":
            file.unlink()
        elif file.suffix == ".default" and kit.name != "admin":
            file.unlink()  # `write_policy` writes what counts.
        elif file.suffix == ".key":
            file.chmod(0o600)


def _keep_root(state: Path, folder: Path) -> None:
    """Keep the root certificate and its key, and none of the participants' keys."""
    content = json.loads((state / "cert.json").read_text(encoding="utf-8"))
    folder.mkdir(mode=0o700)
    (folder / "rootCA.pem").write_text(content["root_cert"], encoding="utf-8")
    key = folder / "rootCA.key"
    key.touch(mode=0o600)
    key.write_text(content["root_pri_key"], encoding="utf-8")
