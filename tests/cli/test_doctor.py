"""`pmtl doctor`: what is there, what is missing, and how to get it."""

from __future__ import annotations

import json
import os
import sys
from importlib import metadata

import pytest

from pmtl.cli import doctor


def test_everything_is_reported_and_the_status_is_0(pmtl_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = pmtl_command("doctor", "--json")
    assert told.status == 0, told.err
    found = json.loads(told.out)
    versions = {one["name"]: one["version"] for one in found["packages"]}
    assert versions["torch"] == metadata.version("torch")
    assert {"numpy", "safetensors", "typer"} <= set(versions)
    assert found["devices"][0].startswith("cpu (")
    assert found["folder"] == {"path": str(tmp_path), "problem": None}
    assert found["problems"] == []
    assert list(tmp_path.iterdir()) == []
    shown = pmtl_command("doctor")
    assert shown.status == 0
    for words in (f"torch           {versions['torch']}", "Extras:", "can be written"):
        assert words in shown.out


def test_requirements_are_read_from_the_packages_own_metadata(monkeypatch):
    lines = [
        "numpy>=1.26",
        "dp-accounting<0.7,>=0.5",
        'onnx>=1.17; extra == "onnx"',
        "onnxruntime>=1.20 ; extra == 'onnx'",
        'pooch[progress]>=1.8; extra == "datasets"',
        'pmtl[onnx]; extra == "all"',
        'pytest>=8; extra == "dev"',
    ]
    monkeypatch.setattr(metadata, "requires", lambda name: lines)
    base, extras = doctor.requirements()
    assert base == ["numpy", "dp-accounting"]
    assert extras == {"onnx": ["onnx", "onnxruntime"], "datasets": ["pooch"]}


def test_a_missing_extra_is_named_with_its_command_and_is_no_error(pmtl_command, monkeypatch):
    wanted = ["numpy>=1.26", 'no-such-thing>=2; extra == "onnx"']
    monkeypatch.setattr(metadata, "requires", lambda name: wanted)
    shown = pmtl_command("doctor")
    assert shown.status == 0, shown.err
    assert "missing: no-such-thing" in shown.out
    assert "-m pip install 'pmtl[onnx]'" in shown.out


def test_a_missing_or_broken_base_is_an_error(pmtl_command, monkeypatch):
    monkeypatch.setattr(metadata, "requires", lambda name: ["no-such-thing", "tomli-w"])
    monkeypatch.setitem(sys.modules, "tomli_w", None)  # Importing it now fails.
    told = pmtl_command("doctor", "--json")
    assert told.status == 2
    assert "no-such-thing is not installed: run `pip install" in told.err
    assert "tomli-w cannot be imported" in told.err
    assert len(json.loads(told.out)["problems"]) == 2


def test_without_torch_there_is_no_device(monkeypatch):
    monkeypatch.setattr(metadata, "requires", lambda name: ["torch"])
    broken = {"name": "torch", "version": None, "problem": "is not installed"}
    monkeypatch.setattr(doctor, "package", lambda name: broken)
    assert doctor.examine()["devices"] == []


def test_a_folder_that_cannot_be_written_is_an_error(pmtl_command, tmp_path):
    refused = pmtl_command("doctor", "--folder", tmp_path / "absent")
    assert refused.status == 2
    assert "No run or ledger can be written" in refused.err
    assert "No such file" in refused.out


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_of_somebody_else_is_an_error(tmp_path):
    tmp_path.chmod(0o500)
    assert "denied" in str(doctor.writing_problem(tmp_path))
