"""A configuration file says what a run does, and every mistake in it is named by its place."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pmtl.algorithms import PMTL, ClusteredPMTL
from pmtl.cli.options import make_config
from pmtl.errors import PmtlError
from pmtl.privacy.request import PrivacyRequest
from pmtl.runs.config import IN_MEMORY, TrainConfig, algorithm_spec, merge, read_config
from pmtl.simulation import LocalTraining


def written(tmp_path, text: str):
    path = tmp_path / "config.toml"
    path.write_text(text, encoding="utf-8")
    return path


@given(
    data=st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1),
    epsilon=st.one_of(st.none(), st.floats(0.01, 100), st.just(math.inf)),
    steps=st.one_of(st.none(), st.integers(1, 99)),
    seed=st.integers(0, 2**40),
)
def test_a_configuration_survives_its_file(tmp_path_factory, data, epsilon, steps, seed):
    config = TrainConfig(
        data=data,
        privacy=PrivacyRequest(epsilon=epsilon, clip=math.inf),
        local=LocalTraining(steps=steps, halve_every=3),
        seed=seed,
    )
    path = tmp_path_factory.mktemp("config") / "config.toml"
    path.write_text(config.to_toml(), encoding="utf-8")
    assert read_config(path) == config


def test_options_override_the_file(tmp_path):
    path = written(tmp_path, 'algorithm = "ditto"\n[privacy]\nepsilon = 3.0\nrounds = 7\n')
    config = make_config(path, {"rounds": 9, "seed": 4})
    assert (config.algorithm, config.privacy.epsilon, config.privacy.rounds) == ("ditto", 3.0, 9)
    assert config.seed == 4


def test_naming_the_noise_unsets_the_files_epsilon(tmp_path):
    path = written(tmp_path, "[privacy]\nepsilon = 3.0\n[local]\nepochs = 2\n")
    config = make_config(path, {"noise": 0.1, "steps": 4})
    assert (config.privacy.epsilon, config.privacy.noise) == (None, 0.1)
    assert (config.local.epochs, config.local.steps) == (None, 4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("algoritm = 'pmtl'", ["algoritm", "Did you mean 'algorithm'"]),
        ("[privacy]\nepsillon = 2", ["privacy", "'epsillon'", "Did you mean 'epsilon'"]),
        ("[privacy]\nrounds = 'many'", ["rounds of privacy", "a whole number", "'many'"]),
        ("[privacy]\nrounds = 2.5", ["rounds must be a whole number", "2.5"]),
        ("privacy = 3", ["privacy", "3"]),
        ("[privacy]\nrounds = true", ["rounds must be a whole number", "True"]),
        ("[local]\nlr = 0", ["lr must be greater than 0", "step size"]),
        ("[local]\nlr = inf", ["lr must be finite"]),
        ("[local]\nsteps = 0", ["steps", "at least 1"]),
        ("seed = -1", ["seed must be at least 0", "-1"]),
        ("evaluate_every = -1", ["evaluate_every"]),
        ("data = 3", ["data must be text", "3"]),
        ("compile = 1", ["compile must be true or false", "1"]),
        ("data = ", ["not valid TOML"]),
    ],
)
def test_a_mistake_is_a_sentence(tmp_path, text, words):
    with pytest.raises(PmtlError) as error:
        read_config(written(tmp_path, text))
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("name", ["epsilon", "noise", "delta", "clip"])
def test_what_is_not_a_number_is_refused_at_once(tmp_path, name):
    """A configuration with NaN in it would not even equal itself."""
    with pytest.raises(PmtlError, match=rf"config\.toml: {name} must be a number"):
        read_config(written(tmp_path, f"[privacy]\n{name} = nan"))


def test_minus_infinity_is_not_read_as_infinity(tmp_path):
    with pytest.raises(PmtlError, match="-inf was given"):
        read_config(written(tmp_path, "[privacy]\nclip = -inf\n"))


def test_text_that_no_file_can_hold_is_refused():
    with pytest.raises(PmtlError, match=r"settings hold '\\udcff'"):
        TrainConfig(data="\udcff.csv")


def test_a_missing_file_is_a_sentence(tmp_path):
    with pytest.raises(PmtlError, match=r"nothing.toml cannot be read"):
        read_config(tmp_path / "nothing.toml")


def test_algorithms_are_written_as_specs_where_a_line_can_hold_them():
    assert algorithm_spec(PMTL(lam=0.25)) == "pmtl:lam=0.25,server=1.0"
    assert algorithm_spec(ClusteredPMTL(clusters={"a": "1"})) == IN_MEMORY


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("epsilon = 2", r"epsilon belongs under \[privacy\]"),
        ("rounds = 2\n[privacy]\nepsilon = 1", r"rounds belongs under \[privacy\]"),
        ("lr = 0.1", r"lr belongs under \[local\]"),
        (
            "lr = 0.1\nepsilon = 2",
            r"lr belongs under \[local\].* epsilon belongs under \[privacy\]",
        ),
        ("[privacy]\nlr = 0.1", r"lr belongs under \[local\]"),
        ('[local]\ndata = "x.csv"', "data belongs at the top"),
        ("[privacy]\nseed = 3", "seed belongs at the top"),
        ('client_column = "hospital"', r'write data = "FILE:client=…"'),
        ('[privacy]\ntarget = "y"', r'write data = "FILE:target=…"'),
        ("privacy = 2", r"privacy is a heading, .* write \[privacy\]"),
        ("[privcy]\nepsilon = 2", "Did you mean 'privacy'"),
    ],
)
def test_a_setting_in_the_wrong_place_is_pointed_to_its_own(text, words, tmp_path):
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(PmtlError, match=words):
        read_config(tmp_path / "c.toml")


@pytest.mark.parametrize(
    ("sampling", "kept"), [("fixed", True), ("own:Scheme", True), ("full", False)]
)
def test_another_cohort_keeps_the_sampling_unless_it_needs_everybody(sampling, kept):
    merged = merge({"privacy": {"sampling": sampling, "cohort": 4}}, {"privacy": {"cohort": 6}})
    assert merged == {"privacy": {"cohort": 6} | ({"sampling": sampling} if kept else {})}
