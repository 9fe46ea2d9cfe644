"""A site's own file, `KIT/local/pmtl-site.toml`, from the options of `pmtl federation site`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pmtl.cli import options as opt
from pmtl.data.schema import Schema
from pmtl.errors import PmtlError
from pmtl.federation.nvflare.policy import SITE_FILE
from pmtl.options import declared
from pmtl.runs.config import Reading
from pmtl.spec import format_spec, parse_spec
from pmtl.storage import read_toml, write_text

#: Options of a data spec that name files.
_FILES = [name for name, one in declared(Reading).items() if one.about.metavar == "FILE"]


def write_site_file(
    kit: Path,
    data: str | None,
    reading: Mapping[str, str | None],
    limits: Path | None,
    models: Path | None,
    one_client: bool,
) -> None:
    """Write the file, or check that it is there if no data is given. `reading` has further options
    of the data's spec, and `limits` is a TOML file with [limits]."""
    file = kit / SITE_FILE
    given = opt.given(reading)
    if data is None:
        if given or limits or models or one_client:
            raise PmtlError("The site's other options need --data: give it, too.")
        if not file.is_file():
            raise PmtlError(f"A site needs rows: give --data, which is then kept in {file}.")
        return
    name, options = parse_spec(data)
    place = _found(name, "--data")
    for key in _FILES:
        if key in given:
            given[key] = _found(given[key], f"--{key}")
    if "schema" in given:
        Schema.read(given["schema"])  # Mistakes are reported now, not in the first run.
    folder = str((models or kit / "models").resolve())
    site: dict[str, Any] = {"data": format_spec(place, {**options, **given}), "folder": folder}
    if one_client:
        site["one_client"] = True
    import tomli_w

    write_text(file, tomli_w.dumps({"site": site, "limits": _limits(limits)}))


def _found(path: str, option: str) -> str:
    found = Path(path).expanduser()
    if not found.exists():
        raise PmtlError(f"{option} {path}: there is no such file.")
    return str(found.resolve())


def _limits(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    values = read_toml(path, "--limits")
    if set(values) != {"limits"} or not isinstance(values["limits"], dict):
        raise PmtlError(f"--limits {path} must have one section, [limits].")
    return dict(values["limits"])
