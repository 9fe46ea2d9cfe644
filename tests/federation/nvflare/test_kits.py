"""Kits that let nobody in but their owners."""

from __future__ import annotations

import datetime
import json
import shutil
import stat
import subprocess
import sys

import pytest

pytest.importorskip("nvflare", reason="NVFLARE is an extra: pip install 'pmtl[federation]'")

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from pmtl.errors import PmtlError, PublicError
from pmtl.federation.nvflare.kits import (
    add_sites,
    check_certificate,
    parse_server,
    provision,
    renew,
)
from pmtl.federation.nvflare.policy import check_role, role_of, site_names, write_policy
from pmtl.secure_aggregation.identity import Attempt, Identity


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    out = tmp_path_factory.mktemp("provision") / "kits"
    return out, provision("fl.example.org:9000", ["north", "south_2"], out)


def _certificate(file):
    return x509.load_pem_x509_certificate(file.read_bytes())


def test_each_participant_has_its_own_kit_and_certificate(kits):
    out, made = kits
    assert set(made) == {"server", "north", "south_2", "admin", "ca"}
    names = {"server/startup/server.crt": "fl.example.org", "north/startup/client.crt": "north",
             "south_2/startup/client.crt": "south_2",
             "admin/startup/client.crt": "admin@pmtl.local"}  # fmt: skip
    root = _certificate(out / "ca/rootCA.pem")
    for file, name in names.items():
        certificate = _certificate(out / file)
        certificate.verify_directly_issued_by(root)
        (found,) = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        assert found.value == name
    assert site_names(out / "server") == ("north", "south_2")
    assert [role_of(out / name) for name in ("server", "north", "admin")] == [
        "server", "site", "admin",
    ]  # fmt: skip


def test_private_keys_are_for_their_owner_and_there_is_one_in_each_kit(kits):
    out, made = kits
    keys = sorted(out.rglob("*.key"))
    assert [str(key.relative_to(out).parts[0]) for key in keys] == sorted(made)
    for key in keys:
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        assert stat.S_IMODE((out / key.relative_to(out).parts[0]).stat().st_mode) == 0o700
    texts = [file for file in out.rglob("*") if file.is_file() and file.suffix != ".key"]
    assert not [file for file in texts if "PRIVATE KEY" in file.read_text()]


def test_only_sites_can_give_keys_for_secure_aggregation(kits):
    """The server and the administrator have certificates, but not those of sites."""
    out, _ = kits
    site = Identity.read("south_2", out / "south_2/startup")
    attempt = Attempt(site.federation, "run", 0, "x")

    def check(name, file):
        parts = [(out / f"{file}.{end}").read_bytes() for end in ("crt", "key")]
        other = Identity(name, *parts, (out / "ca/rootCA.pem").read_bytes())
        site.check(attempt, other.sign(attempt, X25519PrivateKey.generate()))

    check("north", "north/startup/client")
    for name, file in {
        "fl.example.org": "server/startup/server",
        "admin@pmtl.local": "admin/startup/client",
    }.items():
        with pytest.raises(PublicError, match="is not that of a site"):
            check(name, file)


def test_what_nvflare_may_do(kits):
    out, _ = kits
    server, site = (
        {f.name: json.loads(f.read_text()) for f in (out / name / "local").glob("*.json")}
        for name in ("server", "north")
    )
    resources = server["resources.json"]
    assert resources["class_list_enforcement_mode"] == "enforce"
    assert resources["class_allow_list"] == ["pmtl.federation.nvflare.controller.PmtlController"]
    assert str(out.resolve()) in json.dumps(resources)
    assert "/tmp/nvflare" not in json.dumps(resources)
    lead = server["authorization.json"]["permissions"].pop("lead")
    allowed = {right for right, who in lead.items() if who != "none"}
    assert allowed == {"submit_job", "manage_job", "view", "app_command"}
    assert set(server["authorization.json"]["permissions"].values()) == {"none"}
    assert set(site["authorization.json"]["permissions"].values()) == {"none"}
    assert site["resources.json"]["class_allow_list"] == []
    assert site["resources.json"]["allow_log_streaming"] is False
    assert site["comm_config.json"]["allow_adhoc_conns"] is False
    started = json.loads((out / "server/startup/fed_server.json").read_text())
    assert started["require_signed_jobs"] is True
    assert started["servers"][0]["connection_security"] == "mtls"
    assert not list(out.rglob("*.sh"))


def test_a_changed_policy_is_written_anew_and_custom_code_is_refused(kits):
    out, _ = kits
    file = out / "south_2/local/authorization.json"
    before = file.read_text()
    file.write_text('{"format_version": "1.0", "permissions": {"project_admin": "any"}}')
    write_policy(out / "south_2")
    assert file.read_text() == before
    (out / "south_2/local/more__p_resources.json").write_text("{}")
    with pytest.raises(PmtlError, match="more than a kit's files"):
        write_policy(out / "south_2")


@pytest.mark.parametrize(
    ("server", "sites", "sentence"),
    [
        ("fl.example.org:0", ["a"], "no valid port"),
        ("fl.example.org:http", ["a"], "no valid port"),
        ("::1", ["a"], "not a host name"),
        ("https://fl.example.org", ["a"], "not a host name"),
        ("", ["a"], "not a host name"),
        ("h", [], "at least one site"),
        ("h", ["a", "A"], "twice"),
        ("h", ["server"], "reserved"),
        ("h", ["../a"], "not a valid site name"),
        ("h", ["a.b"], "not a valid site name"),
        ("h", ["a" * 41], "not a valid site name"),
    ],
)
def test_mistakes_are_sentences_and_leave_nothing(tmp_path, server, sites, sentence):
    with pytest.raises(PmtlError, match=sentence):
        provision(server, sites, tmp_path / "kits")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_exists_is_refused(tmp_path):
    (tmp_path / "kits").mkdir()
    with pytest.raises(PmtlError, match="exists"):
        provision("h", ["a"], tmp_path / "kits")


def test_the_port_may_be_left_out():
    assert parse_server("10.0.0.5") == ("10.0.0.5", 8002)


def test_another_kit_than_the_command_needs_is_refused(kits, tmp_path):
    out, _ = kits
    with pytest.raises(PmtlError, match="is the kit of a site, and this command needs that of the"):
        check_role(out / "north", "server")
    with pytest.raises(PmtlError, match="is not a kit"):
        check_role(out, "server")
    with pytest.raises(PmtlError, match="There is no folder"):
        check_role(tmp_path / "none", "admin")


def test_a_site_is_added_with_a_certificate_of_the_same_root(tmp_path):
    provision("h:9000", ["a"], tmp_path / "kits")
    before = {f: f.read_bytes() for f in (tmp_path / "kits").rglob("*.*") if f.is_file()}
    made = add_sites(tmp_path / "kits", ["b", "c"])
    assert set(made) == {"b", "c"}
    root = _certificate(tmp_path / "kits/ca/rootCA.pem")
    for name, place in made.items():
        certificate = _certificate(tmp_path / "kits" / name / "startup/client.crt")
        certificate.verify_directly_issued_by(root)
        (found,) = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        assert found.value == name
        assert role_of(tmp_path / "kits" / name) == "site"
        started = json.loads((tmp_path / "kits" / name / "startup/fed_client.json").read_text())
        assert started["servers"][0]["service"]["target"] == "h:9000"
        assert str(tmp_path / "kits" / name) == place
    changed = {f for f, content in before.items() if f.read_bytes() != content}
    assert changed == {tmp_path / "kits/ca/federation.json"}
    assert {f.name for f in (tmp_path / "kits").iterdir()} == {
        "a", "b", "c", "admin", "ca", "server",
    }  # fmt: skip
    for name in ("a", "B"):
        with pytest.raises(PmtlError, match="had a site of this name"):
            add_sites(tmp_path / "kits", [name])


def test_a_name_that_was_used_is_not_given_again_when_its_kit_is_gone(tmp_path):
    provision("h", ["a", "b"], tmp_path / "kits")
    shutil.rmtree(tmp_path / "kits/b")
    with pytest.raises(PmtlError, match="had a site of this name"):
        add_sites(tmp_path / "kits", ["b"])


def test_kits_are_renewed_with_new_keys_of_the_same_root(tmp_path):
    provision("h", ["a"], tmp_path / "kits")
    add_sites(tmp_path / "kits", ["b"])
    made = renew(tmp_path / "kits", tmp_path / "new")
    assert set(made) == {"server", "a", "b", "admin"}
    assert {f.name for f in (tmp_path / "new").iterdir()} == set(made)
    root = _certificate(tmp_path / "kits/ca/rootCA.pem")
    for file in ("server/startup/server.crt", "a/startup/client.crt", "admin/startup/client.crt"):
        old, new = (_certificate(tmp_path / folder / file) for folder in ("kits", "new"))
        new.verify_directly_issued_by(root)
        assert new.subject == old.subject
        assert new.public_key() != old.public_key()
    assert site_names(tmp_path / "new/server") == ("a", "b")


def test_certificates_begin_yesterday_and_the_root_outlives_them(kits):
    out, _ = kits
    now = datetime.datetime.now(datetime.UTC)
    root, site = (_certificate(out / f) for f in ("ca/rootCA.pem", "north/startup/client.crt"))
    for certificate in (root, site):
        assert now - certificate.not_valid_before_utc > datetime.timedelta(hours=23)
    assert (site.not_valid_after_utc - now).days in range(350, 361)
    assert (root.not_valid_after_utc - now).days > 3000


def test_new_kits_need_the_folder_with_the_root(tmp_path):
    for task in (lambda: add_sites(tmp_path, ["a"]), lambda: renew(tmp_path, tmp_path / "new")):
        with pytest.raises(PmtlError, match="with its folder ca"):
            task()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("days", "refused"), [(-3, True), (0, False), (355, False), (400, True)])
def test_a_certificate_that_has_ended_is_a_sentence(kits, monkeypatch, days, refused):
    out, _ = kits
    now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return now

    monkeypatch.setattr(datetime, "datetime", Clock)
    for name in ("server", "north", "admin"):
        if refused:
            with pytest.raises(PmtlError, match="Set the clock, or get new certificates"):
                check_certificate(out / name)
        else:
            said = check_certificate(out / name)
            assert (said is not None) == (days == 355)


def test_the_module_is_read_without_the_extra():
    """So that the commands can say in a sentence what to install."""
    code = (
        "import sys; sys.modules['cryptography'] = sys.modules['nvflare'] = None; "
        "import pmtl.federation.nvflare.kits"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
