"""Every code block and command of the site is run, here or by a test that is named here."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from pages import PAGES, ROOT, blocks
from prepared import PREPARED
from running import Reader, modules_of_the_page

import pmtl

TESTS = ROOT / "tests"
#: Pages whose blocks are run by a test of their own.
ELSEWHERE = {
    "export.md": "export/test_export_page.py",
    "extending.md": "docs/test_extending.py",
    "federation.md": "federation/nvflare/test_nvflare_processes.py",
    "federation-guide.md": "cli/federation/test_federation_commands.py",
    "plan.md": "planning/test_plan_page.py",
    "predict.md": "prediction/test_predict_page.py",
    "report.md": "report/page/test_report_page.py",
    "scikit-learn.md": "sklearn/test_sklearn_page.py",
    "sweeps.md": "docs/test_sweeps_page.py",
    "tables.md": "data/schema/test_tables_page.py",
    "tracking.md": "tracking/test_tracking_page.py",
}
#: Pages whose blocks are not run, and why. A single block says why in a comment above it.
NOT_RUN = {
    "architecture.md": "its blocks are drawings",
    "benchmarks.md": "a quarter of an hour of measuring; tests/docs/test_benchmark_pages.py checks "
    "its tables",
    "privacy.md": "tests/cli/test_privacy.py runs the command",
    "public-start.md": "needs FEMNIST and a graphics card; tests/benchmarks/test_public_start.py "
    "runs the programs on small data",
    "reproduction.md": "hours of computing; tests/experiments/test_run.py runs `pmtl paper`",
    "secure-aggregation.md": "tests/federation/test_demo.py runs the demo with it",
    "utility.md": "half an hour of computing; tests/benchmarks/test_utility.py runs the program",
    "CONTRIBUTING.md": "a line to be put into a class; tests/test_options.py does that",
}
#: Kinds of blocks that a reader runs, saves or compares.
KINDS = {"bash", "console", "python", "toml", "text", ""}
RUN_HERE = [page for page in PAGES if page not in ELSEWHERE | NOT_RUN and blocks(page)]
#: Pages whose commands take long: a federation's processes, and the training of a network.
LONG = {"tutorials/federation.md", "tutorials/images.md"}
LEFT_OUT = [(page, one) for page in RUN_HERE for one in blocks(page) if one.reason]


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.thorough] if page in LONG else []) for page in RUN_HERE],
)
def test_what_a_page_says_works_from_top_to_bottom(page, tmp_path, monkeypatch, pmtl_command):
    monkeypatch.chdir(tmp_path)
    files, names, quick = PREPARED.get(page, (None, {}, {}))
    if files is not None:
        names = {**names, **files()}
    reader = Reader(pmtl_command, names, quick)
    with modules_of_the_page():
        for block in blocks(page):
            assert block.language in KINDS, f"{page}, line {block.line}"
            if block.reason is None:
                reader.read(block)


@pytest.mark.parametrize(
    ("page", "block"), LEFT_OUT, ids=lambda one: str(getattr(one, "line", one))
)
def test_a_block_that_is_not_run_says_why(page, block):
    assert len(block.reason.split()) >= 3
    for name in re.findall(r"tests/[\w/.]+", block.reason):
        assert (ROOT / name).is_file(), name
    pytest.skip(f"{page}, line {block.line}: {block.reason}")


def test_pages_that_are_run_elsewhere_are_named_there():
    for page, test in ELSEWHERE.items():
        assert page.rpartition("/")[2] in (TESTS / test).read_text(encoding="utf-8"), page


def test_the_tables_and_the_limits_of_the_federation_page_fit_its_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reader = Reader(None)
    for block in blocks("federation.md"):
        if block.language in ("python", "toml"):
            reader.read(block)
    tables = [pmtl.load(f"{site}.csv:client=client,target=target") for site in "abc"]
    assert {table.m for table in tables} == {30}
    limits = tomllib.loads(Path("limits.toml").read_text(encoding="utf-8"))["limits"]
    asked = [line for one in blocks("federation.md") for line in one.commands if " run " in line]
    assert asked
    assert all(f"--epsilon {limits['epsilon']} " in line for line in asked)


def test_reasons_name_files_that_are_there():
    for page, reason in NOT_RUN.items():
        assert page in PAGES
        for name in re.findall(r"tests/[\w/.]+\w", reason):
            assert (ROOT / name).is_file(), name


def test_a_reader_notices_what_is_wrong(tmp_path, monkeypatch, pmtl_command):
    """Wrong commands, code that fails and output that is not printed are all found."""
    monkeypatch.chdir(tmp_path)
    Path("page.md").write_text(
        "```bash\npmtl train --no-such-option\n```\n```python\n1 / 0\n```\n"
        "```python\nprint('ε = 2.0')\n```\n```text\nε = 2.1\n```\n```text\nε = 4\n```\n"
    )
    monkeypatch.setitem(PAGES, "page.md", Path("page.md"))
    command, code, prints, near, far = blocks("page.md")
    reader = Reader(pmtl_command)
    with pytest.raises(AssertionError, match="no-such-option"):
        reader.read(command)
    with pytest.raises(ZeroDivisionError):
        reader.read(code)
    reader.read(prints)
    reader.read(near)
    with pytest.raises(AssertionError, match="not printed"):
        reader.read(far)
