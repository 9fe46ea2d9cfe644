"""`pmtl doctor`. It changes nothing; the files of its write test are deleted again."""

from __future__ import annotations

import importlib
import os
import platform
import re
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import typer

from pmtl._version import __version__
from pmtl.cli import options as opt
from pmtl.errors import PmtlError

#: The module to import, where its name differs from the package's.
_MODULES = {
    "dp-accounting": "dp_accounting",
    "tomli-w": "tomli_w",
    "pillow": "PIL",
    "scikit-learn": "sklearn",
    "vl-convert-python": "vl_convert",
    "mlflow-skinny": "mlflow",
    "mkdocs-material": "material",
}
#: Extras that are collections of others, or for working on pmtl itself.
_NOT_FOR_USERS = ("all", "dev", "utility")
#: What an extra is for.
_PURPOSES = {
    "plot": "plots",
    "images": "LEAF data sets that name image files",
    "hdf5": "TensorFlow Federated's HDF5 files",
    "datasets": "pmtl data fetch",
    "sklearn": "scikit-learn estimators",
    "report": "pmtl report",
    "onnx": "pmtl export --to onnx",
    "tensorboard": "tracking with TensorBoard",
    "mlflow": "tracking with MLflow",
    "federation": "pmtl federation",
    "docs": "make docs, and a table of the tutorials",
}


def doctor(
    folder: str = typer.Option(
        ".", help="Where runs and ledgers are to be written.", metavar="FOLDER"
    ),
    as_json: opt.AsJson = False,
) -> None:
    """Say what is installed and usable here, and how to get what is missing.

    The exit status is 0 if pmtl can train and write here, and 2 if not. Missing extras are no
    error: each is needed for one thing only.

        pmtl doctor
        pmtl doctor --folder runs --json
    """
    found = examine(folder)
    if as_json:
        opt.print_json(found)
    else:
        _print(found)
    if found["problems"]:
        raise PmtlError(" ".join(found["problems"]))


def _print(found: dict[str, Any]) -> None:
    memory = found["memory_bytes"]
    about = "" if memory is None else f", {memory / 2**30:.0f} GiB of memory"
    typer.echo(f"pmtl {found['pmtl']}, Python {found['python']}, {found['platform']}")
    typer.echo(f"{found['threads']} processor threads{about}")
    typer.echo(f"Devices: {', '.join(found['devices']) or 'none: torch cannot be used'}")
    place, why_not = found["folder"]["path"], found["folder"]["problem"]
    state = "can be written" if why_not is None else f"CANNOT be written: {why_not}"
    typer.echo(f"Runs and ledgers in {place}: {state}")
    typer.echo("\nNeeded:")
    for one in found["packages"]:
        state = "" if one["problem"] is None else f"  {one['problem']}: see below"
        typer.echo(f"  {one['name']:15} {one['version'] or '-'}{state}")
    typer.echo("\nExtras:")
    for one in found["extras"]:
        state = "usable" if one["usable"] else f"missing: {', '.join(one['missing'])}"
        typer.echo(f"  {one['name']:12} {one['for']:38} {state}")
        if not one["usable"]:
            typer.echo(f"{'':15}{one['install']}")


def examine(folder: str | Path = ".") -> dict[str, Any]:
    """Everything that `pmtl doctor` reports; runs and ledgers are to be written to `folder`."""
    base, extras = requirements()
    packages = [package(name) for name in base]
    found: dict[str, Any] = {
        "pmtl": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": packages,
        "extras": [extra(name, needs) for name, needs in sorted(extras.items())],
        "devices": _devices(packages),
        "threads": os.cpu_count(),
        "memory_bytes": _memory(),
        "folder": {"path": str(Path(folder).resolve()), "problem": writing_problem(folder)},
    }
    found["problems"] = list(_problems(found))
    return found


def requirements() -> tuple[list[str], dict[str, list[str]]]:
    """The packages that pmtl needs, and those that each extra adds, by its own metadata."""
    base: list[str] = []
    extras: dict[str, list[str]] = {}
    try:
        declared = metadata.requires("pmtl") or []
    except metadata.PackageNotFoundError:
        declared = []
    for line in declared:
        name = re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0].lower()
        wanted = re.search(r"extra *== *['\"]([^'\"]+)['\"]", line)
        if wanted is None:
            base.append(name)
        elif wanted[1] not in _NOT_FOR_USERS:
            extras.setdefault(wanted[1], []).append(name)
    return base, extras


def package(name: str) -> dict[str, Any]:
    """The version of a package, by its name for pip, and why it cannot be used (or None)."""
    version, problem = None, None
    try:
        version = metadata.version(name)
        importlib.import_module(_MODULES.get(name, name))
    except metadata.PackageNotFoundError:
        problem = "is not installed"
    except Exception as error:  # A broken installation may raise anything.
        reason = str(error).splitlines()[0] if str(error) else ""
        problem = f"cannot be imported ({type(error).__name__}: {reason})"
    return {"name": name, "version": version, "problem": problem}


def extra(name: str, needs: list[str]) -> dict[str, Any]:
    """Whether an extra can be used, and the command that installs it."""
    found = [package(one) for one in needs]
    lacking = [one["name"] for one in found if one["problem"] is not None]
    return {
        "name": name,
        "for": _PURPOSES.get(name, ""),
        "packages": found,
        "usable": not lacking,
        "missing": lacking,
        "install": f"{Path(sys.executable).name} -m pip install 'pmtl[{name}]'",
    }


def writing_problem(folder: str | Path) -> str | None:
    """Why no run or ledger can be written to a folder; None if they can."""
    try:
        with tempfile.TemporaryDirectory(prefix=".pmtl-doctor-", dir=folder) as place:
            from pmtl.storage import take_lock, write_text

            write_text(Path(place) / "run.json", "{}\n")
            os.close(take_lock(Path(place) / "ledger.lock", "The lock is held."))
            database = sqlite3.connect(Path(place) / "ledger.db")
            try:
                database.execute("CREATE TABLE entries (number INTEGER)")
                database.commit()
            finally:
                database.close()
    except (OSError, sqlite3.Error, PmtlError) as error:
        return str(getattr(error, "strerror", None) or error).rstrip(".")
    return None


def _devices(packages: list[dict[str, Any]]) -> list[str]:
    """The devices that can train; none if torch cannot be imported."""
    if any(one["name"] == "torch" and one["problem"] is not None for one in packages):
        return []
    from pmtl.engines.process import devices

    return devices()


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def _problems(found: dict[str, Any]) -> Iterator[str]:
    """Sentences about problems that make pmtl unusable here."""
    if not found["packages"]:
        yield "pmtl is not installed as a package here: run `pip install pmtl`."
    for one in found["packages"]:
        if one["problem"] is not None:
            yield (
                f"The package {one['name']} {one['problem']}: run `pip install "
                f"--force-reinstall {one['name']}`."
            )
    if (problem := found["folder"]["problem"]) is not None:
        yield (
            f"No run or ledger can be written to {found['folder']['path']} ({problem}): work in "
            "another folder."
        )
