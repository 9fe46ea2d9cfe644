"""What docs/tables.md shows is run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pandas as pd

from pmtl.data import FederatedData, Schema
from pmtl.data.schema.column import KINDS, MISSING, PARTS, ROLES, UNKNOWN

PAGE = (Path(__file__).parents[3] / "docs/tables.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"```(\w+)[^\n]*\n(.*?)```", PAGE, re.DOTALL))


def test_the_commands_of_the_page(tmp_path, monkeypatch, pmtl_command):
    monkeypatch.chdir(tmp_path)
    for line in BLOCKS["bash"].strip().splitlines():
        done = pmtl_command(*shlex.split(line, comments=True)[1:])
        assert done.status == 0, (line, done.err)
    assert set(pd.read_csv("answers.csv").prediction) == {"home", "returns"}


def test_the_schema_and_the_python_of_the_page(tmp_path, monkeypatch, pmtl_command):
    monkeypatch.chdir(tmp_path)
    assert pmtl_command("data", "example").status == 0
    (name,) = re.findall(r'toml title="(.*?)"', PAGE)
    Path(name).write_text(BLOCKS["toml"])
    schema = Schema.read(name)
    assert schema.public
    frame = pd.read_csv("visits.csv")
    assert FederatedData.from_frame(frame, schema=schema).feature_names == schema.feature_names
    names: dict[str, object] = {}
    exec(BLOCKS["python"], names)
    assert names["run"].facts.schema == schema.to_dict()
    assert len(names["rows"]) == (frame.hospital == "h007").sum()


def test_the_page_names_every_setting_and_value():
    values = {*ROLES, *KINDS, *MISSING, *UNKNOWN, *PARTS}
    values |= {setting for settings in KINDS.values() for setting in settings}
    assert [value for value in values if f"`{value}`" not in PAGE] == []
