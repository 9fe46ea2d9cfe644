"""Every model of the library, and models of one's own, in every format: the same answers."""

from __future__ import annotations

import io
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import runs_to_export
import torch
from at_length import at_length
from safetensors.torch import load
from torch import nn

import pmtl
from pmtl.export.formats import FORMATS
from pmtl.models import MODELS

#: Models that take seconds, of whose kind others are tried always.
LONG = {"celeba_cnn", "hog with uneven cells"}


@pytest.fixture(
    scope="module", params=at_length(runs_to_export.RUNS, lambda name: name not in LONG)
)
def run(request):
    return runs_to_export.run_of(request.param)


def test_every_model_of_the_library_is_tried():
    assert set(MODELS) <= set(runs_to_export.RUNS)


@pytest.mark.parametrize("to", FORMATS)
def test_an_export_answers_like_the_run(run, to, tmp_path):
    done = pmtl.export_model(run, tmp_path / "out", client="site 1", to=to)
    content = (tmp_path / "out" / done.models["site 1"]).read_bytes()
    random = np.random.default_rng(8)
    for count in (1, 2, 7):  # Any number of rows.
        rows = random.uniform(0, 6, (count, *run.facts.input_shape)).astype(np.float32)
        rows = rows / 6 if run.facts.pixels else rows
        answers = outside(content, to, rows, run)
        assert np.allclose(answers[0], run.predict("site 1", rows), rtol=1e-4, atol=1e-5)
        if run.facts.task != "regression":
            assert np.allclose(answers[1], run.predict_proba("site 1", rows), atol=1e-5)
        if to == "onnx" and run.facts.labels is not None:
            named = [run.facts.labels[place] for place in run.predict("site 1", rows)]
            assert answers[2].tolist() == named
    about = runs_to_export.read_about(content, to)
    assert about["private_to"] == "site 1"
    assert about["task"] == run.facts.task
    assert about["epsilon"] == run.privacy.epsilon


def outside(content, to, rows, run):
    """The answers of a file, by nothing of pmtl's export."""
    if to == "onnx":
        onnx.checker.check_model(onnx.load_from_string(content), full_check=True)
        return onnxruntime.InferenceSession(content).run(None, {"rows": rows})
    if to == "torch":
        made = torch.export.load(io.BytesIO(content)).module()
        return [value.numpy() for value in made(torch.from_numpy(rows))]
    weights, module = load(content), run.personal("site 1")
    network = module[1] if run.facts.scaled else module
    for part in network.parameters():
        part.data.zero_()
    named = {name[6:]: value for name, value in weights.items() if name.startswith("model.")}
    network.load_state_dict(named)
    if run.facts.scaled:
        scale = {name[6:]: value for name, value in weights.items() if name.startswith("scale.")}
        module[0].load_state_dict(scale)
    with torch.no_grad():
        outputs = module(torch.from_numpy(rows))
    if run.facts.task == "regression":
        return [outputs.numpy()]
    if run.facts.task == "multilabel":
        return [(outputs > 0).numpy(), outputs.sigmoid().numpy()]
    return [outputs.argmax(-1).numpy(), outputs.softmax(-1).numpy()]


@pytest.mark.parametrize("to", ["onnx", "torch"])
def test_a_file_names_no_place_of_this_machine(to, tmp_path):
    run = runs_to_export.run_of("own layers")
    done = pmtl.export_model(run, tmp_path / "out", client="site 1", to=to)
    content = (tmp_path / "out" / done.models["site 1"]).read_bytes()
    for word in (b"runs_to_export.py", b"answering.py", b"site-packages", bytes(tmp_path)):
        assert word not in content


class Stubborn(nn.Module):
    """Reads its numbers as Python ones, which no graph can."""

    def __init__(self, input_shape, outputs):
        super().__init__()
        self.head = nn.Linear(input_shape[0], outputs)

    def forward(self, x):
        if not torch.compiler.is_exporting():
            return self.head(x)
        raise NotImplementedError("This layer cannot be traced.\nAnd more.")


@pytest.mark.parametrize("to", ["onnx", "torch"])
def test_a_model_that_cannot_be_traced_is_a_sentence(to, tmp_path):
    run = runs_to_export.trained(runs_to_export.federation(), Stubborn, "pmtl")
    with pytest.raises(pmtl.PmtlError, match=r"cannot be exported to .*use --to safetensors"):
        pmtl.export_model(run, tmp_path / "out", client="site 1", to=to)
    assert list(tmp_path.iterdir()) == []
    done = pmtl.export_model(run, tmp_path / "out", client="site 1", to="safetensors")
    assert done.largest_difference == 0


@pytest.mark.parametrize("package", ["onnx", "onnxruntime", "onnxscript"])
def test_without_the_extra_a_sentence_says_how_to_get_it(package, tmp_path, monkeypatch):
    run = runs_to_export.run_of("logistic")
    monkeypatch.setitem(sys.modules, package, None)  # Importing it now fails.
    with pytest.raises(pmtl.PmtlError, match=rf"'{package}'.*pip install 'pmtl\[onnx\]'"):
        pmtl.export_model(run, tmp_path / "out", client="site 1", to="onnx")
    assert list(tmp_path.iterdir()) == []
