"""A wheel has the package, its licence and nothing else, and the command works from it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of a copy of the repository, so that nothing is left behind in it."""
    pytest.importorskip("setuptools", reason="setuptools builds the wheel")
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "copy"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", copy / "src", ignore=unwanted)
    (copy / "tests").mkdir()
    (copy / "tests" / "test_a.py").write_text("")
    shutil.copytree(ROOT / "website", copy / "website", ignore=unwanted)
    options = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", *options, str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("pmtl-*.whl")
    return made


def test_it_has_the_package_and_the_licence_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    version = wheel.name.split("-")[1]
    info = f"pmtl-{version}.dist-info"
    assert {f"{info}/licenses/LICENSE", "pmtl/py.typed", "pmtl/report/page/style.css"} <= set(names)
    assert {name.partition("/")[0] for name in names} == {"pmtl", info}
    source = ROOT / "src/pmtl"
    there = {f"pmtl/{path.relative_to(source).as_posix()}" for path in source.rglob("*.py")}
    assert there <= set(names)
    others = [name for name in names if name.startswith("pmtl/") and name not in there]
    assert sorted(others) == [
        "pmtl/py.typed",
        "pmtl/report/page/style.css",
        "pmtl/report/page/template.html",
    ]


def test_its_description_is_the_readme_and_its_licence_is_named(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
    metadata = archive.read(name).decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert "License-File: LICENSE" in metadata
    assert (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[0] in metadata


def test_the_command_runs_from_it(wheel, tmp_path):
    target = tmp_path / "installed"
    options = ["--quiet", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(wheel)], check=True)
    environment = {**os.environ, "PYTHONPATH": str(target)}
    for arguments in (
        ["--help"],
        ["--version"],
        ["privacy", "noise", "--epsilon", "2", "--clients", "50", "--rounds", "9"],
    ):
        done = subprocess.run(
            [sys.executable, str(target / "bin/pmtl"), *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    where = [sys.executable, "-c", "import pmtl; print(pmtl.__file__)"]
    found = subprocess.run(where, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert found.stdout.startswith(str(target))
