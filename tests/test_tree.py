"""The tree stays readable: small files, small folders, and tests where one looks for them."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import mutants
import pytest

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "src/pmtl"
MOST_FILES, MOST_TESTS, MOST_LINES = 12, 15, 350

#: Tests of all algorithms, of the whole package, or of several rooms together.
SEVERAL = {
    *("anatomy", "transcription", "exact_sites", "processes", "deploy", "non_interference"),
    *("failure_cases", "failure_cases_gate", "failure_cases_noise", "failure_cases_runs"),
    *("docstrings", "imports", "paths", "tree", "wheel"),
}
#: How often tests may use private names of the package: nothing public shows or breaks these.
PRIVATE = {
    # A line or function is replaced by a broken one, or by a process that dies there.
    "export/test_columns.py": 1,
    "privacy/test_failure_cases_noise.py": 2,
    "programs/intruder.py": 1,
    "programs/teamwork.py": 3,
    "runs/test_missing_charges.py": 4,
    # What is chosen inside: chances, widths, steps, readers, cohorts drawn ahead, processes.
    "audit/test_games.py": 1,
    "data/readers/test_hdf5.py": 2,
    "engines/test_engines.py": 3,
    "engines/test_slots.py": 1,
    "experiments/test_run_tasks.py": 1,
    "federation/nvflare/test_process.py": 9,
    "simulation/test_simulate.py": 1,
    # What a process remembers is forgotten.
    "report/page/test_page.py": 1,
    "sklearn/conftest.py": 1,
}

MODULES = [file for file in PACKAGE.rglob("*.py") if file.name != "__init__.py"]
FOLDERS = sorted({file.parent.relative_to(PACKAGE) for file in MODULES})


def test_no_folder_of_the_package_has_more_than_a_dozen_files():
    files = {str(folder): len(list((PACKAGE / folder).glob("*.py"))) - 1 for folder in FOLDERS}
    assert {name: count for name, count in files.items() if count > MOST_FILES} == {}


@pytest.mark.parametrize("top", ["tests", "benchmarks"])
def test_no_folder_of_tests_or_benchmarks_has_too_many_programs(top):
    paths = (file.relative_to(TESTS.parent) for file in (TESTS.parent / top).rglob("*.py"))
    files = Counter(str(path.parent) for path in paths if "/." not in str(path))
    assert {name: count for name, count in files.items() if count > MOST_TESTS} == {}


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


def test_the_name_of_a_test_begins_with_the_module_or_the_room_that_it_tests():
    """Or it ends in `_page`, the page of the documentation that it holds to."""
    unclear = []
    for file in TESTS.rglob("test_*.py"):
        name, folder = file.stem.removeprefix("test_"), file.parent.relative_to(TESTS)
        if (
            name in SEVERAL
            or folder in (Path("docs"), Path("benchmarks"))
            or name.endswith("_page")
        ):
            continue
        rooms = {folder.name, *(path.stem for path in (PACKAGE / folder).iterdir())}
        unclear += [] if any(f"{name}_".startswith(f"{room}_") for room in rooms) else [name]
    assert unclear == []


def test_the_page_of_the_layout_names_every_room_and_no_file_that_is_not_there():
    page = (TESTS.parent / "docs/architecture.md").read_text(encoding="utf-8")
    rooms = {Path(room) for room in re.findall(r"^\| `([a-z_/]+)/` \|", page, re.M)}
    rows = dict(re.findall(r"^\| `([a-z_/]+)/` \| (.*?) \|", page, re.M))
    assert rooms <= set(FOLDERS)
    for room in set(FOLDERS) - rooms - {Path()}:  # They are named in the row of their room.
        assert f"`{room.name}`" in rows[str(room.parent)], room
    for room, row in rows.items():
        for name in re.findall(r"`([a-z_]+)`", row):
            texts = (file.read_text(encoding="utf-8") for file in (PACKAGE / room).glob("*.py"))
            there = (PACKAGE / room / f"{name}.py").exists() or (PACKAGE / room / name).is_dir()
            assert there or any(f"def {name}(" in text for text in texts), (room, name)
    for name in re.findall(r"`([\w/]+\.py)`", page):
        found = [*PACKAGE.rglob(name), *TESTS.parent.glob(name), *TESTS.parent.glob(f"*/{name}")]
        assert found or [*TESTS.parent.glob(f"benchmarks/*/{name}")], name


def defined(file: Path) -> set[str]:
    """Names of functions, classes, arguments, constants and attributes that a module defines."""
    found = {file.stem, file.parent.name}
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        if isinstance(node, ast.Module | ast.ClassDef):
            lines = (line for line in node.body if isinstance(line, ast.Assign | ast.AnnAssign))
            parts = (part for line in lines for part in ast.walk(line))
            found |= {part.id for part in parts if isinstance(part, ast.Name)}
    return found


@cache
def names() -> frozenset[str]:
    return frozenset().union(*map(defined, PACKAGE.rglob("*.py")))


def test_the_page_of_the_layout_uses_no_name_that_is_not_there():
    page = (TESTS.parent / "docs/architecture.md").read_text(encoding="utf-8")
    words = re.findall(r"`([a-z_]+)`", re.sub(r"```.*?```", "", page, flags=re.S))
    # A state of a run, and a symbol of the paper.
    assert set(words) - names() == {"running", "loss_k"}


def private_uses(file: Path) -> list[str]:
    """The private names of the package that a test uses on other objects than its own."""
    used: list[str] = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value).rpartition(".")[2]
            used += [] if owner in ("self", "cls", "os") else [node.attr]
        elif isinstance(node, ast.ImportFrom):
            used += [alias.name for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("setattr"):
            words = [word.value for word in node.args if isinstance(word, ast.Constant)]
            used += [word.rpartition(".")[2] for word in words if isinstance(word, str)]
    return [name for name in used if name in names() and re.fullmatch(r"_[^_].*[^_]", name)]


def test_tests_use_what_is_public_but_for_a_few():
    uses = {str(file.relative_to(TESTS)): private_uses(file) for file in TESTS.rglob("*.py")}
    assert {name: used for name, used in uses.items() if len(used) > PRIVATE.get(name, 0)} == {}


@pytest.mark.parametrize("mutant", mutants.read(), ids=lambda mutant: mutant.promise)
def test_a_mutant_changes_a_line_that_is_there_and_names_tests_that_are(mutant):
    text = (PACKAGE / mutant.file).read_text(encoding="utf-8")
    assert text.count(mutant.old) == 1
    assert mutant.old != mutant.new
    ast.parse(text.replace(mutant.old, mutant.new))  # Any test notices a syntax error.
    assert mutant.tests.split()
    for test in mutant.tests.split():
        assert (TESTS / test.partition("::")[0]).is_file(), test
