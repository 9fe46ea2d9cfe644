"""`pmtl privacy`: three questions about one plan, for programs and for people."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from pmtl.cli.privacy import app
from pmtl.errors import PmtlError

PAPER = ["--clients", "205", "--cohort", "100", "--delta", "0.004878"]


def ask(*arguments):
    """Run a command; a PmtlError comes through, as the mounting application expects."""
    done = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "100"})
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def ask_json(*arguments):
    return json.loads(ask(*arguments, "--json"))


def test_epsilon_of_the_papers_setting():
    answer = ask_json(
        *["epsilon", *PAPER, "--sampling", "poisson", "--clip", "1.0"],
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
    assert "nothing is promised" in ask(*command)


def test_people_get_a_table_and_a_sentence():
    text = ask("noise", "--epsilon", "2", "--clients", "205", "--rounds", "50")
    assert text.startswith("noise: 0.106")
    assert "the authors' code" in text
    assert "Theorem 1" in text
    assert "factor of at most 7.39" in " ".join(text.split())
    hopeless = ask("epsilon", "--clients", "205", "--noise", "0.001", "--rounds", "50")
    assert "next to no promise" in " ".join(hopeless.split())


@pytest.mark.parametrize("command", ["epsilon", "noise", "rounds"])
def test_help_teaches_by_an_example_that_runs(command):
    text = " ".join(ask(command, "--help").split())
    example = text.split(f"Example: pmtl privacy {command} ")[1].split(" Options:")[0]
    assert ask_json(command, *example.split())["epsilon"] > 0


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
    ],
)
def test_mistakes_are_answered_in_sentences(arguments, sentence):
    with pytest.raises(PmtlError, match=sentence):
        ask(*arguments)


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
