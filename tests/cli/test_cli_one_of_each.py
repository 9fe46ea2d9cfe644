"""With one client, one column and one round, sentences are in the singular."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

#: "1 of 1 clients" is right, and so is "clients 1" of a table.
PLURAL = re.compile(
    r"(?<![\w.,=:/–-])(?<!of )(?<!× )1 (clients|rows|rounds|columns|features|times|numbers|models|"
    r"runs|weights|intercepts|evaluations|shared numbers|published models)\b(?! =)"
)
TABLE = ("--data", "one.csv", "--client-column", "who", "--target", "goal")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"a,{number},{number * 0.7}\n" for number in range(12))
    Path("one.csv").write_text("who,v,goal\n" + rows)


@pytest.mark.parametrize(
    "command",
    [
        ("data", "schema", "one.csv", "--client-column", "who", "--target", "goal", "--out", "s"),
        ("ledger", "create", "l.db", *TABLE),
        ("plan", "--clients", 1, "--columns", 1, "--rounds", 1),
        ("privacy", "epsilon", "--clients", 1, "--rounds", 1, "--noise", 1),
        ("train", *TABLE, "--out", "run"),
        ("compare", *TABLE, "--seeds", 1, "--epsilon", 2, "--scale", "client", "--out", "c"),
    ],
)
def test_a_command(command, pmtl_command):
    done = pmtl_command(*command)
    assert done.status == 0, done.err
    assert PLURAL.findall(" ".join(f"{done.out} {done.err}".split())) == []


def test_a_run_and_what_is_made_of_it(pmtl_command):
    options = ("--share", "subspace:k=1", "--rounds", 1, "--steps", 1, "--metrics", 0.5)
    assert pmtl_command("train", *TABLE, *options, "--out", "run").status == 0
    Path("new.csv").write_text("who,v\nb,1\n")
    for command in (
        ("report", "run", "--out", "run.html"),
        ("predict", "run", "--data", "new.csv", "--skip", "--out", "new-predicted.csv"),
        ("evaluate", "run"),
        ("export", "run", "--client", "a", "--to", "safetensors", "--out", "exported"),
    ):
        done = pmtl_command(*command)
        assert done.status == 0, done.err
        assert PLURAL.findall(" ".join(f"{done.out} {done.err}".split())) == []
    for file in [*Path("run").glob("*.txt"), *Path().rglob("*.md"), Path("run.html")]:
        text = re.sub(r"<(script|style).*?</\1>|<[^>]+>", " ", file.read_text(), flags=re.DOTALL)
        assert PLURAL.findall(" ".join(text.split()).replace("clients 1 ", "")) == [], file
