"""The README tells the truth: its code runs, its commands exist, its numbers come from commands."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from pathlib import Path

import pytest

import pmtl
from pmtl.cli import example

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


def marked(name: str) -> str:
    return README.split(f"<!-- {name} -->")[1].split(f"<!-- /{name} -->")[0].strip()


def test_the_python_code_works_as_pasted(capsys):
    (code,) = blocks("python")
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    accuracy, epsilon = map(float, capsys.readouterr().out.split())
    assert accuracy > 0.8
    assert 1.99 < epsilon <= 2
    assert len([line for line in code.splitlines() if line.strip()]) <= 10


def test_the_two_commands_come_first():
    first = blocks("bash")[0].split("\n")
    assert [line.split("#")[0].strip() for line in first if line] == ["make demo", "make test"]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    assert {"demo", "test"} <= set(targets)
    assert "make test" in (ROOT / ".ci/run").read_text()


def test_the_commands_work_in_the_order_they_are_shown(tmp_path, monkeypatch, pmtl_command):
    """With fewer made-up hospitals than a reader has, to save time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(example, "HOSPITALS", 80)
    monkeypatch.setattr(example, "ROWS", 12)
    for line in "".join(blocks("bash")[1:]).splitlines():
        command = shlex.split(line, comments=True)[1:]
        done = pmtl_command(*command)
        if command[0] == "resume":
            assert "nothing left to resume" in done.err
        else:
            assert done.status == 0, (line, done.err)
    new = len(Path("new.csv").read_text().splitlines())
    assert len(Path("answers.csv").read_text().splitlines()) == new > 1


def test_the_privacy_table_is_what_the_command_prints(pmtl_command):
    page = (ROOT / "docs/explanations/sampling.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^\$ (pmtl privacy .*)$", page, re.M)
    report = json.loads(pmtl_command(*shlex.split(line)[1:], "--json").out)
    table = page.split("<!-- privacy -->")[1].split("<!-- /privacy -->")[0]
    numbers = [report["epsilon"], *(report["also"][key] for key in ("outsiders", "authors"))]
    for number in numbers:
        assert f"| {number:.2f} |" in table


def test_it_fits_two_screens():
    assert len(README.splitlines()) <= 120


def test_the_accounting_table_is_what_the_commands_print(pmtl_command):
    text = (ROOT / "docs/privacy.md").read_text(encoding="utf-8")
    table = text.split("<!-- accounting -->")[1].split("<!-- /accounting -->")[0]
    rows = [line.split("|")[2:5] for line in table.strip().splitlines()[2:]]
    assert len(rows) == 7
    for column, m in enumerate((205, 400, 515)):
        options = ["--clients", m, "--cohort", 100, "--clip", 1, "--noise", 0.1, "--rounds", 100]
        options = ["privacy", "epsilon", *options, "--delta", 1 / m, "--json"]
        coins = json.loads(pmtl_command(*options).out)
        fixed = json.loads(pmtl_command(*options, "--sampling", "fixed").out)
        numbers = [
            coins["also"]["authors"],
            coins["also"]["zero_out"],
            coins["epsilon"],
            fixed["also"]["outsiders"],
            fixed["epsilon"],
            coins["also"]["full_participation"],
            coins["also"]["paper_theorem_1"],
        ]
        assert [f"{number:.4g}" for number in numbers] == [row[column].strip() for row in rows]


def test_the_demo_table_is_what_the_demo_prints():
    """Two of its cells are run again with one seed, and lie within four deviations."""
    data = re.search(r"^DEMO := (\S+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)[1]
    lines = re.findall(r"^\| (\w+)[^|]*\|(.*±.*)$", marked("demo"), re.M)
    rows = {name: re.findall(r"(\d\.\d+) ± (\d\.\d+)", cells) for name, cells in lines}
    assert list(rows) == ["pooling", "pmtl", "ditto", "fedavg", "local"]
    assert f"{pmtl.load(data).m} clients" in README.split("<!-- demo -->")[0].split("make demo")[-1]
    # What validation rows chose in `make demo`.
    chosen = {"pooling": ("pooling", {}), "ditto": ("ditto:lam=0.3", {"lr": 0.3})}
    for method, column, epsilon in (("pooling", 1, 2.0), ("ditto", 2, 8.0)):
        # All methods of a comparison read the data as pooling does.
        federation = pmtl.load(data).scaled()
        algorithm, local = chosen[method]
        run = pmtl.train(
            federation, algorithm=algorithm, local=local, privacy=epsilon, evaluate_every=0
        )
        accuracy = run.evaluate()["test"]["personal"]["accuracy"]
        mean, deviation = map(float, rows[method][column])
        assert abs(accuracy - mean) <= 4 * deviation + 0.002


def test_the_demo_gives_every_method_a_grid_and_its_table_the_price_of_choosing(pmtl_command):
    demo = re.search(r"^demo:.*?\n\n", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M | re.S)
    grids = dict(re.findall(r"--grid (\S+)=(\S+)", demo[0]))
    sizes = {name: len(values.split(",")) for name, values in grids.items()}
    assert sizes["pmtl:lam"] == sizes["ditto:lam"]
    tried = {"pmtl": sizes["lr"] * sizes["pmtl:lam"], "fedavg": sizes["lr"], "local": sizes["lr"]}
    table = marked("demo")
    for method, count in (tried | {"ditto": tried["pmtl"]}).items():
        assert f"| {method}, best of {count} |" in table
    options = ["--candidates", tried["pmtl"], "--clients", 400, "--rounds", 20, "--json"]
    prices = [
        json.loads(pmtl_command("privacy", "selection", "--epsilon", epsilon, *options).out)
        for epsilon in (0.5, 2, 8)
    ]
    shown = ", ".join(f"{price['publish_best']:.4g}" for price in prices)
    (line,) = (line for line in table.splitlines() if line.startswith("| ditto"))
    assert line.endswith(f"| {shown} |")


@pytest.mark.parametrize(
    "document",
    [
        path.relative_to(ROOT).as_posix()
        for path in (*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md")))
    ],
)
def test_links_lead_somewhere(document):
    path = ROOT / document
    made = (ROOT / "website/hooks.py").read_text(encoding="utf-8")  # pages without a file
    for target in re.findall(r"\]\(([^)#\s]+)", path.read_text(encoding="utf-8")):
        name = os.path.relpath(path.parent / target, ROOT / "docs")
        assert (path.parent / target).exists() or f'"{name}"' in made, target
    for target in re.findall(r"`((?:src|tests|docs)/[\w./-]+)`", path.read_text(encoding="utf-8")):
        assert (ROOT / target).exists(), target


def test_the_odds_in_plain_words_are_what_epsilon_means():
    text = (ROOT / "docs/privacy-plain.md").read_text(encoding="utf-8")
    rows = re.findall(r"\| ([\d.]+) \| ([\d.,]+) to 1 \| ([\d.]+)% \|", text)
    assert len(rows) == 6
    for epsilon, odds, right in rows:
        factor = math.exp(float(epsilon))
        assert float(odds.replace(",", "")) == pytest.approx(factor, rel=0.03)
        assert float(right) == pytest.approx(100 * factor / (1 + factor), abs=0.5)
