"""`pmtl federation provision`, `add-site` and `renew`: start-up kits with certificates.

NVFLARE makes the certificates and the start-up files. What it may do is then written by
`policy.py`; its shell scripts are left out, because `pmtl federation` starts the processes. The
folder `ca` has what later kits of the same federation need.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pmtl.errors import PmtlError
from pmtl.federation.nvflare import require_nvflare
from pmtl.federation.nvflare.policy import ADMIN, write_policy, write_site_names
from pmtl.storage import disk_errors, new_folder, read_json, write_json, write_text

PORT = 8002
_HOST = re.compile(
    r"(?=.{1,63}$)([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]*[a-z0-9])?", re.I
)
_SITE = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}", re.I)
_RESERVED = {"server", "admin", "ca", "client", "all", "relay", "simulator_server", "none"}
_PROJECT = "pmtl"  # The name in the root certificate, and of NVFLARE's folder.
_ABOUT = "federation.json"  # In the folder ca: the server's address, and all names of sites.
_ROOT_DAYS = 3650  # The root certificate; those of participants are valid for 360 days.
_SOON = datetime.timedelta(days=30)  # Before a certificate's end.
_EARLIER = datetime.timedelta(days=1)  # Certificates begin earlier, for clocks that are behind.


def provision(server: str, sites: Sequence[str], out: str | Path) -> dict[str, str]:
    """Make the kits of a federation, in a new folder `out`, and return where they are, by
    participant. `server` is the name by which sites reach the server, HOST or HOST:PORT."""
    require_nvflare()
    host, port = parse_server(server)
    check_names(sites)
    out = Path(out)
    with _new_folder(out) as made:
        _make(made, host, port, sites, out.parent)
        _describe(made / "ca", host, port, sites)
    return _written(out, ("server", *sites, "admin", "ca"))


def add_sites(kits: str | Path, sites: Sequence[str]) -> dict[str, str]:
    """Make the kits of further sites, and return where they are. Of the folder that `provision`
    made only its folder `ca` is needed. A name that was ever used is refused, because its
    certificate may still be valid."""
    require_nvflare()
    kits = Path(kits)
    host, port, known = _described(kits / "ca")
    check_names(sites)
    used = {name.lower() for name in known}
    for name in sites:
        if name.lower() in used or (kits / name).exists():
            raise PmtlError(
                f"--site {name}: this federation has or had a site of this name, whose certificate "
                "may still be valid. Give the new site another name."
            )
    with disk_errors(kits), tempfile.TemporaryDirectory(dir=kits, prefix=".new-") as made:
        _make(Path(made), host, port, sites, kits, kits / "ca")
        _describe(kits / "ca", host, port, [*known, *sites])  # First: a name is used once.
        for name in sites:
            (Path(made) / name).rename(kits / name)
    return _written(kits, sites)


def renew(kits: str | Path, out: str | Path) -> dict[str, str]:
    """Make all kits again, in a new folder `out`, with new keys and certificates of the same
    root."""
    require_nvflare()
    kits, out = Path(kits), Path(out)
    host, port, sites = _described(kits / "ca")
    with _new_folder(out) as made:
        _make(made, host, port, sites, out.parent, kits / "ca")
        shutil.rmtree(made / "ca")  # It stays where it is.
    return _written(out, ("server", *sites, "admin"))


def check_certificate(kit: Path) -> str | None:
    """Refuse a kit whose certificate has ended by this machine's clock: NVFLARE would wait on.
    Returns a sentence if it ends soon."""
    from cryptography import x509

    (file,) = (kit / "startup").glob("*.crt")
    certificate = x509.load_pem_x509_certificate(file.read_bytes())
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    now = datetime.datetime.now(datetime.UTC)
    if not begin <= now <= end:
        raise PmtlError(
            f"The certificate of {kit} is valid from {begin:%Y-%m-%d} to {end:%Y-%m-%d}, and this "
            f"machine's clock says {now:%Y-%m-%d}. Set the clock, or get new certificates from "
            "the maker of the kits (pmtl federation renew)."
        )
    if end - now > _SOON:
        return None
    return f"The certificate of {kit} ends on {end:%Y-%m-%d}: see pmtl federation renew."


def _written(out: Path, names: Sequence[str]) -> dict[str, str]:
    """The places of kits, after their policies are written: paths in them follow the kit."""
    for name in names:
        if name not in {"admin", "ca"}:
            write_policy(out / name)
    return {name: str(out / name) for name in names}


@contextlib.contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """A folder that becomes `out` at the end, or is removed."""
    if out.exists():
        raise PmtlError(
            f"{out} exists: kits are made once, and new ones do not fit old ones. Give another "
            "folder with --out."
        )
    with disk_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    with new_folder(out) as made:
        made.mkdir(mode=0o700)
        yield made


def _describe(ca: Path, host: str, port: int, sites: Sequence[str]) -> None:
    """Keep what later kits of this federation need."""
    write_json(ca / _ABOUT, {"host": host, "port": port, "sites": list(sites)})


def _described(ca: Path) -> tuple[str, int, list[str]]:
    if not (ca / _ABOUT).is_file():
        raise PmtlError(
            f"There is no {ca / _ABOUT}: give the folder that pmtl federation provision made, with "
            "its folder ca."
        )
    about = read_json(ca / _ABOUT)
    return str(about["host"]), int(about["port"]), [str(name) for name in about["sites"]]


def parse_server(server: str) -> tuple[str, int]:
    """The host and the port of HOST or HOST:PORT."""
    host, _, port = server.partition(":")
    if not _HOST.fullmatch(host) or "/" in port:
        raise PmtlError(
            f"--server {server!r} is not a host name: give the name by which all sites reach "
            "the server, at most 63 letters, digits, dots and hyphens, as in fl.example.org or "
            "10.0.0.5:8002. IPv6 addresses are not supported."
        )
    if port and not (port.isdecimal() and 0 < int(port) < 2**16):
        raise PmtlError(f"--server {server!r} has no valid port: give a number from 1 to 65535.")
    return host, int(port) if port else PORT


def check_names(sites: Sequence[str]) -> None:
    """Refuse names that no site can have."""
    if not sites:
        raise PmtlError("A federation needs at least one site: give --site NAME for each.")
    for name in sites:
        if not _SITE.fullmatch(name):
            raise PmtlError(
                f"--site {name!r} is not a valid site name: use 1 to 40 letters, digits, hyphens "
                "and underscores, and begin with a letter or a digit."
            )
        if name.lower() in _RESERVED:
            raise PmtlError(f"--site {name} is a reserved name: give the site another one.")
    lower = [name.lower() for name in sites]
    if twice := {name for name in lower if lower.count(name) > 1}:
        raise PmtlError(f"--site {sorted(twice)[0]} is given twice: each site needs its own name.")


def _make(
    kits: Path, host: str, port: int, sites: Sequence[str], work: Path, ca: Path | None = None
) -> None:
    """Let NVFLARE make the kits in a folder below `work`, and move them to `kits`.

    With `ca`, its root certificate signs the new ones."""
    from nvflare.lighter.constants import CtxKey
    from nvflare.lighter.entity import Project
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provisioner import Provisioner

    project = Project(_PROJECT, "a federation of pmtl", props={"allow_log_streaming": False})
    project.set_server(host, "pmtl", {"fed_learn_port": port, "admin_port": port})
    for name in sites:
        project.add_client(name, "pmtl", {})
    project.add_admin(ADMIN, "pmtl", {"role": "lead"})
    builders = [
        WorkspaceBuilder(),
        StaticFileBuilder(config_folder="config", scheme="tcp", require_signed_jobs=True),
        _certificates(),
    ]
    output = io.StringIO()
    with tempfile.TemporaryDirectory(dir=work, prefix=".nvflare-") as folder:
        if ca is not None:
            _give_root(ca, Path(folder) / _PROJECT / "state")
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            context = Provisioner(folder, builders).provision(project)
        if context.get(CtxKey.BUILD_ERROR):
            raise PmtlError(f"NVFLARE could not make the kits: {output.getvalue().strip()[-500:]}")
        made = Path(context[CtxKey.CURRENT_PROD_DIR])
        for place, name in ((host, "server"), (ADMIN, "admin"), *((site, site) for site in sites)):
            _keep(made / place, kits / name)
        write_site_names(kits / "server", sites)
        _keep_root(Path(context.get_state_dir()), kits / "ca")


def _certificates() -> Any:
    """NVFLARE's maker of certificates, with two changes: certificates are valid from yesterday on,
    and a site's certificate has its role, so that no server or administrator passes for a site."""
    from nvflare.lighter.impl.cert import CertBuilder

    from pmtl.secure_aggregation.identity import SITE_ROLE

    class Certificates(CertBuilder):  # type: ignore[misc]
        @staticmethod
        def _generate_cert(*given: Any, **more: Any) -> Any:
            if not (more.get("ca") or more.get("server") or more.get("role")):
                more["role"] = SITE_ROLE
            begin = datetime.datetime.now(datetime.UTC) - _EARLIER
            return CertBuilder._generate_cert(*given, **{**more, "not_valid_before": begin})

    return Certificates(root_valid_days=_ROOT_DAYS)


def _give_root(ca: Path, state: Path) -> None:
    """Give NVFLARE the root certificate of earlier kits."""
    with disk_errors(ca, "read"):
        names = {"root_cert": "rootCA.pem", "root_pri_key": "rootCA.key"}
        content = {name: (ca / file).read_text(encoding="utf-8") for name, file in names.items()}
    state.mkdir(mode=0o700, parents=True)
    write_text(state / "cert.json", json.dumps(content))


def _keep(made: Path, kit: Path) -> None:
    """Move one kit without NVFLARE's scripts and examples; only its owner may read it."""
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
    write_text(folder / "rootCA.pem", content["root_cert"])
    write_text(folder / "rootCA.key", content["root_pri_key"])
