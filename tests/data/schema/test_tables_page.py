"""What docs/tables.md shows is run."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pandas as pd
import pytest
from hospital import hospital_frame

from pmtl.data import FederatedData, Schema
from pmtl.data.schema.column import KINDS, MISSING, PARTS, ROLES, UNKNOWN

PAGE = (Path(__file__).parents[3] / "docs/tables.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL))


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame = hospital_frame(30).drop(columns=["empty", "constant", "remark", "sugar"])
    frame.to_csv("hospital.csv", index=False)
    frame[frame.hospital == "h07"].drop(columns="outcome").to_csv("new.csv", index=False)


def test_the_commands_of_the_page(table, pmtl_command):
    for line in BLOCKS["bash"].strip().splitlines():
        done = pmtl_command(*shlex.split(line)[1:])
        assert done.status == 0, (line, done.err)
    assert set(pd.read_csv("answers.csv").prediction) <= {"died", "home"}


def test_the_schema_and_the_python_of_the_page(table):
    Path("schema.toml").write_text(BLOCKS["toml"])
    schema = Schema.from_dict(tomllib.loads(BLOCKS["toml"]))
    assert schema.public
    frame = pd.read_csv("hospital.csv")
    assert FederatedData.from_frame(frame, schema=schema).feature_names == schema.feature_names
    names: dict[str, object] = {}
    exec(BLOCKS["python"], names)
    assert names["run"].facts.schema == schema.to_dict()
    assert len(names["rows"]) == (frame.hospital == "h07").sum()


def test_the_page_names_every_setting_and_value():
    values = {*ROLES, *KINDS, *MISSING, *UNKNOWN, *PARTS}
    values |= {setting for settings in KINDS.values() for setting in settings}
    assert [value for value in values if f"`{value}`" not in PAGE] == []
