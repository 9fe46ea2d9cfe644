"""`pmtl report`: what the page says, of whom it keeps silent, and its mistakes."""

from __future__ import annotations

import json
import re
import shutil
import sys
from html import unescape

import numpy as np
import pytest

import pmtl
from pmtl.errors import PmtlError
from pmtl.personalize.finetuning import finetune
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.statement import text as sentences
from pmtl.privacy.statement.statement import make_statement
from pmtl.report.page.page import write_report
from pmtl.report.page.part import experiment_part
from pmtl.report.page.privacy import caution, epsilon_by_round, paragraphs, quotes
from pmtl.runs.result import load_run


def words(html: str) -> str:
    """The text of a page without its scripts and style."""
    text = re.sub(r"<(script|style)\b.*?</\1>", " ", html, flags=re.S)
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", text)))


def specs(html: str) -> dict:
    return json.loads(re.search(r'id="charts">(.*?)</script>', html, re.S)[1])


@pytest.fixture(scope="module")
def page(made, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report([made.experiment], path)
    return path.read_text(encoding="utf-8")


def test_the_verdict_comes_first_and_is_the_runs(made, page):
    run = load_run(made.experiment)
    head, _, rest = pmtl.verdict(run).sentence.removeprefix("Verdict: ").partition(". ")
    text = words(page)
    assert f"{head[0].upper()}{head[1:]}. {rest}" in text
    headings = re.findall(r"<h3[^>]*>(.*?)</h3>", page)
    assert headings[:3] == ["Verdict", "Privacy", "Rounds"]


def test_the_privacy_part_quotes_the_number_and_repeats_the_statement(made, page):
    run = load_run(made.experiment)
    text = words(page)
    assert f"Quote the first number: ε = {run.privacy.epsilon:.4g}" in text
    assert f"δ = {run.privacy.delta:.3g}" in text
    assert "A blind guess is right 50% of the time" in text
    assert all(sentence in text for sentence in run.privacy.not_covered)
    assert run.privacy.unit[1:] in text


def test_a_run_whose_noise_the_sites_drew_is_not_called_seeded():
    plan = PrivacyPlan(12, 12, "full", 1.0, 0.5, 3, 1e-3)
    statement = make_statement(plan, shares=True, personal=True, hardened=True, sites=(3, 1))
    shown = dict(paragraphs(statement))
    assert shown["What kind of run this was"] == sentences.EXPERIMENT_IN_SHARES
    assert shown["The server"] == sentences.hidden(statement.hidden)
    assert "seeded" not in caution(statement)


def test_epsilon_grows_with_rounds_to_the_statements(made):
    statement = load_run(made.experiment).privacy
    rows = epsilon_by_round(statement)
    assert [row["round"] for row in rows] == [1, 2, 3, 4]
    found = [row["epsilon"] for row in rows]
    assert found == sorted(found)
    assert found[-1] == pytest.approx(statement.epsilon)
    assert found[0] < statement.epsilon / 1.5


def test_the_charts_have_the_runs_numbers(made, page):
    run = load_run(made.experiment)
    values = [row for spec in specs(page).values() for row in _values(spec)]
    losses = [row["loss"] for row in values if row.get("line") == "training rows"]
    assert losses == pytest.approx([line["train_loss"] for line in run.metrics])
    exact = run.client_losses("validation")
    shown = {row["client"]: row for row in values if "client" in row}
    there = np.flatnonzero(np.isfinite(exact["personal"]))
    assert len(shown) == len(there)
    for k in there:
        row = shown[run.clients[k]]
        assert row["ours"] == pytest.approx(exact["personal"][k], rel=1e-4)
        assert row["other"] == pytest.approx(exact["shared"][k], rel=1e-4)


def _values(spec: dict) -> list[dict]:
    found = list(spec.get("data", {}).get("values", []))
    for data in spec.get("datasets", {}).values():
        found += data
    for layer in spec.get("layer", []):
        found += _values(layer)
    return found


def test_names_cannot_become_part_of_the_page(page):
    for tag in ('<script>alert("x")', "<img src=x>", "</script><b>", "<b>&amp;"):
        assert tag not in page
    assert page.count("<script") == page.count("</script>") == 2
    assert 'alert("x")' in words(page), "the name is there, as text"
    assert "{{ 7 * 7 }}" in words(page)


def test_the_page_forbids_everything_from_outside(page):
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert unescape(policy).startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in policy
    assert re.findall(r'(?:src|href)="(?!#|data:,)[^"]*"', words_less(page)) == []


def words_less(html: str) -> str:
    """The markup without scripts, style and text."""
    text = re.sub(r"<(script|style)\b.*?</\1>", " ", html, flags=re.S)
    return " ".join(re.findall(r"<[^>]*>", text))


def test_settings_data_and_commands_are_there(made, page):
    text = words(page)
    assert "privacy.rounds 4" in text
    assert "samples 336" in text
    assert f"pmtl train --config {made.experiment}/config.toml" in text
    assert "With only 24 clients" in text


def test_settings_that_were_changed_after_the_run_are_not_shown(made, tmp_path):
    changed = tmp_path / "changed"
    shutil.copytree(made.experiment, changed)
    file = changed / "config.toml"
    file.write_text(file.read_text().replace("rounds = 4", "rounds = 77"))
    write_report([changed], tmp_path / "changed.html")
    html = (tmp_path / "changed.html").read_text(encoding="utf-8")
    assert "rounds 4" in words(html)
    assert "rounds 77" not in words(html)
    assert "rounds = 77" not in html


def test_pooling_has_releases_and_the_losses_at_the_end(made, tmp_path):
    write_report([made.pooled], tmp_path / "p.html")
    html = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert "ε against releases" in html
    assert "training rows" not in words(html), "its rounds have no training loss"
    run = load_run(made.pooled)
    exact = run.evaluate()["validation"]
    bars = {
        row["view"]: row["loss"]
        for s in specs(html).values()
        for row in _values(s)
        if "view" in row
    }
    assert bars["training alone"] == pytest.approx(exact["alone"]["loss"])
    assert "training alone" in specs(html)["chart-3"]["layer"][1]["encoding"]["x"]["title"]


def test_production_is_written_from_the_public_part_alone(made, tmp_path):
    copy = tmp_path / "production/public"
    shutil.copytree(made.production / "public", copy)
    write_report([made.production], tmp_path / "a.html")
    write_report([copy], tmp_path / "b.html")
    html = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert html == (tmp_path / "b.html").read_text(encoding="utf-8")
    for marker in ("MARKER", "alert(", "img src=x", "7 * 7", str(tmp_path)):
        assert marker not in html.replace(_script(html), "")
    text = words(html)
    assert "What single clients gain is private" in text
    assert "production run" in text
    released = load_run(made.production).released()
    shown = [row for s in specs(html).values() for row in _values(s) if "loss" in row]
    found = {(row["round"], row["line"]): row["loss"] for row in shown}
    assert found == {
        (line["round"], f"validation, {view}"): line[view]["loss_mean"]
        for line in released
        for view in ("personal", "shared")
    }
    assert any(found.values()), "noise makes some of them 0, not all"
    assert quotes(load_run(made.production).privacy)[0][1].endswith("by their ledger")


def _script(html: str) -> str:
    return re.search(r"<script>(.*?)</script>", html, re.S)[1]


def test_a_production_runs_object_and_its_private_results_show_nothing_more(made, tmp_path):
    run = load_run(made.production)
    write_report([run], tmp_path / "a.html")
    write_report([made.production], tmp_path / "b.html")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    tuned = finetune(run, "mean", steps=1)
    with pytest.raises(PmtlError, match="not public"):
        write_report([tuned], tmp_path / "c.html")
    with pytest.raises(PmtlError, match="only its public part may be shown"):
        experiment_part(run)
    with pytest.raises(PmtlError, match="only the private part"):
        write_report([made.production / "private"], tmp_path / "c.html")
    assert not (tmp_path / "c.html").exists()


def test_several_runs_and_a_comparison_are_set_side_by_side(made, tmp_path, pmtl_command):
    out = tmp_path / "all.html"
    runs = (made.experiment, made.pooled, made.production, made.comparison)
    done = pmtl_command("report", *runs, "--out", out, "--json")
    assert done.status == 0, done.err
    told = json.loads(done.out)
    assert told["bytes"] == out.stat().st_size < 2e6
    assert told["runs"][:3] == ["experiment", "pooled", "production"]
    html = out.read_text(encoding="utf-8")
    text = words(html)
    assert "The runs side by side" in text
    assert "These runs have different data" in text, "what a production run had is not known"
    results = json.loads((made.comparison / "results.json").read_text())
    assert results["verdict"]["sentence"].split("\n")[0] in text
    rows = [row for s in specs(html).values() for row in _values(s) if "method" in row]
    # The chart has one line for each method, with the setting that was chosen for it.
    pmtl_at_8 = next(r for r in rows if r["method"] == "pmtl" and r["epsilon"] == 8.0)
    entry = next(e for e in results["chosen"] if e["method"] == "pmtl" and e["epsilon"] == 8.0)
    assert "pmtl, best of 2" in text
    assert "pmtl:lam=1 " in text, "the table has all settings"
    assert pmtl_at_8["score"] == entry["test_personal"]["accuracy"]["mean"]
    assert any(row["method"] == "local" and row["epsilon"] is None for row in rows)


def test_the_page_is_made_without_the_data_and_says_so(made, tmp_path, small):
    pmtl.train(small, algorithm="fedavg", privacy={"rounds": 1}, out=tmp_path / "run")
    write_report([tmp_path / "run"], tmp_path / "a.html")
    text = words((tmp_path / "a.html").read_text(encoding="utf-8"))
    assert "was trained on data from a Python program" in text
    assert "repeat it there" in text
    write_report([load_run(tmp_path / "run", data=small)], tmp_path / "b.html")
    text = words((tmp_path / "b.html").read_text(encoding="utf-8"))
    assert "there is nothing to compare" in text
    assert "samples 168" in text


@pytest.mark.parametrize("algorithm", ["local", "pmtl"])
def test_nothing_spent_and_no_privacy_are_quoted(small, tmp_path, algorithm):
    privacy = {"epsilon": float("inf"), "rounds": 1}
    run = pmtl.train(small, algorithm=algorithm, privacy=privacy)
    write_report([run], tmp_path / "a.html")
    text = words((tmp_path / "a.html").read_text(encoding="utf-8"))
    expected = {"local": "ε = 0 Nothing left a client.", "pmtl": "NOT PRIVATE"}[algorithm]
    assert f"Quote the first number: {expected}" in text


def test_a_finetuned_result_has_a_page(made, tmp_path, pmtl_command):
    done = pmtl_command("finetune", made.experiment, "--method", "mean", "--steps", 2)
    assert done.status == 0, done.err
    tuned = next((made.experiment / "finetuned").iterdir())
    assert pmtl_command("report", tuned, "--out", tmp_path / "t.html").status == 0
    text = words((tmp_path / "t.html").read_text(encoding="utf-8"))
    assert f"experiment, {tuned.name}" in text
    assert "finetune.method mean" in text
    assert "pmtl finetune" in text


def test_mistakes_are_sentences(made, tmp_path, pmtl_command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    unfinished = tmp_path / "unfinished"
    shutil.copytree(made.production, unfinished)
    (unfinished / "public/privacy.json").unlink()
    (tmp_path / "a.html").mkdir()
    cut = tmp_path / "cut"
    cut.mkdir()
    (cut / "comparison.json").write_text("{}")
    damaged = tmp_path / "damaged"
    shutil.copytree(made.production / "public", damaged)
    statement = damaged / "privacy.json"
    statement.write_text(statement.read_text().replace("production", "Production", 1))
    for arguments, sentence in {
        ("nowhere",): "There is no run at nowhere",
        (made.experiment, "--out", "report.pdf"): "does not end in .html",
        (made.experiment, "--out", "missing/folder/r.html"): "There is no folder missing/folder",
        (made.experiment, "--out", "a.html"): "a.html is a folder",
        (unfinished,): "is not finished: continue it with `pmtl resume",
        (cut,): "is not finished",
        (damaged,): "privacy.json is damaged",
        (tmp_path,): "is not a run of pmtl",
    }.items():
        done = pmtl_command("report", *arguments)
        assert done.status == 2, arguments
        assert sentence in done.err.replace("\n", " "), done.err
        assert "Traceback" not in done.err
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("name", ["altair", "vl_convert"])
def test_a_missing_extra_is_a_sentence(made, tmp_path, monkeypatch, name):
    from pmtl.report.page import page

    page._script.cache_clear()
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(PmtlError, match=r"pip install 'pmtl\[report\]'"):
        write_report([made.production], tmp_path / "a.html")
