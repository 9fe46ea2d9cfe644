"""The commands of a federation: what the page shows is understood, and mistakes are sentences."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

from pmtl.cli.app import app
from pmtl.cli.federation.site_file import write_site_file
from pmtl.errors import PmtlError

DOCS = Path(__file__).parents[3] / "docs"


def commands():
    pages = [DOCS / name for name in ("federation.md", "federation-guide.md")]
    blocks = [b for page in pages for b in page.read_text(encoding="utf-8").split("```bash\n")[1:]]
    return [line for block in blocks for line in block.split("```")[0].strip().splitlines()]


@pytest.mark.parametrize("line", commands())
def test_every_command_of_the_pages_is_understood(line):
    """`federation/nvflare/test_nvflare_processes.py` also runs those that start the federation."""
    program, *words = shlex.split(line)
    assert program == "pmtl"
    command = get_command(app)
    while hasattr(command, "commands"):  # A group.
        name, *words = words
        command = command.commands[name]
    assert command.make_context(name, words).params


@pytest.mark.parametrize(
    "name",
    [
        "provision",
        "add-site",
        "members",
        "renew",
        "server",
        "site",
        "run",
        "check",
        "status",
        "stop",
    ],
)
def test_help_has_an_example(pmtl_command, name):
    outcome = pmtl_command("federation", name, "--help")
    assert outcome.status == 0
    assert f"pmtl federation {name} " in outcome.out


@pytest.fixture
def kit(tmp_path):
    (tmp_path / "kit/startup").mkdir(parents=True)
    (tmp_path / "kit/local").mkdir()
    (tmp_path / "kit/startup/fed_client.json").write_text("{}")
    (tmp_path / "rows.csv").write_text("c,x,y\na,1,0\n")
    return tmp_path / "kit"


def test_a_sites_file_has_its_rows_its_models_and_its_limits(kit, tmp_path):
    limits = tmp_path / "limits.toml"
    limits.write_text("[limits]\nepsilon = 3\n")
    reading = {"client": "c", "target": "y", "schema": None}
    data = f"{tmp_path / 'rows.csv'}:validation=0"
    write_site_file(kit, data, reading, limits, None, one_client=True)
    written = tomllib.loads((kit / "local/pmtl-site.toml").read_text())
    assert written == {
        "site": {
            "data": f"{tmp_path / 'rows.csv'}:validation=0,client=c,target=y",
            "folder": str(kit / "models"),
            "one_client": True,
        },
        "limits": {"epsilon": 3},
    }
    write_site_file(kit, None, {"client": None}, None, None, one_client=False)
    assert tomllib.loads((kit / "local/pmtl-site.toml").read_text()) == written


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ((), "A site needs rows: give --data"),
        (("--target", "y"), "need --data"),
        (("--data", "none.csv"), "there is no such file"),
        (("--data", "rows.csv", "--schema", "none.toml"), "--schema none.toml: there is no such"),
        (("--data", "rows.csv", "--schema", "rows.csv"), "is not valid TOML"),
        (("--data", "rows.csv", "--limits", "none.toml"), "cannot be read"),
        (("--data", "rows.csv", "--limits", "rows.csv"), "is not valid TOML"),
        (("--data", "rows.csv", "--limits", "empty.toml"), "must have one section, [limits]"),
    ],
)
def test_a_sites_mistakes_are_sentences(pmtl_command, kit, monkeypatch, options, sentence):
    monkeypatch.chdir(kit.parent)
    (kit.parent / "empty.toml").write_text("")
    outcome = pmtl_command("federation", "site", kit, *options)
    assert outcome.status == 2
    assert sentence in outcome.err
    assert not (kit / "local/pmtl-site.toml").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("server", "none"), "There is no folder none"),
        (("server", "kit"), "is the kit of a site, and this command needs that of the server"),
        (("run", "kit"), "is the kit of a site, and this command needs that of the administrator"),
        (("run", "kit", "--name", "../x"), "is not a valid run name"),
        (("run", "kit", "--round-seconds", "0"), "must be a positive number"),
        (("run", "kit", "--mode", "prod"), "There is no mode 'prod'"),
        (("status", "local"), "There is no folder local"),
        (("stop", "kit"), "this command needs that of the administrator"),
    ],
)
def test_mistakes_are_sentences(pmtl_command, kit, monkeypatch, arguments, sentence):
    pytest.importorskip("nvflare", reason="NVFLARE is an extra: pip install 'pmtl[federation]'")
    monkeypatch.chdir(kit.parent)
    outcome = pmtl_command("federation", *arguments)
    assert outcome.status == 2
    assert sentence in outcome.err


def test_without_nvflare_a_sentence_says_what_to_install(pmtl_command, kit, monkeypatch):
    from importlib import metadata

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    outcome = pmtl_command("federation", "status", kit)
    assert outcome.status == 2
    assert "pip install 'pmtl[federation]'" in outcome.err


def test_limits_that_are_no_limits_are_refused(tmp_path, kit):
    file = tmp_path / "limits.toml"
    file.write_text("limits = 3\n")
    with pytest.raises(PmtlError, match="one section"):
        write_site_file(kit, str(tmp_path / "rows.csv"), {}, file, None, one_client=False)


@pytest.fixture
def server_kit(tmp_path):
    kit = tmp_path / "server"
    (kit / "startup").mkdir(parents=True)
    (kit / "local").mkdir()
    (kit / "startup/fed_server.json").write_text("{}")
    (kit / "local/pmtl-sites.json").write_text('["a", "b"]')
    return kit


def test_members_are_shown_and_changed(pmtl_command, server_kit):
    assert "The server lets in: a, b." in pmtl_command("federation", "members", server_kit).out
    given = ("--remove", "a", "--add", "c", "--add", "b")
    assert (
        "The server lets in: b, c." in pmtl_command("federation", "members", server_kit, *given).out
    )
    assert (server_kit / "local/pmtl-sites.json").read_text() == '["b", "c"]\n'


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (("--remove", "x"), "the server knows no such site"),
        (("--add", "../x"), "is not a valid site name"),
        (("--add", "A"), "is given twice"),
        (("--remove", "a", "--remove", "b"), "needs at least one site"),
    ],
)
def test_mistakes_about_members_change_nothing(pmtl_command, server_kit, given, sentence):
    outcome = pmtl_command("federation", "members", server_kit, *given)
    assert outcome.status == 2
    assert sentence in outcome.err
    assert (server_kit / "local/pmtl-sites.json").read_text() == '["a", "b"]'
