"""`pmtl ledger`: begin, look, check and cap, for programs and for people."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from pmtl.cli.ledger.commands import app
from pmtl.data import load
from pmtl.errors import PmtlError
from pmtl.privacy.accounting import adaptive, composition
from pmtl.privacy.ledger.events import GaussianEvent
from pmtl.privacy.ledger.ledger import Ledger

DATA = "synthetic:clients=20"
EVERYBODY = GaussianEvent("full", 20, 20, 1.0, 1.0)
SOME = GaussianEvent("poisson", 20, 5, 1.0, 2.0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "the.ledger"


def ask(*arguments):
    """Run a command; a PmtlError comes through, as the mounting application expects."""
    words = [str(argument) for argument in arguments]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "100"})
    if done.exception and not isinstance(done.exception, SystemExit):
        done.exception.stdout = done.stdout
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def ask_json(*arguments):
    return json.loads(ask(*arguments, "--json"))


@pytest.fixture
def begun(path):
    assert "20 clients" in ask("create", path, "--data", DATA)
    return path


def spend(path):
    with Ledger.open(path) as ledger:
        for round in (0, 1, 1):
            ledger.charge("runs/[bold]a", round, EVERYBODY)
        ledger.charge("b", 0, SOME)
        ledger.mark("runs/[bold]a", 1, "digest")


def test_the_population_is_the_clients_of_the_data(begun):
    with Ledger.open(begun, write=False) as ledger:
        assert sorted(ledger.populations.spans) == sorted(load(DATA).clients)
    with pytest.raises(PmtlError, match="exists already"):
        ask("create", begun, "--data", DATA)


def test_show_adds_everything_up(begun):
    empty = ask_json("show", begun)
    assert (empty["entries"], empty["runs"], empty["caps"]) == (1, [], [])
    spend(begun)
    summary = ask_json("show", begun)
    assert summary["clients"] == 20
    assert [row["delta"] for row in summary["epsilon"]] == [1 / 200, 1e-5, 1e-6]
    for row in summary["epsilon"]:
        assert row["epsilon"] == composition.epsilon({EVERYBODY: 3, SOME: 1}, row["delta"])
        assert row["any_settings"] == adaptive.by_orders({EVERYBODY: 3, SOME: 1}, row["delta"])
        assert row["clients"] == 20
    charges = {run["run"]: (run["charges"], run["charged_again"]) for run in summary["runs"]}
    assert charges == {"runs/[bold]a": (3, 1), "b": (1, 0)}
    assert {run["run"]: run["checkpoint"] for run in summary["runs"]}["runs/[bold]a"] == 1
    assert [event.pop("count") for event in summary["events"]] == [3, 1]
    assert GaussianEvent.from_dict(summary["events"][0]) == EVERYBODY
    only = ask_json("show", begun, "--delta", "1e-7")
    assert [row["delta"] for row in only["epsilon"]] == [1e-7]


def test_show_for_people(begun):
    assert "no cap" in ask("show", begun)
    spend(begun)
    ask("cap", begun, "--epsilon", "3")
    text = ask("show", begun)
    for words in ("20 clients", "runs/[bold]a", "round 1", "0.005", "1e-06", "Cap: ε = 3", "left"):
        assert words in text


def test_without_noise_it_says_so(begun):
    with Ledger.open(begun) as ledger:
        ledger.charge("a", 0, GaussianEvent("full", 20, 20, 1.0, 0.0))
    assert "∞" in ask("show", begun)
    assert ask_json("show", begun)["epsilon"][0]["epsilon"] == "inf"


def test_caps(begun):
    assert "now ε = 3; 0 is spent" in ask("cap", begun, "--epsilon", "3")
    spend(begun)
    row = ask_json("show", begun)["caps"][0]
    assert (row["delta"], row["epsilon"]) == (1 / 200, 3.0)
    spent = adaptive.by_orders({EVERYBODY: 3, SOME: 1}, 1 / 200)
    assert (row["spent"], row["left"]) == pytest.approx((spent, 3 - spent))
    with pytest.raises(PmtlError, match="--force"):
        ask("cap", begun, "--epsilon", "4")
    ask("cap", begun, "--epsilon", "0.01")
    assert ask_json("show", begun)["caps"][0]["left"] == 0
    ask("cap", begun, "--epsilon", "4", "--force")
    ask("cap", begun, "--epsilon", "9", "--delta", "1e-8")
    assert "removed" in ask("cap", begun, "--epsilon", "inf", "--force")
    assert [row["delta"] for row in ask_json("show", begun)["caps"]] == [1e-8]


def test_verify(begun):
    spend(begun)
    assert "is intact: 6 entries" in ask("verify", begun)
    answer = ask_json("verify", begun)
    assert (answer["verified"], answer["entries"], len(answer["hash"])) == (True, 6, 64)
    begun.with_name("the.ledger.head").write_text(f"9 {'0' * 64}\n")
    with pytest.raises(PmtlError, match="rolled back") as refusal:
        ask("verify", begun, "--json")
    answer = json.loads(refusal.value.stdout)
    assert answer["verified"] is False
    assert "rolled back" in answer["reason"]


def test_looking_works_while_a_run_is_writing_and_capping_does_not(begun):
    with Ledger.open(begun) as ledger:
        ledger.charge("a", 0, EVERYBODY)
        assert ask_json("show", begun)["entries"] == 2
        assert ask_json("verify", begun)["verified"]
        with pytest.raises(PmtlError, match="another process"):
            ask("cap", begun, "--epsilon", "1")


@pytest.mark.parametrize("command", ["show", "verify", "cap"])
def test_no_ledger(tmp_path, command):
    more = ["--epsilon", "1"] if command == "cap" else []
    with pytest.raises(PmtlError, match="no ledger at"):
        ask(command, tmp_path / "none", *more)


def test_looking_never_imports_torch(begun):
    spend(begun)
    code = f"""
import sys
from pmtl.cli.ledger.commands import app
for command in ("show", "verify"):
    app([command, {str(begun)!r}], standalone_mode=False)
app(["cap", {str(begun)!r}, "--epsilon", "2"], standalone_mode=False)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_show_gives_the_largest_account_and_on_request_each(begun):
    spend(begun)
    ask("clients", begun, "--data", "synthetic:clients=19")
    with Ledger.open(begun) as ledger:
        ledger.charge("c", 0, GaussianEvent("full", 19, 19, 1.0, 1.0))
    summary = ask_json("show", begun, "--clients")
    assert (summary["clients"], summary["clients_ever"]) == (19, 20)
    assert summary["epsilon"][0]["clients"] == 19
    accounts = {row["client"]: row for row in summary["accounts"]}
    assert sorted(accounts) == sorted(load(DATA).clients)
    (gone,) = (row for row in accounts.values() if not row["present"])
    assert (gone["charges"], gone["client"]) == (4, "19")
    assert {row["charges"] for row in accounts.values() if row["present"]} == {5}
    assert max(row["epsilon"] for row in accounts.values()) == summary["epsilon"][0]["epsilon"]
    assert gone["any_settings"] < summary["epsilon"][0]["any_settings"]
    text = ask("show", begun, "--clients")
    for words in ("1 that left", f"{gone['client']} (left)", "any settings", "settings fixed"):
        assert words in " ".join(text.split())


def test_clients_are_put_down_once(begun):
    assert "0 joined, 0 left" in ask("clients", begun, "--data", DATA)
    with Ledger.open(begun, write=False) as ledger:
        assert ledger.verify() == 1
    assert "2 joined, 0 left" in ask("clients", begun, "--data", "synthetic:clients=22")
    with Ledger.open(begun, write=False) as ledger:
        assert (ledger.verify(), ledger.clients) == (2, 22)


def test_a_second_ledger_for_the_same_clients_is_named(begun, pmtl_command):
    second = begun.with_name("second")
    done = pmtl_command("ledger", "create", second, "--data", "synthetic:clients=5")
    assert done.status == 0
    assert f"{begun} is a ledger of some of the same clients as {second}" in done.err


def test_charge_refuses_what_is_no_run(begun, tmp_path):
    with pytest.raises(PmtlError, match="no run at"):
        ask("charge", begun, "--run", tmp_path / "none")
