"""The files in deploy/ start commands that exist, and the tools that read them understand them."""

from __future__ import annotations

import configparser
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from pmtl.cli.federation.commands import app

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))


def _understood(name, arguments):
    assert get_command(app).commands[name].make_context(name, list(arguments)).params["kit"]


def _service(unit):
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str
    parser.read(unit)
    return parser["Service"]


def test_there_are_units_for_both_sides():
    assert [unit.name for unit in UNITS] == [
        "pmtl-federation-server.service",
        "pmtl-federation-site.service",
    ]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_starts_a_command_and_lets_it_write_to_its_kit_alone(unit):
    service = _service(unit)
    program, group, name, *arguments = shlex.split(service["ExecStart"])
    assert (Path(program).name, group) == ("pmtl", "federation")
    _understood(name, arguments)
    assert service["ReadWritePaths"] == arguments[0]
    assert service["ProtectSystem"] == "strict"
    assert int(service["TimeoutStopSec"]) > 15, "a round may end"


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_understands_a_unit(unit, tmp_path):
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd-analyze is not installed")
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/pmtl/bin/pmtl", sys.executable))
    done = subprocess.run([tool, "verify", str(copy)], capture_output=True, text=True, check=False)
    mine = [line for line in done.stderr.splitlines() if unit.name in line]
    assert mine == []


def test_the_compose_file_starts_the_commands():
    yaml = pytest.importorskip("yaml", reason="comes with pmtl[federation]")
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert set(services) == {"server", "site"}
    for name, service in services.items():
        command, *arguments = service["command"]
        assert command == name
        _understood(command, arguments)
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
    assert "ports" not in services["site"], "sites open no port"


def test_compose_understands_the_file():
    tool = shutil.which("docker-compose")
    if tool is None:
        pytest.skip("docker-compose is not installed")
    command = [tool, "-f", str(DEPLOY / "compose.yaml"), "config", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_image_has_what_a_federation_needs():
    lines = (DEPLOY / "Dockerfile").read_text()
    assert '"/source[federation]"' in lines
    assert 'ENTRYPOINT ["pmtl", "federation"]' in lines
    assert "USER pmtl" in lines
