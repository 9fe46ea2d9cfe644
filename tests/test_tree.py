"""The tree stays readable: small files, small folders, and tests where one looks for them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import mutants
import pytest

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "src/pmtl"
MOST_FILES, MOST_LINES = 12, 350

MODULES = [file for file in PACKAGE.rglob("*.py") if file.name != "__init__.py"]
FOLDERS = sorted({file.parent.relative_to(PACKAGE) for file in MODULES})


def test_no_folder_of_the_package_has_more_than_a_dozen_files():
    files = {str(folder): len(list((PACKAGE / folder).glob("*.py"))) - 1 for folder in FOLDERS}
    assert {name: count for name, count in files.items() if count > MOST_FILES} == {}


def test_no_file_of_the_package_is_too_long():
    lines = {
        str(file.relative_to(PACKAGE)): len(file.read_text(encoding="utf-8").splitlines())
        for file in PACKAGE.rglob("*.py")
    }
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


def test_folders_of_tests_are_folders_of_the_package():
    found = {file.parent.relative_to(TESTS) for file in TESTS.rglob("test_*.py")}
    assert found - {Path("benchmarks"), Path("docs")} <= set(FOLDERS)


def test_a_test_that_is_named_after_a_module_lies_where_the_module_lies():
    """`test_X.py`, and `test_X_command.py` for `cli/X.py`: pytest wants every name once."""
    names = {module.stem for module in MODULES}
    astray = []
    for file in TESTS.rglob("test_*.py"):
        name, folder = file.stem.removeprefix("test_"), PACKAGE / file.parent.relative_to(TESTS)
        if name.endswith("_command"):
            name, folder = name.removesuffix("_command"), PACKAGE / "cli"
            astray += [] if file.parent.name == "cli" and name in names else [file]
        if name in names and not (folder / f"{name}.py").exists():
            astray.append(file)
    assert astray == []


def test_the_page_of_the_layout_names_every_room_and_no_file_that_is_not_there():
    page = (TESTS.parent / "docs/architecture.md").read_text(encoding="utf-8")
    rooms = {Path(room) for room in re.findall(r"^\| `([a-z_/]+)/` \|", page, re.M)}
    below = {
        Path("cli"),
        Path("report"),
    }  # Their folders are named in their row, or tell themselves.
    assert rooms <= set(FOLDERS)
    assert {room for room in FOLDERS if room not in rooms and room.parent not in below} == {Path()}
    for room, row in re.findall(r"^\| `([a-z_/]+)/` \| (.*?) \|", page, re.M):
        for name in re.findall(r"`([a-z_]+)`", row):
            texts = (file.read_text(encoding="utf-8") for file in (PACKAGE / room).glob("*.py"))
            there = (PACKAGE / room / f"{name}.py").exists() or (PACKAGE / room / name).is_dir()
            assert there or any(f"def {name}(" in text for text in texts), (room, name)
    for name in re.findall(r"`([\w/]+\.py)`", page):
        found = [*PACKAGE.rglob(name), *TESTS.parent.glob(name), *TESTS.parent.glob(f"*/{name}")]
        assert found or [*TESTS.parent.glob(f"benchmarks/*/{name}")], name


@pytest.mark.parametrize("mutant", mutants.read(), ids=lambda mutant: mutant.promise)
def test_a_mutant_changes_a_line_that_is_there_and_names_tests_that_are(mutant):
    text = (PACKAGE / mutant.file).read_text(encoding="utf-8")
    assert text.count(mutant.old) == 1
    assert mutant.old != mutant.new
    ast.parse(text.replace(mutant.old, mutant.new))  # Any test notices a syntax error.
    assert mutant.tests.split()
    for test in mutant.tests.split():
        assert (TESTS / test.partition("::")[0]).is_file(), test
