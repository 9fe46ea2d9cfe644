"""A data format of the user's own: one file with a reader, and the command line."""

from __future__ import annotations

import json
import sys
from importlib.metadata import EntryPoint

import pytest

import pmtl
from pmtl import plugins
from pmtl.data import load
from pmtl.data.load import READERS
from pmtl.errors import PmtlError, PublicError

READER = '''
"""JSON Lines: an object per line with the features, the target and the client."""

import json
from pathlib import Path


def read_lines(path: Path, client: str = "client", scale_by: float = 1.0) -> dict:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {
        "x": [[scale_by * value for value in row["features"]] for row in rows],
        "y": [row["target"] for row in rows],
        "client": [row[client] for row in rows],
    }


def read_production(path: Path, lenient: bool = False) -> dict:
    return read_lines(path)


def read_nothing(path: Path) -> dict:
    return {"x": [[1.0]], "why": "not"}


def read_renamed(path: Path, names: Path | None = None) -> dict:
    columns = read_lines(path)
    names = json.loads(names.read_text())
    return columns | {"client": [names[name] for name in columns["client"]]}


def read_uneven(path: Path) -> dict:
    return {"x": [[1.0], [2.0]], "y": [0, 1], "client": ["a", ["b"]]}


a_value = 3
'''
ROWS = [
    {"who": f"c{k % 6}", "client": f"k{k % 4}", "features": [k / 9, 1 - k / 9], "target": k % 2}
    for k in range(36)
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "own_reader.py").write_text(READER, encoding="utf-8")
    (tmp_path / "d.own").write_text("\n".join(map(json.dumps, ROWS)), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("own_reader", None)


def test_the_command_line_trains_with_it(folder, pmtl_command):
    spec = "d.own:reader=own_reader:read_lines,client=who,scale_by=0.5,validation=0"
    done = pmtl_command(
        *("train", "--data", spec, "--out", "run", "--noise", "0.1", "--rounds", "2"),
    )
    assert done.status == 0, done.err
    run = pmtl.load_run("run")
    assert run.data.clients == ("c0", "c1", "c2", "c3", "c4", "c5")
    assert run.data.x[9].tolist() == [0.5, 0.0]


def test_a_toml_file_trains_with_it(pmtl_command, folder):
    (folder / "run.toml").write_text(
        'data = "d.own:reader=own_reader:read_lines"\n[privacy]\nnoise = 0.1\nrounds = 1\n'
    )
    assert pmtl_command("train", "--config", "run.toml", "--out", "run").status == 0
    assert pmtl.load_run("run").data.m == 4


def test_a_comparison_trains_with_it(pmtl_command):
    done = pmtl_command(
        *("compare", "--data", "d.own:reader=own_reader:read_lines", "--rounds", 1, "--steps", 1),
        *("--seeds", 1, "--algorithm", "local", "--out", "compared", "--json"),
    )
    assert done.status == 0, done.err
    assert len(json.loads(done.out)["runs"]) == 1


def test_an_entry_point_names_its_ending(monkeypatch):
    with pytest.raises(
        PmtlError,
        match=rf"No reader knows the ending of .*: data is \.{next(iter(READERS))}.*reader=package",
    ):
        load("d.own")
    entry = EntryPoint("own", "own_reader:read_lines", "pmtl.readers")
    monkeypatch.setattr(plugins, "entry_points", lambda group: [entry] if "read" in group else [])
    assert load("d.own").fingerprint() == load("d.own:reader=own_reader:read_lines").fingerprint()


def test_a_file_that_an_option_names_is_found_from_another_folder(folder, monkeypatch):
    (folder / "names.json").write_text(json.dumps({f"k{k}": f"n{k}" for k in range(4)}))
    data = load("d.own:reader=own_reader:read_renamed,names=names.json")
    assert data.clients == ("n0", "n1", "n2", "n3")
    (folder / "other").mkdir()
    monkeypatch.chdir(folder / "other")
    assert load(data.source).fingerprint() == data.fingerprint()


def test_library_readers_have_names_too(folder):
    (folder / "d.txt").write_text("client,v,y\n" + "".join(f"a,{k},{k % 2}\n" for k in range(9)))
    assert load("d.txt:reader=csv").clients == ("a",)
    with pytest.raises(
        PmtlError, match=r"no reader 'cvs'.*Did you mean 'csv'.*package.module:Name"
    ):
        load("d.txt:reader=cvs")


def test_production_takes_a_reader_only_if_it_says_that_it_is_lenient(folder):
    with pytest.raises(PublicError, match="parameter lenient"):
        load("d.own:reader=own_reader:read_lines", production=True)
    assert load("d.own:reader=own_reader:read_production", production=True).m == 4
    (folder / "d.own").write_text("SECRET")
    with pytest.raises(PublicError) as told:
        load("d.own:reader=own_reader:read_production", production=True)
    assert "SECRET" not in str(told.value)


def test_what_is_wrong_with_it_is_a_sentence(folder):
    for name, words in {
        "read_nothing": "must return a dictionary with x, y and client",
        "read_uneven": "In d.own, as the reader read_uneven returned it: The clients are not",
        "a_value": "is not a function",
        "nobody": "has no 'nobody'",
        "read_lines,colour=red": "no option of d.own named 'colour'.*scale_by",
        "read_lines,client=none": r"read_lines failed on d.own \(KeyError: 'none'\)",
    }.items():
        with pytest.raises(PmtlError, match=words):
            load(f"d.own:reader=own_reader:{name}")
