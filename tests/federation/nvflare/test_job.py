"""A job has one definition; everything else is refused by the server."""

from __future__ import annotations

import io
import json
import zipfile

import pytest

from pmtl.errors import PmtlError
from pmtl.federation.nvflare.job import Echo, JobSettings, read_job, refusal, write_job

ECHO = {"name": "r1", "echo": {"bytes": 1, "rounds": 1, "deadline": 1}}


def _archive(folder, change=None, more=()):
    """The job as a zip file, with one file changed and others added."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for file in sorted(folder.rglob("*")):
            name = str(file.relative_to(folder.parent))
            content = b"" if file.is_dir() else file.read_bytes()
            if change and name.endswith(change[0]):
                content = change[1](content)
            archive.writestr(f"{name}/" if file.is_dir() else name, content)
        for name, content in more:
            archive.writestr(name, content)
    return packed.getvalue()


def test_our_own_job_is_run_also_when_it_is_signed(tmp_path):
    made = write_job(ECHO, tmp_path)
    assert refusal(_archive(made)) is None
    signed = [("pmtl/.__nvfl_sig.json", "{}"), ("pmtl/app/.__nvfl_submitter.crt", "x")]
    assert refusal(_archive(made, more=signed)) is None
    read = read_job(made / "app/config/pmtl.json")
    assert read == JobSettings("r1", echo=Echo(bytes=1, rounds=1, deadline=1))


@pytest.mark.parametrize(
    ("change", "more", "reason"),
    [
        (None, [("pmtl/app/custom/evil.py", "1")], "other files"),
        (None, [("pmtl/app/custom/", "")], "other folders"),
        (None, [("pmtl/app/custom/.__nvfl_sig.json", "1")], "other folders"),
        (None, [("../evil.py", "1")], "other files"),
        (("meta.json", lambda c: c.replace(b"@ALL", b"a")), [], "meta.json is not that of pmtl"),
        (
            ("config_fed_server.json", lambda c: c.replace(b"PmtlController", b"Other")),
            [],
            "config_fed_server.json is not that of pmtl",
        ),
        (
            ("config_fed_client.json", lambda c: b'{"format_version": 2, "executors": [1]}'),
            [],
            "config_fed_client.json is not that of pmtl",
        ),
        (("pmtl.json", lambda c: b"[" * 10**5), [], "cannot be read"),
        (("pmtl.json", lambda c: b" " * (2**20 + 1)), [], "too long"),
        (("pmtl.json", lambda c: b'{"name": "../../etc"}'), [], "not a valid run name"),
        (("pmtl.json", lambda c: b'{"name": "\\u212a"}'), [], "not a valid run name"),
        (("pmtl.json", lambda c: b"{}"), [], "no name of a run"),
        (("pmtl.json", lambda c: b"[]"), [], "no name of a run"),
        (("pmtl.json", lambda c: b'{"name": "r"}'), [], "either a run or an echo"),
        *(
            (("pmtl.json", lambda c, more=more: b'{"name": "r", ' + more), [], reason)
            for more, reason in {
                b'"job": [1]}': "the entry 'job' is not valid: ",
                b'"job": {}, "colour": 1}': "no entry of the job's settings named 'colour'",
                b'"job": {}, "resume": "false"}': "the entry 'resume' is not valid: 'false'",
                b'"echo": {"bytes": 1, "rounds": 1}}': "no entry 'deadline' in the echo",
                b'"echo": {"bytes": "1", "rounds": 1, "deadline": 1}}': "'bytes' is not valid",
                b'"echo": {"bytes": -1, "rounds": 1, "deadline": 1}}': "has 0 to 2^30 bytes",
                b'"echo": {"bytes": 1, "rounds": 0, "deadline": 1}}': "1 to 10^6 rounds",
                b'"echo": {"bytes": 1, "rounds": 1, "deadline": NaN}}': "up to 3600 seconds",
            }.items()
        ),
    ],
)
def test_every_other_job_is_refused(tmp_path, change, more, reason):
    assert reason in refusal(_archive(write_job(ECHO, tmp_path), change, more))


@pytest.mark.parametrize("content", [None, b"", b"no zip"])
def test_what_is_no_job_is_refused(content):
    assert "cannot be read" in refusal(content)


@pytest.mark.parametrize(
    "config",
    [
        {"model": "os:system"},
        {"algorithm": "subprocess:Popen:args=id"},
        {"metric": "builtins:eval"},
        {"privacy": {"sampling": "some.module:Name"}},
    ],
)
def test_a_job_does_not_name_code(tmp_path, config):
    asked = {"name": "r1", "job": {"run": "r1", "config": config}}
    with pytest.raises(PmtlError, match="does not import code that a job names"):
        write_job(asked, tmp_path)
    made = write_job(ECHO, tmp_path)
    changed = ("pmtl.json", lambda _: json.dumps(asked).encode())
    assert "does not import code that a job names" in refusal(_archive(made, changed))


def test_settings_with_options_of_the_library_pass(tmp_path):
    config = {"model": "mlp:hidden=4", "algorithm": "pmtl:lam=0.1", "metric": None}
    asked = {"name": "r1", "job": {"run": "r1", "config": {**config, "privacy": {"epsilon": 1}}}}
    assert refusal(_archive(write_job(asked, tmp_path))) is None
