"""docs/expectations.md has its form, and what it names of ours exists."""

from __future__ import annotations

import re
from functools import reduce
from importlib import import_module
from pathlib import Path

import pytest
import typer.main

from pmtl.cli.app import app

PAGE = (Path(__file__).parents[2] / "docs" / "expectations.md").read_text(encoding="utf-8")


def table(start):
    """The cells of the table whose header begins with a word; the header is its first line."""
    lines = PAGE[PAGE.index(f"| {start} |") :].split("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [rows[0], *rows[2:]]


HEADER, *ROWS = table("expectation")
OTHERS = ["scikit-learn", "Opacus", "pfl-research", "Flower", "NVFLARE", "FL4Health"]
NAMES = [
    (row[0], name)
    for row in ROWS
    for name in re.findall(r"`([^`]*)`", row[1])
    if not row[1].startswith(("planned", "not yet"))
]


def test_the_table_has_its_columns_and_some_forty_rows():
    assert ["expectation", "pmtl", *OTHERS] == HEADER
    assert 40 <= len(ROWS) <= 60
    assert {len(row) for row in ROWS} == {len(HEADER)}
    assert len({row[0] for row in ROWS}) == len(ROWS)


def test_every_cell_is_short_and_says_what_it_means():
    units = {"–", "a client", "a row", "a row, or a filter", "a row or a client"}
    for row in ROWS:
        allowed = r"(yes|no|part|–|not found|planned|not yet)(: .+)?"
        for cell in row[1:]:
            assert len(cell) <= 40, cell
            assert cell in units if row[0] == "unit of privacy" else re.fullmatch(allowed, cell)
        assert not any(cell.startswith("planned") for cell in row[2:])
        assert not row[1].startswith(("not found", "–")), "of ourselves we know"


def test_every_library_has_a_version_and_pages():
    header, *rows = table("library")
    assert header[:2] == ["library", "version"]
    assert [row[0] for row in rows] == OTHERS
    for row in rows:
        assert re.fullmatch(r"\d+(\.\d+)+", row[1])
        assert "https://" in row[2]


@pytest.mark.parametrize(("expectation", "name"), NAMES)
def test_what_is_named_of_ours_exists(expectation, name):
    if not name.startswith("pmtl "):
        module, *parts = name.split(".")
        reduce(getattr, parts, import_module(module))
        return
    command = typer.main.get_command(app)
    for word in name.split()[1:]:
        if word.startswith("--"):
            assert word in {option for each in command.params for option in each.opts}, name
        else:
            command = command.commands[word]


def test_names_are_checked():
    assert len(NAMES) > 20
    with pytest.raises(AssertionError):
        test_what_is_named_of_ours_exists("", "pmtl train --nothing")
    with pytest.raises(KeyError):
        test_what_is_named_of_ours_exists("", "pmtl nothing")
    with pytest.raises(AttributeError):
        test_what_is_named_of_ours_exists("", "pmtl.nothing")
