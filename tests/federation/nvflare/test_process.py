"""Starting and ending a process of a kit."""

from __future__ import annotations

import os
import signal
import socket
import threading

import pytest

pytest.importorskip("nvflare", reason="NVFLARE is an extra: pip install 'pmtl[federation]'")

from nvflare.apis.fl_exception import FLCommunicationError
from nvflare.fuel.f3.cellnet.defs import ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.private.fed.authenticator import Authenticator

from pmtl.errors import PmtlError
from pmtl.federation.nvflare import process, site
from pmtl.federation.nvflare.kits import provision
from pmtl.federation.nvflare.process import supervise
from pmtl.storage import exclusive


@pytest.fixture(scope="module")
def listener():
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        made.listen()
        yield made


@pytest.fixture(scope="module")
def kits(tmp_path_factory, listener):
    out = tmp_path_factory.mktemp("process") / "kits"
    provision(f"localhost:{listener.getsockname()[1]}", ["a"], out)
    return out


def test_a_port_that_is_taken_is_refused(kits):
    with pytest.raises(PmtlError, match="cannot listen on port"):
        supervise(kits / "server", print)


def test_one_process_for_each_kit(kits):
    with (
        exclusive(kits / "a/.lock"),
        pytest.raises(PmtlError, match="Another process is working on"),
    ):
        supervise(kits / "a", print)


def test_a_site_with_a_mistake_in_its_file_says_so_and_is_not_started_again(kits, capfd):
    file = kits / "a/local/pmtl-site.toml"
    file.write_text('[site]\ndata = "x.csv"\nfolder = "models"\n[limits]\nepsilom = 3\n')
    with pytest.raises(SystemExit) as ended:
        supervise(kits / "a", pytest.fail)
    file.unlink()
    assert ended.value.code == 2
    assert "epsilom" in capfd.readouterr().err


def test_a_process_that_crashes_again_and_again_is_given_up(kits, monkeypatch):
    said = []
    monkeypatch.setattr(process, "CRASHES", 2)
    monkeypatch.setattr(process, "__name__", "no.such.module")
    with pytest.raises(PmtlError, match="ended 2 times"):
        supervise(kits / "a", said.append)
    assert len(said) == 1
    assert "it starts again" in said[0]


def test_a_signal_ends_it_and_the_handlers_are_put_back(kits):
    before = signal.getsignal(signal.SIGTERM)
    threading.Timer(2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    supervise(kits / "a", pytest.fail)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_site_that_is_not_let_in_yet_asks_again_and_says_what_to_do(monkeypatch, caplog):
    class Silent:
        def __init__(self, code):
            self.code = code

        def send_request(self, timeout, **_):
            assert timeout < 10  # So that it is in soon after it is let in.
            return make_reply(self.code)

    def site_of(code):
        return Authenticator(Silent(code), "pmtl", "d", "", "", True, "", "", "", 30.0, 2.0)

    monkeypatch.setattr(Authenticator, "_challenge_server", Authenticator._challenge_server)
    site.retry_until_admitted()
    waiting = site_of(ReturnCode.TIMEOUT)
    assert [waiting._challenge_server() for _ in range(2)] == 2 * [(None, None)]
    assert waiting.msg_timeout == 30
    (line,) = caplog.messages
    assert "pmtl federation members KITS/server --add d" in line
    with pytest.raises(FLCommunicationError, match="unauth"):
        site_of(ReturnCode.UNAUTHENTICATED)._challenge_server()


def test_a_process_that_ends_while_it_starts_imports_nothing(monkeypatch):
    ended = []
    monkeypatch.setattr(process.os, "_exit", ended.append)
    for name in ("site", "guard"):
        monkeypatch.delitem(process.sys.modules, f"pmtl.federation.nvflare.{name}", raising=False)
    process._exit(process._leave, 3.0)
    process._exit(process._stop_jobs, 12.0)
    assert ended == [0, 0]
    assert "pmtl.federation.nvflare.site" not in process.sys.modules
