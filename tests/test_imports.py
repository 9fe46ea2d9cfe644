"""What may not be imported, so that starting is quick and training needs little."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Block())
"""


def run(code: str, *blocked: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", BLOCK.format(names=set(blocked) or "()") + code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


COMMANDS = [
    ["--help"],
    ["train", "--help"],
    ["finetune", "--help"],
    ["federation", "--help"],
    ["federation", "run", "--help"],
    ["privacy", "epsilon", "--clients", "50", "--noise", "0.1", "--rounds", "3"],
    ["privacy", "noise", "--clients", "50", "--cohort", "9", "--epsilon", "1", "--rounds", "3"],
    ["plan", "--clients", "50", "--columns", "9", "--cohort", "9", "--epsilon", "1"],
    ["plan", "--clients", "50", "--model", "mlp", "--columns", "9", "--json"],
    [
        *("privacy", "selection", "--clients", "50", "--cohort", "9", "--noise", "1"),
        *("--rounds", "3", "--candidates", "4"),
    ],
]


def test_help_privacy_and_plan_never_import_torch():
    """All in one process: a module that cannot be imported is looked for again each time."""
    code = f"""
from pmtl.cli.app import main
for number, arguments in enumerate({COMMANDS!r}):
    print("command", number, flush=True)
    sys.argv = ["pmtl", *arguments]
    try:
        main()
    except SystemExit as exit:
        assert not exit.code, (arguments, exit.code)
"""
    parts = re.split(r"^command \d+$", run(code, "torch"), flags=re.M)[1:]
    assert len(parts) == len(COMMANDS)
    for arguments, said in zip(COMMANDS, parts, strict=True):
        assert said.strip(), arguments


def test_import_pmtl_is_light():
    heavy = ("torch", "scipy", "numpy", "pydantic", "typer", "rich", "dp_accounting", "pyarrow")
    assert run("import pmtl; print(pmtl.__version__)", *heavy)


def test_training_needs_neither_dp_accounting_nor_pydantic_nor_typer(tmp_path):
    """A machine with torch, NumPy, SciPy and safetensors trains; ε is then computed elsewhere."""
    code = f"""
import pmtl
run = pmtl.train("synthetic:clients=12", privacy=dict(noise=0.1, rounds=2, cohort=4),
                 out={str(tmp_path / "run")!r})
assert run.privacy.epsilon is None, run.privacy.epsilon
assert "not computed here" in str(run.privacy)
full = pmtl.train("synthetic:clients=12", privacy=dict(epsilon=2.0, rounds=2))
print(pmtl.finetune(full, "ewc", steps=1).privacy.epsilon)
"""
    blocked = ("dp_accounting", "pydantic", "typer", "rich", "pyarrow", "matplotlib")
    assert float(run(code, *blocked)) == pytest.approx(2.0)


def test_plots_say_what_they_need(tmp_path):
    code = f"""
sys.argv = ["pmtl", "compare", "--data", "synthetic:clients=12", "--rounds", "1", "--seeds", "1",
            "--algorithm", "local", "--out", {str(tmp_path / "out")!r}]
from pmtl.cli.app import main
main()
"""
    assert "pmtl[plot]" in run(code, "matplotlib")
