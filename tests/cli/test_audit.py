"""`pmtl audit`: a table and sentences for people, JSON for programs, a status for scripts."""

import json

import pytest
import typer
from typer.testing import CliRunner

from pmtl.cli.audit import audit
from pmtl.errors import PmtlError
from pmtl.privacy.release import Release

app = typer.Typer()
app.command()(audit)

QUICK = ["--trials", "400", "--clients", "8"]


def ask(*arguments, status=0):
    """Run the command; a PmtlError comes through, as the mounting application expects."""
    done = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "140"})
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == status, done.output
    return done.stdout


def test_people_get_a_table_and_a_sentence_for_each_game():
    text = " ".join(ask(*QUICK).split())
    for game in ("one-round", "canaries", "billboard", "metrics", "sampler"):
        assert f"{game}: the attack proves ε ≥" in text
    assert "the claim is 2: consistent." in text
    assert "sampler: the attack proves ε ≥ 0; the claim is 0: consistent." in text
    assert "confidence of 99.9%" in text


def test_programs_get_json():
    printed = json.loads(ask("--game", "canaries", *QUICK, "--json"))
    assert [result["game"] for result in printed] == ["canaries"]
    assert printed[0]["passed"] is True
    assert printed[0]["claim_epsilon"] == 2.0
    assert printed[0]["lower_bound"] <= 2.0
    assert printed[0]["detail"]["mode"] == "experiment"
    assert printed[0]["detail"]["hardened"] is False


def test_production_noise_and_the_hardened_gate_can_be_asked_for():
    # One run in a thousand raises a false alarm: then the status is 1, and the words are the same.
    done = CliRunner().invoke(app, ["--game", "one-round", *QUICK, "--mode", "production"])
    assert done.exit_code in (0, 1)
    text = " ".join(done.stdout.split())
    assert "production noise, hardened gate" in text
    printed = json.loads(ask("--game", "canaries", *QUICK, "--hardened", "--json"))
    assert printed[0]["detail"]["mode"] == "experiment"
    assert printed[0]["detail"]["hardened"] is True


def test_a_refuted_claim_is_status_1(monkeypatch):
    made = Release.__init__

    def quiet(self, plan, blocks, noise, *rest, **options):
        less = lambda round, shape: 0.01 * noise(round, shape)  # noqa: E731
        made(self, plan, blocks, less, *rest, **options)

    monkeypatch.setattr(Release, "__init__", quiet)
    text = ask("--game", "one-round", *QUICK, status=1)
    assert "REFUTED" in text
    printed = json.loads(ask("--game", "one-round", *QUICK, "--json", status=1))
    assert printed[0]["passed"] is False
    assert printed[0]["lower_bound"] > 2.0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--game", "chess"], "There is no game 'chess'"),
        (["--trials", "5"], "prove almost nothing"),
        (["--cohort", "30"], "cannot be drawn"),
        (["--mode", "live"], "There is no mode 'live'"),
    ],
)
def test_mistakes_are_answered_in_sentences(arguments, sentence):
    with pytest.raises(PmtlError, match=sentence):
        ask(*arguments)
