"""Every mistake on the command line is `error: sentence` and status 2, in one style."""

from __future__ import annotations

import pytest

MISTAKES = [
    (["train", "--frobnicate", 1], "no option --frobnicate of `pmtl train`"),
    (["train", "--epsilonn", 1], "Did you mean --epsilon?"),
    (["train", "--eps", 1], "Did you mean --epsilon?"),
    (["train", "."], "If it is the data, write --data ."),
    (["--frob"], "no option --frob of `pmtl`"),
    (["trian"], "Did you mean 'train'?"),
    (["privacy", "epsilonn"], "no command 'epsilonn' of `pmtl privacy`. Did you mean 'epsilon'?"),
    (["train", "extra"], "'extra' is not expected here"),
    (["train", "--rounds"], "--rounds needs a value: T, rounds"),
    (["train", "--rounds", "many"], "--rounds must be a whole number, but 'many' was given"),
    (["train", "--rounds=1.5"], "--rounds must be a whole number, but '1.5' was given"),
    (["train", "--epsilon", "two"], "--epsilon must be a number, but 'two' was given"),
    (["compare", "--epsilon", "1", "--epsilon", "x"], "--epsilon must be a number, but 'x'"),
    (["train", "--hardened=maybe"], "--hardened takes no value"),
    (["predict"], "The argument RUN is missing: The folder of a finished run"),
    (["export", "run"], "The option --out is missing: The new folder."),
    (["ledger", "cap", "x.db"], "The option --epsilon is missing"),
    (["train", "--rounds", 3, "--rounds", 4], "--rounds was given twice: 3 and 4 cannot both hold"),
    (["train", "--lr=.1", "--lr", ".2"], "--lr was given twice: .1 and .2"),
    (["train", "--hardened", "--no-hardened"], "--hardened and --no-hardened cannot both hold"),
    (["ledger", "show", "x.db", "--delta", 1, "--delta", 2], "--delta was given twice"),
]


@pytest.mark.parametrize(("typed", "words"), MISTAKES, ids=lambda v: " ".join(map(str, v)))
def test_a_mistake_is_one_sentence(typed, words, pmtl_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused = pmtl_command(*typed)
    assert refused.status == 2
    assert refused.out == ""
    assert words in refused.err
    (line,) = refused.err.strip().splitlines()
    assert line.startswith("error: ")
    assert line.endswith(".")
    for other in ("Usage", "Traceback", "╭", "Input should be", "pydantic"):
        assert other not in refused.err
    assert list(tmp_path.iterdir()) == []


def test_what_may_be_repeated_is_not_refused(pmtl_command):
    """The same value twice, an option with several values, and a value that looks like an
    option."""
    plan = ("privacy", "noise", "--epsilon", 2, "--clients", 50, "--rounds", 3)
    once, twice = pmtl_command(*plan), pmtl_command(*plan, "--clients", 50)
    assert once.status == twice.status == 0
    assert once.out == twice.out
    several = ("compare", "--algorithm", "fedvag", "--algorithm", "local", "--out", "--seed")
    assert "'fedvag'" in pmtl_command(*several).err


@pytest.mark.parametrize("typed", [[], ["privacy"], ["ledger"], ["data"]])
def test_a_group_alone_shows_its_commands(typed, pmtl_command):
    shown = pmtl_command(*typed)
    assert shown.status == 2
    assert "Commands" in shown.out + shown.err
    assert "error" not in shown.err
