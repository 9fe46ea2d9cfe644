"""Configurations and specs of any kind: read (and then written and read again) or refused."""

from __future__ import annotations

import json
from dataclasses import fields
from datetime import date, time
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from fuzzing import damaged, fuzz, judge, mostly
from hypothesis import given
from hypothesis import strategies as st

from pmtl.algorithms import ALGORITHMS, build_algorithm
from pmtl.data import FederatedData, load, synthetic
from pmtl.errors import PmtlError
from pmtl.models import build_model
from pmtl.privacy.request import PrivacyRequest
from pmtl.runs.config import TrainConfig, read_config
from pmtl.simulation import LocalTraining
from pmtl.spec import format_spec, parse_spec


@pytest.fixture(autouse=True)
def there(tmp_path, monkeypatch, silent):
    monkeypatch.chdir(tmp_path)


def same_again(config: TrainConfig) -> None:
    """What was read can be written, and says the same when it is read again."""
    Path("again.toml").write_text(config.to_toml(), encoding="utf-8")
    assert read_config("again.toml") == config
    assert read_config("again.toml").digest() == config.digest()


def read(what: str, content: bytes) -> None:
    Path("config.toml").write_bytes(content)
    judge(what, lambda: read_config("config.toml"), same_again, mention="config.toml")


# --- files ---

TEXTS = st.one_of(
    st.sampled_from(["pmtl", "experiment", "production", "synthetic", "full", "auto", "", "\x7f"]),
    st.text(st.characters(codec="utf-8"), max_size=8),
    st.just("x" * 3000),
)
NUMBERS = st.one_of(
    st.integers(-2, 3),
    st.floats(),
    st.sampled_from([0.0, -0.0, 2**63, -(2**64), 10**30, 10**4000, 1e308, 5e-324]),
)
VALUES = st.recursive(
    st.one_of(st.booleans(), NUMBERS, TEXTS, st.dates(), st.times()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(TEXTS.filter(len), inner, max_size=2)
    ),
    max_leaves=5,
)
KEYS = [field.name for field in fields(TrainConfig) if field.name not in ("privacy", "local")]
TABLES = {
    "privacy": [field.name for field in fields(PrivacyRequest)],
    "local": [field.name for field in fields(LocalTraining)],
}


def settings_of(known: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    keys = mostly(st.sampled_from(known), TEXTS)
    return st.dictionaries(keys, mostly(st.integers(1, 9), NUMBERS | VALUES), max_size=2)


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quoted(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, date | time):
        return value.isoformat()
    return str(value).lower()


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


@st.composite
def documents(draw: st.DrawFn) -> str:
    lines = [f"{quoted(k)} = {toml(v)}" for k, v in draw(settings_of(KEYS)).items()]
    for table, known in TABLES.items():
        if draw(st.booleans()):
            inside = draw(settings_of(known))
            lines += [f"[{table}]", *(f"{quoted(k)} = {toml(v)}" for k, v in inside.items())]
    if lines and draw(st.integers(0, 9)) == 0:
        lines.append(draw(st.sampled_from(lines)))  # the same again
    return "\n".join(lines)


@fuzz(150)
@given(documents())
def test_documents_of_any_values(text):
    read("config, odd content", text.encode())


WHOLE = TrainConfig(
    data="visits.csv:target=y",
    privacy=PrivacyRequest(epsilon=2.0, clip=float("inf"), rounds=3),
    local=LocalTraining(epochs=2),
    seed=7,
).to_toml()


@fuzz(150)
@given(damaged(WHOLE.encode()))
def test_damaged_documents(content):
    read("config, damaged", content)


@pytest.mark.parametrize(
    "content",
    [
        b"seed = " + b"9" * 5000,
        b"data = " + b"[" * 5000,
        b"data = " + b"{a = " * 5000,
        b"a" * 100_000 + b" = 1",
        b"x." * 5000 + b"y = 1",
        b"data = '\x1b[2J'",
        b"\xff\xfe" + WHOLE.encode("utf-16"),
    ],
    ids=["digits", "arrays", "tables", "long key", "dotted key", "escape", "utf-16"],
)
def test_hostile_documents(content):
    read("config, hostile", content)


def test_what_is_not_a_file():
    Path("folder").mkdir()
    for path in ("folder", "nothing.toml", "nul\x00.toml", "folder/nothing/x.toml", "x" * 5000):
        with pytest.raises(PmtlError, match=r"cannot be read|is not a path"):
            read_config(path)


# --- specs ---

ODD = st.sampled_from(
    [
        "nan",
        "inf",
        "-1",
        "1e308",
        "1e400",
        "1000000000000",
        "9" * 5000,
        "~",
        "\x00",
        "true",
        "",
        "1_0",
    ]
)
MODELS = ("logistic", "linear", "mlp", "femnist_cnn", "celeba_cnn", "auto")
FACTORIES = ("nowhere:make", ".a:b", "a..b:c", "json:loads", "os:path", "builtins:type")
PLACES = ("~nobody/x.npz", "nothing.csv", "a/b/c", "\x00", ".", "")


def options(*known: str) -> st.SearchStrategy[dict[str, Any]]:
    keys = mostly(st.sampled_from(known or ("none",)), st.text(max_size=5))
    usual = mostly(st.integers(1, 9), st.floats(0, 3))
    return st.dictionaries(keys, mostly(usual, ODD | st.text(max_size=8)), max_size=2)


def options_of(build: Any) -> st.SearchStrategy[dict[str, Any]]:
    return options(*signature(build).parameters)


@fuzz(100)
@given(st.one_of(st.text(), st.text(":=,%ab \x00")))
def test_any_text_as_a_spec(text):
    def again(parsed: tuple[str, dict[str, str]]) -> None:
        name, options = parsed
        if not options:
            assert name == text
        elif all(key == key.strip() and not set(key) & set(",:=") for key in options):
            assert parse_spec(format_spec(name, options)) == parsed

    judge("spec", lambda: parse_spec(text), again)


@fuzz(80)
@given(st.sampled_from(sorted(ALGORITHMS)), st.data())
def test_any_spec_of_an_algorithm(name, data):
    spec = format_spec(name, data.draw(options_of(ALGORITHMS[name])))
    judge("spec of an algorithm", lambda: build_algorithm(spec), repr)


CLUSTERS = {
    "c.json": b'{"ann": "north", "bob": 2, "cy": "north"}',
    "c.csv": b"client,cluster\nann,north\nbob,2\ncy,north\n",
}


@fuzz(60)
@given(
    st.sampled_from(sorted(CLUSTERS)).flatmap(lambda f: st.tuples(st.just(f), damaged(CLUSTERS[f])))
)
def test_damaged_clusters(drawn):
    name, content = drawn
    Path(name).write_bytes(content)
    clients = ("ann", "bob", "cy")
    algorithm = build_algorithm(f"clustered:clusters={name}")

    def one_each(blocks: list[int]) -> None:
        assert len(blocks) == 3
        assert set(blocks) == set(range(max(blocks) + 1))

    judge("clusters", lambda: algorithm.blocks(clients).tolist(), one_each)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("c.csv", "client,cluster\nann\n", "'ann' has no cluster"),
        ("c.csv", "client,cluster\nann,1\nann,2\n", "'ann' is in two clusters"),
        ("c.csv", "client,cluster\n" + "a" * 200_000 + ",1\n", "field larger than"),
        ("c.json", '{"ann": null}', "'ann' has no cluster"),
        ("c.json", '{"ann": ' + "[" * 9999, "recursion"),
        ("c.json", "[]", "items"),
    ],
)
def test_clusters_that_are_none(name, text, words):
    Path(name).write_text(text)
    with pytest.raises(PmtlError, match=rf"clusters in .*{name}.* cannot be read .*{words}"):
        build_algorithm(f"clustered:clusters={name}").blocks(("ann",))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("celeba_cnn:groups=7", "celeba_cnn.*failed.*divisible"),
        ("celeba_cnn:groups=0", "celeba_cnn.*failed"),
        (".a:b", "cannot be imported"),
        ("broken_module:make", "cannot be imported .*oh no"),
        ("builtins:type", "failed"),
    ],
)
def test_models_that_cannot_be_made(spec, words):
    Path("broken_module.py").write_text("raise KeyError('oh no')")
    with pytest.raises(PmtlError, match=words):
        build_model(spec, (3, 84, 84), 2, "classification", 0)


@fuzz(60)
@given(st.sampled_from(("mlp",) * 9 + MODELS + FACTORIES), options("hidden", "layers"))
def test_any_spec_of_a_model(name, options):
    spec = format_spec(name, options)
    judge("spec of a model", lambda: build_model(spec, (4,), 2, "classification", 0), repr)


@fuzz(60)
@given(st.sampled_from(("synthetic",) * 9 + PLACES), options_of(synthetic))
def test_any_spec_of_data(name, options):
    def there(data: FederatedData) -> None:
        assert load(str(data.source)).fingerprint() == data.fingerprint()

    spec = format_spec(name, {"clients": 9, "samples": 5} | options)
    judge("spec of data", lambda: load(spec), there)
