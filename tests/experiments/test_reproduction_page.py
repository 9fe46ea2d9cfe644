"""The page on the paper's numbers shows what was run: its tables are those of the results."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pmtl.experiments.run import EXPERIMENTS
from pmtl.experiments.settings import SETTINGS
from pmtl.experiments.sheet import Sheet
from pmtl.storage import read_json

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "reproduction.md").read_text(encoding="utf-8")
MARKS = re.findall(r"<!-- (\w+)/(\w+) -->", PAGE)


@pytest.mark.parametrize(("setting", "name"), MARKS)
def test_a_table_is_that_of_its_results(setting, name):
    assert setting in SETTINGS
    assert name in EXPERIMENTS
    saved = read_json(DOCS / "results" / setting / f"{name}.json")
    sheet = Sheet(name, saved["caption"], saved["columns"], saved["rows"])
    shown = PAGE.split(f"<!-- {setting}/{name} -->")[1].split(f"<!-- /{setting}/{name} -->")[0]
    assert shown.strip() == sheet.markdown().partition("\n\n")[2].strip()


def test_there_are_tables_and_no_result_without_one():
    assert MARKS
    kept = {(file.parent.name, file.stem) for file in (DOCS / "results").glob("*/*.json")}
    assert kept == set(MARKS)
