"""`secure_aggregation` as an option and in a configuration file."""

from __future__ import annotations

import pytest

from pmtl.cli.federation.settings import FederationConfig, job_of
from pmtl.cli.options import make_config
from pmtl.errors import PmtlError
from pmtl.federation.coordinator import Job


@pytest.fixture
def file(tmp_path):
    written = tmp_path / "run.toml"
    written.write_text("secure_aggregation = true\ncolluders = 2\n\n[privacy]\nepsilon = 3\n")
    return str(written)


def test_a_configuration_file_asks_for_it(file):
    job = job_of("r", make_config(file, {}, FederationConfig))
    assert (job["secure"], job["colluders"]) == (True, 2)
    assert Job.from_dict(job).config.privacy.epsilon == 3


def test_options_override_the_file(file):
    job = job_of("r", make_config(file, {"colluders": 1}, FederationConfig))
    assert (job["secure"], job["colluders"]) == (True, 1)
    off = make_config(file, {"secure_aggregation": False}, FederationConfig)
    with pytest.raises(PmtlError, match="colluders needs secure aggregation"):
        job_of("r", off)


def test_by_default_the_server_is_trusted_and_the_run_decides_who_may_collude():
    assert not job_of("r", make_config(None, {}, FederationConfig))["secure"]
    job = job_of("r", make_config(None, {"secure_aggregation": True}, FederationConfig))
    assert (job["secure"], job["colluders"]) == (True, None)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("colluders = -1\n", "colluders"),
        ('secure_aggregation = "perhaps"\n', "secure_aggregation"),
        ("[privacy]\nsecure_aggregation = true\n", "belongs at the top"),
    ],
)
def test_mistakes_are_sentences(tmp_path, content, said):
    (tmp_path / "run.toml").write_text(content)
    with pytest.raises(PmtlError, match=said):
        make_config(str(tmp_path / "run.toml"), {}, FederationConfig)


def test_production_in_a_file_is_charged_to_the_servers_ledger(tmp_path):
    (tmp_path / "run.toml").write_text('mode = "production"\n')
    config = make_config(str(tmp_path / "run.toml"), {}, FederationConfig)
    assert config.ledger == "(at the server)"


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ('engine = "debug"\n', "engine"),
        ('data = "visits.csv:client=ward"\n', "data"),
        ('mode = "production"\nledger = "mine.db"\n', "ledger"),
        ("[privacy]\nmetrics = 0.2\n", "metrics"),
    ],
)
def test_settings_of_other_runs_are_refused_and_not_ignored(tmp_path, content, name):
    (tmp_path / "run.toml").write_text(content)
    with pytest.raises(PmtlError, match=f"run has no setting {name}:"):
        make_config(str(tmp_path / "run.toml"), {}, FederationConfig)


def test_a_simulation_has_no_such_setting(file, pmtl_command):
    outcome = pmtl_command("train", "--config", file)
    assert outcome.status == 2
    assert "secure_aggregation is only for pmtl federation run" in " ".join(outcome.err.split())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"run": 3}, "'run' is not valid"),
        ({"config": "none"}, "'config' is not valid"),
        ({"sites": "abc"}, "'sites' is not valid"),
        ({"sites": ["a", 3]}, "'sites' is not valid"),
        ({"secure": "yes"}, "'secure' is not valid"),
        ({"colluders": 1.5}, "'colluders' is not valid"),
        ({"round_seconds": "600"}, "'round_seconds' is not valid"),
        ({"colour": "red"}, "no entry of the job named 'colour'"),
        ("config", "no entry 'config' in the job"),
        ("run", "no entry 'run' in the job"),
    ],
)
def test_a_job_is_checked(changes, said):
    job = job_of("r", make_config(None, {}, FederationConfig))
    if isinstance(changes, str):
        del job[changes]
    else:
        job |= changes
    with pytest.raises(PmtlError, match=said):
        Job.from_dict(job)
