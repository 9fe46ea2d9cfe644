"""Answers that come late, from nobody or from a process that was started again."""

from __future__ import annotations

import threading
import time

import pytest

pytest.importorskip("nvflare", reason="NVFLARE is an extra: pip install 'pmtl[federation]'")

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.message import Message

from pmtl.federation.nvflare import cells
from pmtl.federation.nvflare.cells import CellTransport

SITES = ("a", "b", "c")


class Cell:
    """Stands for NVFLARE's: each site answers with its own function of the message."""

    def __init__(self, **sites):
        self.sites, self.numbers = sites, dict.fromkeys(sites, b"1")

    def send_request(self, topic, target, request, timeout, abort_signal, **more):
        if target not in self.sites:
            raise RuntimeError("unreachable")
        if topic == "ping":
            return Message({MessageHeaderKey.ORIGIN: target}, self.numbers[target])
        end = time.monotonic() + timeout
        answer = self.sites[target](request.payload, lambda: abort_signal.triggered)
        if time.monotonic() > end:
            return Message({MessageHeaderKey.RETURN_CODE: ReturnCode.TIMEOUT}, None)
        return (
            answer
            if isinstance(answer, Message)
            else Message({MessageHeaderKey.ORIGIN: target}, answer)
        )


def _transport(cell):
    return CellTransport(cell, SITES, lambda: frozenset(SITES))


#: Well under what these tests would wait if nothing ended their waiting (20 seconds and more).
PATIENCE = 15


def _slow(seconds):
    def answer(content, dropped):
        end = time.monotonic() + seconds
        while time.monotonic() < end and not dropped():
            time.sleep(0.02)
        return b"late"

    return answer


def _quick(content, dropped):
    return content.upper()


def test_answers_are_bytes_by_the_name_of_the_site():
    cell = Cell(a=_quick, b=lambda c, _: memoryview(b"B"), c=lambda c, _: bytearray(b"C"))
    transport = _transport(cell)
    answers = transport.ask(dict.fromkeys(SITES, b"x"), 5)
    assert answers == {"a": b"X", "b": b"B", "c": b"C"}
    assert all(type(answer) is bytes for answer in answers.values())
    assert transport.present() == frozenset(SITES)


def test_late_answers_and_absent_sites_cost_the_others_nothing():
    transport = _transport(Cell(a=_quick, b=_slow(30)))
    began = time.monotonic()
    assert transport.ask(dict.fromkeys(SITES, b"x"), 0.5) == {"a": b"X"}
    assert time.monotonic() - began < PATIENCE
    assert transport.present() == {"a", "b"}


def test_it_waits_only_for_the_sites_that_are_named():
    transport = _transport(Cell(a=_quick, b=_slow(30), c=_quick))
    began = time.monotonic()
    answers = transport.ask(dict.fromkeys(SITES, b"x"), 20, frozenset({"a", "c"}))
    assert answers == {"a": b"X", "c": b"X"}
    assert time.monotonic() - began < PATIENCE


def test_refusals_and_answers_of_another_origin_are_dropped():
    cell = Cell(
        a=lambda c, _: Message(
            {MessageHeaderKey.RETURN_CODE: ReturnCode.PROCESS_EXCEPTION}, b"private"
        ),
        b=lambda c, _: Message({MessageHeaderKey.ORIGIN: "a"}, b"forged"),
        c=lambda c, _: Message({MessageHeaderKey.ORIGIN: "c"}, {"no": "bytes"}),
    )
    assert _transport(cell).ask(dict.fromkeys(SITES, b"x"), 2) == {}


def test_a_process_that_was_started_again_is_not_awaited(monkeypatch):
    monkeypatch.setattr(cells, "PING_EVERY", 0.1)
    cell = Cell(a=_quick, b=_slow(30))
    threading.Timer(0.5, lambda: cell.numbers.update(b=b"2")).start()
    began = time.monotonic()
    assert _transport(cell).ask(dict.fromkeys(("a", "b"), b"x"), 25) == {"a": b"X"}
    assert 0.4 < time.monotonic() - began < PATIENCE


def test_a_site_without_a_sign_of_life_is_not_awaited(monkeypatch):
    monkeypatch.setattr(cells, "PING_EVERY", 0.1)
    monkeypatch.setattr(cells, "GIVE_UP", 0.5)
    cell = Cell(a=_quick, b=_slow(30))
    threading.Timer(0.3, lambda: cell.numbers.update(b=b"")).start()
    began = time.monotonic()
    assert _transport(cell).ask(dict.fromkeys(("a", "b"), b"x"), 25) == {"a": b"X"}
    assert 0.5 < time.monotonic() - began < PATIENCE


def test_closing_ends_the_waiting():
    transport = _transport(Cell(a=_slow(30)))
    threading.Timer(0.3, transport.close).start()
    began = time.monotonic()
    assert transport.ask({"a": b"x"}, 25) == {}
    assert time.monotonic() - began < PATIENCE


def test_a_name_that_no_site_has_is_an_error():
    with pytest.raises(ValueError, match="no site has the name 'd'"):
        _transport(Cell()).ask({"d": b""}, 1)
