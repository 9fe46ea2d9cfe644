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


@pytest.fixture
def messy(tmp_path):
    rows = "".join(
        f"{'ab'[k // 6]},{k},{'' if k % 6 == 3 else k % 6 * 2},{('red', 'blue')[k % 2]},"
        f"{('12', 'old')[k % 6 == 4]},{k % 2}\n"
        for k in range(12)
    )
    path = tmp_path / "d.csv"
    path.write_text("who,row_id,v,colour,age,goal\n" + rows)
    return path


def test_a_schema_is_written_for_a_person_and_used(messy, tmp_path, pmtl_command):
    named, out = ("--client-column", "who", "--target", "goal"), tmp_path / "schema.toml"
    printed = pmtl_command("data", "schema", messy, *named)
    done = pmtl_command("data", "schema", f"{messy}:client=who,target=goal", "--out", out)
    assert done.status == 0, done.err
    assert "6 columns, which become 6 features" in done.out
    assert out.read_text() == printed.out
    assert "--schema" in done.out
    for words in (
        "public = false",
        "# seen in the rows: 0 to 10, which is not public",
        'missing_values = [\n    "old",\n]',
        "check that this is right",
    ):
        assert words in printed.out
    again = pmtl_command("data", "schema", messy, *named, "--out", out)
    assert again.status == 2
    assert "may have been reviewed" in again.err
    # Without the schema, a person has to decide about "old".
    assert "'old'" in pmtl_command("data", "show", messy, *named).err
    shown = pmtl_command("data", "show", messy, "--schema", out, "--json")
    columns = {each["column"]: each for each in json.loads(shown.out)["columns"]}
    assert columns["colour"]["becomes"] == "2 features, colour=blue …"
    assert columns["v"]["empty cells"] == columns["age"]["empty cells"] == "indicator"
    values = json.loads(pmtl_command("data", "schema", messy, *named, "--json").out)
    assert values["columns"]["goal"] == {
        "kind": "category",
        "role": "target",
        "categories": ["0", "1"],
    }
    assert "number" in values["notes"]["v"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing.csv"], "no file nothing.csv"),
        (["rows.npz"], "not a table"),
        (["d.csv:taget=goal"], "Did you mean 'target'"),
        (["d.csv"], "no client column 'client' or 'client_id' and no target column"),
        (["d.csv:client=who,target=goal,drop=nothing"], "'nothing' to drop"),
    ],
)
def test_mistakes_of_the_schema_command(arguments, words, messy, monkeypatch, pmtl_command):
    monkeypatch.chdir(messy.parent)
    done = pmtl_command("data", "schema", *arguments)
    assert done.status == 2
    assert words in done.err
