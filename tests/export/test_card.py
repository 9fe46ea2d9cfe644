"""The model card: front matter that Hugging Face reads, code that runs, words that are true."""

from __future__ import annotations

import json
import re

import pytest
import runs_to_export

import pmtl
from pmtl.export.formats import FORMATS


@pytest.fixture(scope="module")
def runs():
    return {
        "logistic": runs_to_export.run_of("logistic"),
        "linear": runs_to_export.run_of("linear"),
        "own layers": runs_to_export.run_of("own layers"),
    }


def parts(folder):
    """The front matter as values, and the sections by their headings."""
    head, body = (folder / "README.md").read_text(encoding="utf-8").split("---\n")[1:3]
    values = dict(line.split(": ", 1) for line in head.strip().splitlines())
    sections = re.split(r"^## (.+)$", body, flags=re.M)
    return (
        {name: json.loads(value) for name, value in values.items()},
        dict(zip(sections[1::2], sections[2::2], strict=True)),
        sections[0],
    )


@pytest.mark.parametrize(
    ("name", "to"),
    [*(("logistic", to) for to in FORMATS), ("linear", "torch"), ("own layers", "safetensors")],
)
def test_the_code_on_a_card_runs_in_its_folder(runs, name, to, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "out"
    pmtl.export_model(runs[name], folder, client="site 2", to=to)
    _, sections, _ = parts(folder)
    (code,) = re.findall(r"```python\n(.*?)```", sections["How to use it"], re.S)
    monkeypatch.chdir(folder)
    exec(compile(code, "README.md", "exec"), {})
    assert len(capsys.readouterr().out) > 20


def test_the_front_matter_and_the_sections(runs, tmp_path):
    pmtl.export_model(runs["logistic"], tmp_path / "a", client="site 1", licence="cc-by-4.0")
    pmtl.export_model(runs["linear"], tmp_path / "b", all_clients=True, to="torch")
    front, sections, top = parts(tmp_path / "a")
    assert front["license"] == "cc-by-4.0"
    assert front["library_name"] == "onnx"
    assert front["pipeline_tag"] == "tabular-classification"
    assert "differential-privacy" in front["tags"]
    assert front["metrics"] == ["accuracy"]
    assert "The personal model of client `site 1`" in top
    assert list(sections) == [
        *("Intended use", "How to use it", "Training data", "Evaluation", "Privacy", "Limits")
    ]
    assert str(runs["logistic"].privacy).strip() in sections["Privacy"]
    assert "**Private to this client.**" in sections["Privacy"]
    assert "its models are not private" in sections["Privacy"]  # An experiment.
    front, sections, top = parts(tmp_path / "b")
    assert front["license"] == "unknown"
    assert front["library_name"] == "pytorch"
    assert front["pipeline_tag"] == "tabular-regression"
    assert "The personal models of 3 clients" in top
    assert "Give each client its own file" in sections["Privacy"]


def test_names_that_are_markdown_stay_names(runs, tmp_path):
    pmtl.export_model(runs["logistic"], tmp_path / "a", client="site 1", to="safetensors")
    _, sections, _ = parts(tmp_path / "a")
    assert "`ill`, `née\\|'x'`, `well`" in sections["How to use it"]


def test_a_measured_run_shows_its_metrics_and_another_one_none(tmp_path):
    data = runs_to_export.federation(clients=6)
    run = runs_to_export.trained(data, out=tmp_path / "run")
    pmtl.export_model(run, tmp_path / "a", shared=True, to="safetensors")
    _, sections, _ = parts(tmp_path / "a")
    accuracy = run.evaluate()["test"]["personal"]["accuracy"]
    assert f"| personal accuracy | {accuracy:.4g} |" in sections["Evaluation"]
    assert "published by the run" in sections["Intended use"]
    assert "scale `feature 0`, `feature 1`" in sections["How to use it"]
    memory = runs_to_export.trained(data)
    pmtl.export_model(memory, tmp_path / "b", shared=True, to="safetensors")
    assert "Not measured" in parts(tmp_path / "b")[1]["Evaluation"]
