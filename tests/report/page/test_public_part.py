"""A copy of a run's public part is somebody else's file: what is wrong in it is told in a sentence,
and its numbers agree with each other."""

from __future__ import annotations

import shutil

import pytest

from pmtl import storage as files
from pmtl.errors import PmtlError
from pmtl.report.page.public_part import public_part


@pytest.fixture
def copied(made, tmp_path):
    """Change entries of a file of a copy; None takes an entry out."""
    folder = tmp_path / "copy"

    def change(name, changes):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(made.production / "public", folder)
        values = files.read_json(folder / name) | changes
        files.write_json(
            folder / name, {key: value for key, value in values.items() if value != "(none)"}
        )
        return folder

    return change


ENTRIES = ("mode", "model", "algorithm", "task", "input_shape", "outputs", "shares", "disclosed")


@pytest.mark.parametrize("value", ["(none)", 1.5, None, {"a": 1}, [None]])
@pytest.mark.parametrize("name", [*ENTRIES, "plan", "metrics_plan"])
def test_plan_json_has_all_entries_with_their_types(copied, name, value):
    folder = copied("plan.json", {name: value})
    if name == "metrics_plan" and value is None:
        assert public_part(folder) is not None
        return
    with pytest.raises(PmtlError, match=r"plan\.json"):
        public_part(folder)


def test_further_entries_of_plan_json_are_not_looked_at(copied):
    part = public_part(copied("plan.json", {"colour": "red", "local": [3]}))
    assert part is not None
    assert part.statement.mode == "production"


def test_a_statement_with_a_smaller_epsilon_than_its_charges_is_refused(copied, pmtl_command):
    folder = copied("privacy.json", {"epsilon": 0.01, "guarantees": [], "attacker_right": None})
    done = pmtl_command("report", folder)
    assert done.status == 2
    said = " ".join(done.err.split())
    assert "The entry 'epsilon' says 0.01, but what the statement says of the releases" in said


def test_a_report_imports_no_code_that_a_file_names(copied, made, tmp_path, monkeypatch):
    (tmp_path / "here_mod.py").write_text("raise SystemExit('this code ran')\n")
    monkeypatch.syspath_prepend(tmp_path)
    known = files.read_json(made.production / "public/privacy.json")
    for name in ("charged", "plan", "metrics"):
        named: object = {**known["plan"], "sampling": "here_mod:Net"}
        if name == "charged":
            named = [{**known["charged"][0], "sampling": "here_mod:Net"}]
        with pytest.raises(PmtlError, match="without its chance"):
            public_part(copied("privacy.json", {name: named}))
