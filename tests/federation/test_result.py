"""Afterwards, at the site: its folder serves every command, without the server."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from three_sites import SITES, coordinate, job

from pmtl.federation.limits import Limits, SiteSettings
from pmtl.federation.service import SiteService

SCHEMA = """\
version = 1
public = true
[columns.visit]
role = "dropped"
[columns.ward]
role = "client"
[columns.age]
kind = "number"
low = 0
high = 110
missing = "fill"
[columns.sex]
kind = "category"
categories = ["f", "m"]
missing = "indicator"
[columns.stay]
kind = "number"
missing = "indicator"
[columns.returns]
kind = "category"
role = "target"
categories = ["no", "yes"]
"""


def _tables(folder):
    """Visits with a category, empty cells and an id, and how they are described."""
    (folder / "schema.toml").write_text(SCHEMA)
    for number, site in enumerate(SITES):
        rng = np.random.default_rng(number)
        lines = ["visit,ward,age,sex,stay,returns"]
        for ward in range(3):
            for row in range(30):
                age, sex = rng.integers(18, 95), ("f", "m", "")[rng.integers(3)]
                stay = "" if rng.random() < 0.1 else f"{rng.gamma(2.0, 3.0):.1f}"
                returns = "yes" if age + rng.normal() * 10 > 55 else "no"
                lines.append(f"{site}{ward}{row},w{ward},{age},{sex},{stay},{returns}")
        (folder / f"{site}.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module", params=["experiment", "production"])
def folder(request, tmp_path_factory):
    """The folder of site b after a run, alone on a machine with its rows: the other sites' files
    and the server's are gone."""
    base = tmp_path_factory.mktemp(request.param)
    _tables(base)
    sites = {
        site: SiteService(
            site,
            SiteSettings(
                f"{base / site}.csv:schema={base}/schema.toml",
                base / "models" / site,
                limits=Limits(epsilon=8),
            ),
        )
        for site in SITES
    }
    mode = {"mode": request.param}
    if request.param == "production":
        mode |= {"seed": None, "ledger": "(at the server)"}
    coordinate(job(privacy={"epsilon": 8.0}, **mode), sites, base / "server")
    for other in ("server", "models/a", "models/c"):
        shutil.rmtree(base / other)
    for other in ("a.csv", "c.csv"):
        (base / other).unlink()
    return base / "models/b/r1"


def test_predict_for_one_client_and_for_all(folder, pmtl_command, tmp_path):
    new = tmp_path / "new.csv"
    new.write_text("visit,ward,age,sex,stay\nx1,w1,80,f,\nx2,w1,30,,4.5\n")
    for given in (("--client", "w1"), ()):
        done = pmtl_command("predict", folder, *given, "--data", new, "--out", tmp_path / "out.csv")
        assert done.status == 0, done.err
        lines = (tmp_path / "out.csv").read_text().splitlines()
        assert len(lines) == 3
        assert {line.split(",")[-3].strip('"') for line in lines[1:]} <= {"no", "yes"}


def test_evaluate_measures_the_sites_own_models(folder, pmtl_command, tmp_path):
    done = pmtl_command("evaluate", folder, "--json")
    assert done.status == 0, done.err
    assert json.loads(done.out)["test"]["personal"]["accuracy"] > 0.6
    table = tmp_path / "clients.csv"
    done = pmtl_command("evaluate", folder, "--per-client", "--out", table)
    assert done.status == 0, done.err
    assert {line.split(",")[0].strip('"') for line in table.read_text().splitlines()[1:]} == {
        "w0", "w1", "w2",
    }  # fmt: skip
    assert ("do not give them away" in done.err) == ("production" in str(folder))


def test_finetune_and_choose(folder, pmtl_command):
    done = pmtl_command("finetune", folder, "--method", "select")
    assert done.status == 0, done.err
    private = folder / "private" if (folder / "private").exists() else folder
    assert (private / "finetuned/select/finetuned.json").exists()
    done = pmtl_command("evaluate", private / "finetuned/select", "--json")
    assert done.status == 0, done.err


@pytest.mark.parametrize("to", ["onnx", "safetensors"])
def test_export_gives_the_answers_of_the_run(folder, pmtl_command, tmp_path, to):
    if to == "onnx":
        pytest.importorskip("onnx", reason="an extra: pip install 'pmtl[onnx]'")
    done = pmtl_command("export", folder, "--client", "w2", "--to", to, "--out", tmp_path / "out")
    assert done.status == 0, done.err
    assert "the answers are those of the run" in done.out


def test_report(folder, pmtl_command, tmp_path):
    pytest.importorskip("altair", reason="an extra: pip install 'pmtl[report]'")
    done = pmtl_command("report", folder, "--out", tmp_path / "report.html")
    assert done.status == 0, done.err
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "pooling" in page
