"""Progress and results in a notebook, executed by a real kernel."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pmtl.views.progress import progress_bar

SOURCE = Path(__file__).parents[1] / "src"
TRAIN = """
import pmtl
run = pmtl.train("synthetic:clients=8", algorithm="pmtl", privacy={"rounds": 3}, progress=True)
run
"""
FRAME = 'run.to_frame("clients")'


def test_a_notebook_trains_with_a_bar_and_shows_the_run(monkeypatch, tmp_path):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])
    )
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    cells = [nbformat.v4.new_code_cell(text) for text in (TRAIN, FRAME)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, timeout=200, kernel_name="python3").execute()
    # Warnings are shown, too, as a stream.
    bar, run = (one for one in notebook.cells[0].outputs if one.output_type != "stream")
    assert bar.output_type == "display_data"
    assert 'aria-label="training" value="3" max="3"' in bar.data["text/html"]
    assert "3/3 validation accuracy" in bar.data["text/html"]
    assert run.data["text/plain"].startswith("<Run of pmtl")
    assert "<strong>Run of pmtl" in run.data["text/html"]
    frame = notebook.cells[1].outputs[0]
    assert "loss_personal" in frame.data["text/plain"]
    assert frame.data["text/html"].count("<tr>") == 8


def test_outside_of_a_notebook_the_bar_is_on_standard_error(capsys):
    with progress_bar("counting", 2) as bar:
        bar.advance()
        bar.advance("done <b>")
    shown = capsys.readouterr()
    assert "counting" in shown.err
    assert "2/2" in shown.err
    assert shown.out == ""


def test_only_a_bar_with_a_total_stays(capsys):
    with progress_bar("pricing", None):
        pass
    assert "pricing" not in capsys.readouterr().err
    with progress_bar("predicting", None) as bar:
        bar.expect(1)
        bar.advance()
    assert "1/1" in capsys.readouterr().err


def test_what_a_bar_says_is_escaped(monkeypatch):
    shown = []

    def display(html, display_id):
        shown.append(html)
        return SimpleNamespace(update=shown.append)

    monkeypatch.setattr("pmtl.views.progress.notebook", lambda: True)
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(HTML=str, display=display))
    with progress_bar("<i>", 4) as bar:
        bar.advance("<b>")
    assert shown[-1] == (
        '<div>&lt;i&gt; <progress aria-label="&lt;i&gt;" value="1" max="4"></progress> 1/4 '
        "&lt;b&gt;</div>"
    )
    with progress_bar("<i>", None) as bar:
        bar.advance()
    assert '"></progress> 1 ' in shown[-1]
