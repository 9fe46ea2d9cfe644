"""A setting is declared once, and is then in Python, in configuration files and on the command
line."""

from __future__ import annotations

import importlib.util
import inspect
import math
import pydoc
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import pmtl
from pmtl.audit.setup import AuditSetup
from pmtl.cli import options as opt
from pmtl.cli.federation.commands import run as federation_run
from pmtl.cli.finetune import finetune as finetune_command
from pmtl.cli.train import train as train_command
from pmtl.options import check_options, declared, option, rounds_only, tables
from pmtl.privacy.request import PrivacyRequest
from pmtl.runs.config import Reading, TrainConfig, parse_config
from pmtl.simulation import LocalTraining
from pmtl.storage import read_toml


@dataclass(frozen=True)
class WarmLocal(LocalTraining):
    warmth: float = option(1.5, help="How warm it is.", at_least=0)


@dataclass(frozen=True)
class WarmConfig(TrainConfig):
    local: WarmLocal = field(default_factory=WarmLocal, metadata={"panel": "Local"})
    colour: str | None = option(None, help="Which colour it has.")


@pytest.fixture
def heard():
    return {}


@pytest.fixture
def command(heard):
    app = typer.Typer()

    @app.command()
    @opt.with_settings("engine", kind=WarmConfig)
    def command(config: opt.Config = None, **settings: Any) -> None:
        heard["config"] = opt.make_config(config, settings, WarmConfig)

    return lambda *arguments: CliRunner().invoke(
        app, arguments, env={"COLUMNS": "200"}, catch_exceptions=False
    )


def test_a_field_is_all_that_a_new_option_takes(command, heard, tmp_path):
    shown = command("--help").output
    assert "How warm it is (default 1.5)." in shown
    assert "Which colour it has." in shown
    assert "--engine" not in shown
    assert command("--warmth", "2", "--colour", "red", "--lr", "0.5").exit_code == 0
    assert heard["config"] == WarmConfig(local=WarmLocal(warmth=2.0, lr=0.5), colour="red")
    (tmp_path / "c.toml").write_text("colour = 'blue'\n[local]\nwarmth = 3\nsteps = 4\n")
    expected = WarmConfig(local=WarmLocal(warmth=3.0, steps=4), colour="blue")
    assert parse_config(read_toml(tmp_path / "c.toml", "It"), "c.toml", WarmConfig) == expected
    assert command("--config", str(tmp_path / "c.toml"), "--warmth", "1").exit_code == 0
    assert heard["config"].local == WarmLocal(warmth=1.0, steps=4)
    again = tmp_path / "again.toml"
    again.write_text(expected.to_toml(), encoding="utf-8")
    assert parse_config(read_toml(again, "It"), "again.toml", WarmConfig) == expected
    for wrong in (
        lambda: WarmLocal(warmth=-1),
        lambda: command("--warmth", "-1"),
        lambda: parse_config({"local": {"warmth": -1}}, "c.toml", WarmConfig),
    ):
        with pytest.raises(pmtl.PmtlError, match=r"warmth must be at least 0.*How warm it is"):
            wrong()


@dataclass(frozen=True)
class ColourConfig(TrainConfig):
    colour: str | None = option(None, help="Which colour it has.")


@pytest.fixture
def train(monkeypatch):
    """`pmtl.train`, as it is with one more field of `TrainConfig`, and what it is to train."""
    from pmtl.runs import config, training

    monkeypatch.setattr(config, "TrainConfig", ColourConfig)
    spec = importlib.util.spec_from_file_location("training_again", training.__file__)
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    again.start = lambda config, **_: config
    return again.train


def test_a_field_is_all_that_a_new_option_of_train_takes(train):
    assert inspect.signature(train).parameters["colour"].default is None
    shown = pydoc.plain(pydoc.render_doc(train))
    assert "colour: str | None = None" in shown
    assert "colour: Which colour it has." in shown
    assert "**settings" not in shown
    assert train(colour="red", init=Path("w")) == ColourConfig(colour="red", init="w", seed=None)
    with pytest.raises(pmtl.PmtlError, match=r"named 'color'\. Did you mean 'colour'\?"):
        train(color="red")
    with pytest.raises(pmtl.PmtlError, match="colour must be text, but 3 was given"):
        train(colour=3)


def test_train_says_what_each_option_is():
    shown = " ".join(pydoc.plain(pydoc.render_doc(pmtl.train)).split())
    for name, setting in declared(TrainConfig).items():
        if name not in ("data", "model", "algorithm"):
            assert f"{name}: {setting.about.help}" in shown
    assert inspect.signature(pmtl.train).parameters["init"].annotation == str | None | Path


def test_python_files_and_the_command_line_have_the_same_settings():
    settings = {item.name: item.default for item in fields(TrainConfig)}
    own = set(inspect.signature(pmtl.train).parameters)
    assert own - set(settings) == {"out", "callbacks", "progress", "warn", "team"}
    for name, parameter in inspect.signature(pmtl.train).parameters.items():
        if name in declared(TrainConfig):
            assert parameter.default == settings[name], name
    inside = [name for _, kind, _ in tables(TrainConfig) for name in declared(kind)]
    options = set(inspect.signature(train_command).parameters)
    assert options - {*declared(TrainConfig), *inside} == {
        *("config", "out", "callback", "as_json"),
        *declared(Reading),
    }
    assert {*declared(TrainConfig), *inside} <= options


def test_what_is_a_setting_elsewhere_has_its_words_and_default():
    shown = " ".join(pydoc.plain(pydoc.render_doc(pmtl.finetune)).split())
    taken = inspect.signature(pmtl.finetune).parameters
    command = inspect.signature(finetune_command).parameters
    assert "halve_every" in rounds_only(LocalTraining)
    for name, setting in declared(LocalTraining).items():
        if name in rounds_only(LocalTraining):
            assert name not in (*taken, *command)
            continue
        assert f"{name}: {setting.about.help}" in shown
        assert taken[name].default == setting.default
        assert name in command
    for name in ("cohort", "sampling", "delta"):
        assert declared(AuditSetup)[name].about is declared(PrivacyRequest)[name].about
    assert not set(declared(Reading)) & set(inspect.signature(federation_run).parameters)


@pytest.mark.parametrize("kind", [TrainConfig, PrivacyRequest, LocalTraining])
def test_every_field_is_a_setting_or_a_table(kind):
    assert {*declared(kind), *(name for name, _, _ in tables(kind))} == {
        item.name for item in fields(kind)
    }


@dataclass(frozen=True)
class Some:
    count: int = option(1, help="How many.", at_least=0)
    size: float | None = option(None, help="How large.", above=0, finite=True)
    name: str = option("", help="Which.")
    loud: bool | None = option(None, help="Whether.")
    taste: str = option("sweet", help="{sweet} (as sugar) or {sour}.", only_names=True)

    def __post_init__(self) -> None:
        check_options(self)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"count": -1}, r"count must be at least 0, but -1 was given. count: How many."),
        ({"count": 1.0}, "count must be a whole number"),
        ({"count": True}, "count must be a whole number, but True"),
        ({"count": None}, "count must be a whole number, but None"),
        ({"size": math.nan}, "size must be a number, but nan"),
        ({"size": False}, "size must be a number"),
        ({"size": "2"}, "size must be a number, but '2'"),
        ({"size": 0}, "size must be greater than 0"),
        ({"size": math.inf}, "size must be finite"),
        ({"size": 10**400}, "size must be a number that fits"),
        ({"name": 3}, "name must be text"),
        ({"loud": 1}, "loud must be true or false"),
        ({"taste": "salt"}, r"There is no taste 'salt'\. Known: sour, sweet"),
    ],
)
def test_a_wrong_value_is_a_sentence(values, words):
    with pytest.raises(pmtl.PmtlError, match=words):
        Some(**values)


def test_numbers_become_the_declared_kind():
    made = Some(count=np.int32(3), size=2)
    assert (type(made.count), type(made.size)) == (int, float)
