"""The tables of `pmtl data example` can be used by every command that the pages show."""

from __future__ import annotations

import json

import pmtl
from pmtl.cli.example import write_example
from pmtl.data import Schema


def test_the_schema_describes_the_tables_and_is_public(tmp_path):
    files = write_example(tmp_path / "new" / "folder")
    assert [name.rpartition("/")[2] for name in files] == [
        *("visits.csv", "new.csv", "elsewhere.csv", "schema.toml")
    ]
    folder = tmp_path / "new" / "folder"
    assert Schema.read(folder / "schema.toml").public
    data = pmtl.load(f"{folder}/visits.csv:schema={folder}/schema.toml")
    assert (data.m, len(data.y)) == (200, 5000)
    assert write_example(tmp_path).keys() != files.keys()
    assert (tmp_path / "visits.csv").read_text() == (folder / "visits.csv").read_text()


def test_sharing_pays_on_it(tmp_path):
    write_example(tmp_path)
    data = f"{tmp_path}/visits.csv:client=hospital,target=outcome"
    assert pmtl.verdict(pmtl.train(data, privacy=2.0)).advice == "share"


def test_the_command_says_what_it_wrote_and_replaces_nothing(tmp_path, pmtl_command):
    done = pmtl_command("data", "example", "--out", tmp_path, "--json")
    assert len(json.loads(done.out)["files"]) == 4
    again = pmtl_command("data", "example", "--out", tmp_path)
    assert again.status == 2
    assert "exists: name an empty folder with --out" in again.err
