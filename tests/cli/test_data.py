"""`pmtl data show`."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from pmtl.cli.data import app
from pmtl.errors import PmtlError

runner = CliRunner()


@pytest.fixture
def table(tmp_path):
    rows = "".join(f"{who},{i},{i % 2}\n" for who in "ab" for i in range(6))
    (tmp_path / "d.csv").write_text("who,v,goal\n" + rows)
    return tmp_path / "d.csv"


def test_show_prints_numbers_and_warnings():
    result = runner.invoke(app, ["show", "synthetic:clients=12"])
    assert result.exit_code == 0, result.output
    assert "clients" in result.output
    assert "only 12 clients" in result.output


def test_show_as_json():
    result = runner.invoke(app, ["show", "synthetic:clients=12", "--json"])
    summary = json.loads(result.output)
    assert summary["clients"] == 12
    assert len(summary["warnings"]) >= 1


def test_columns_are_named_by_options(table):
    arguments = ["show", str(table), "--client-column", "who", "--target", "goal", "--json"]
    assert json.loads(runner.invoke(app, arguments).output)["clients"] == 2


def test_a_mistake_stays_a_readable_error(table):
    result = runner.invoke(app, ["show", str(table)])
    assert isinstance(result.exception, PmtlError)
    assert "'who', 'v', 'goal'" in str(result.exception)
