"""`pmtl privacy`: questions about one plan, for programs and for people."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pmtl.cli.privacy import app

PAPER = ["--clients", "205", "--cohort", "100", "--delta", "0.004878", "--clip", "1"]


def ask(*arguments):
    done = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "100"})
    assert done.exit_code == 0, done.output
    return done.stdout


def ask_json(*arguments):
    return json.loads(ask(*arguments, "--json"))


def test_epsilon_of_the_papers_setting():
    answer = ask_json(
        *["epsilon", *PAPER, "--sampling", "poisson"],
        *["--noise", "0.1", "--rounds", "100"],
    )
    assert answer["epsilon"] == pytest.approx(2.511, abs=0.001)
    assert answer["adjacency"] == "replace-one"
    assert answer["sampling"] == "poisson"
    assert "PLD" in answer["accountant"]
    assert answer["also"]["authors"] == pytest.approx(1.25, abs=0.005)


def test_noise_and_rounds_lead_back_to_epsilon():
    noise = ask_json("noise", "--epsilon", "2", "--rounds", "50", *PAPER)["noise"]
    back = ask_json("epsilon", "--noise", repr(noise), "--rounds", "50", *PAPER)
    assert 1.99 <= back["epsilon"] <= 2.0
    rounds = ask_json("rounds", "--epsilon", "2", "--noise", repr(noise), *PAPER)
    assert rounds["rounds"] == 50


def test_defaults_are_everybody_and_a_tenth_of_a_client():
    answer = ask_json("epsilon", "--clients", "205", "--noise", "0.1", "--rounds", "10")
    assert answer["sampling"] == "full"
    assert answer["delta"] == pytest.approx(1 / 2050)
    assert "exact" in answer["accountant"]


def test_fixed_size_reports_colluders_first_and_outsiders_beside():
    answer = ask_json("epsilon", *PAPER, "--sampling", "fixed", "--noise", "0.1", "--rounds", "100")
    assert answer["epsilon"] == answer["also"]["colluders"] == pytest.approx(4.07, abs=0.005)
    assert answer["also"]["outsiders"] == pytest.approx(2.65, abs=0.005)


@pytest.mark.parametrize("unsafe", [["--noise", "0"], ["--noise", "0.1", "--clip", "inf"]])
def test_no_privacy_is_infinite_in_strict_json_and_in_words(unsafe):
    command = ["epsilon", "--clients", "20", "--rounds", "5", *unsafe]
    printed = ask(*command, "--json")
    strict = json.loads(printed, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert strict["epsilon"] == "inf"
    assert "nothing is guaranteed" in ask(*command)


def test_people_get_a_table_and_a_sentence():
    text = ask("noise", "--epsilon", "2", "--clients", "205", "--rounds", "50")
    assert text.startswith("noise: 0.0530")  # at the default clip, 0.5
    assert "the authors' code" in text
    assert "Theorem 1" in text
    assert "factor of at most 7.39" in " ".join(text.split())
    hopeless = ask("epsilon", "--clients", "205", "--noise", "0.001", "--rounds", "50")
    assert "almost no guarantee" in " ".join(hopeless.split())


CHOICE = ["selection", "--clients", "205", "--rounds", "50"]


def test_the_price_of_a_choice_stands_beside_one_runs():
    answer = ask_json(*CHOICE, "--epsilon", "2", "--candidates", "10")
    assert answer["one_run"] == pytest.approx(2, rel=1e-3)
    assert answer["one_run"] < answer["publish_best"] < answer["publish_all"]
    assert (answer["candidates"], answer["rounds"], answer["sampling"]) == (10, 50, "full")
    noise = repr(answer["noise"])
    assert ask_json(*CHOICE, "--noise", noise, "--candidates", "10") == pytest.approx(answer)
    text = " ".join(ask(*CHOICE, "--epsilon", "2", "--candidates", "10").split())
    for key in ("one_run_with_score", "publish_best", "publish_all"):
        assert f" {answer[key]:.4g} │" in text
    assert answer["protocol"] in text
    assert "kept secret" in text
    assert "if clients receive the models of every run" in text


def test_one_candidate_is_no_choice_and_no_noise_no_promise():
    assert "no choice" in ask(*CHOICE, "--epsilon", "2", "--candidates", "1")
    bare = [*CHOICE, "--noise", "0", "--candidates", "3"]
    assert "nothing is guaranteed" in ask(*bare)
    assert ask_json(*bare)["publish_best"] == "inf"


def test_the_prices_in_the_documentation_are_what_the_command_prints():
    text = (Path(__file__).parents[2] / "docs/privacy.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^\$ pmtl privacy (selection .*)$", text, re.M)
    table = text.split("<!-- choosing -->")[1].split("<!-- /choosing -->")[0]
    rows = re.findall(r"\| (\d+) \| ([\d.]+) \| ([\d.]+) \| (\d+)% \|", table)
    assert len(rows) >= 4
    for candidates, best, everything, chance in rows:
        answer = ask_json(*shlex.split(command.replace("N", candidates)))
        assert f"{answer['publish_best']:.2f}" == best
        assert f"{answer['publish_all']:.2f}" == everything
        assert f"{answer['chance_of_no_choice']:.0%}" == f"{chance}%"


@pytest.mark.parametrize("command", ["epsilon", "noise", "rounds", "selection"])
def test_help_teaches_by_an_example_that_runs(command):
    text = " ".join(ask(command, "--help").split())
    example = text.split(f"Example: pmtl privacy {command} ")[1].split(" Options:")[0]
    answer = ask_json(command, *example.split())
    assert answer["publish_best" if command == "selection" else "epsilon"] > 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["epsilon", "--clients", "205", "--rounds", "5"], "option --noise is missing"),
        (["epsilon", "--noise", "1", "--rounds", "5"], "option --clients is missing"),
        (["epsilon", "--noise", "1", "--clients", "5"], "option --rounds is missing"),
        (["noise", "--clients", "205", "--rounds", "5"], "option --epsilon is missing"),
        (["rounds", "--clients", "205", "--epsilon", "1"], "option --noise is missing"),
        (["noise", "--clients", "9", "--rounds", "5", "--epsilon", "0"], "greater than 0"),
        (
            ["epsilon", "--clients", "205", "--cohort", "300", "--noise", "1", "--rounds", "5"],
            "A cohort of 300 cannot be drawn from 205 clients",
        ),
        (
            ["rounds", "--clients", "205", "--noise", "0.01", "--epsilon", "0.1"],
            "Not even one round fits",
        ),
        (["rounds", "--clients", "205", "--noise", "0.01", "--epsilon", "inf"], "any number"),
        ([*CHOICE, "--noise", "1"], "option --candidates is missing"),
        ([*CHOICE, "--candidates", "3"], "option --noise is missing"),
        ([*CHOICE, "--candidates", "0", "--noise", "1"], "at least 1, but 0 was given"),
        ([*CHOICE, "--candidates", "3", "--noise", "1", "--epsilon", "2"], "give one of them"),
    ],
)
def test_mistakes_are_answered_in_sentences(arguments, sentence, pmtl_command):
    refused = pmtl_command("privacy", *arguments)
    assert refused.status == 2
    assert sentence in refused.err


def test_the_command_group_imports_nothing_heavy_and_a_command_never_torch():
    code = (
        "import sys\n"
        "from pmtl.cli.privacy import app\n"
        "heavy = {'torch', 'scipy', 'dp_accounting', 'pydantic'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "sys.argv[1:] = 'epsilon --clients 9 --cohort 3 --noise 1 --rounds 2 --json'.split()\n"
        "try: app()\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
