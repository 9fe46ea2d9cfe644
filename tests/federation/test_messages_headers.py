"""Messages are what was declared: wrong types, missing and unknown entries are refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from test_coordinator_faults import PMTL
from three_sites import Faulty, coordinate, job, services, write_tables

from pmtl.errors import PublicError
from pmtl.federation import messages
from pmtl.federation.messages import Message

ATTEMPT = {"run": "r1", "round": 3, "attempt": "x"}
#: A header of every kind that has entries, and for each entry a value of another type.
HEADERS = [
    messages.Invite({"seed": 3}, "0.2", False),
    messages.Joined(("a/p0",), {"outputs": 1}, "f"),
    messages.Start({"run": "r1"}, "0.2", True),
    messages.AskKey(**ATTEMPT, counted=-1),
    messages.AskUploads(**ATTEMPT, counted=-1, summed=False),
    messages.AskMasked(**ATTEMPT, counted=-1, keys=({"site": "a"},)),
    messages.Uploads(3, "x"),
    messages.Key(3, "x", {"site": "a"}),
    messages.Masked(3, "x"),
    messages.Finish("r1", 3, 4),
    messages.Refused("No."),
]
WRONG = {bool: "false", int: True, str: 3, tuple: "a", dict: [1]}


def _sent(header, **changes):
    given = header.message().header
    entries = {k: v for k, v in {**given, **changes}.items() if v is not None}
    return Message.from_bytes(Message(header.kind, entries).to_bytes())


def test_every_kind_of_header_is_here():
    known, todo = set(), [messages.Header]
    while todo:
        known.add(kind := todo.pop())
        todo += kind.__subclasses__()
    empty = {messages.Header, messages.Ready, messages.Done}
    assert known == {type(header) for header in HEADERS} | empty


@pytest.mark.parametrize("header", HEADERS, ids=lambda header: type(header).__name__)
def test_a_header_reads_back_and_nothing_else_does(header):
    assert _sent(header).read(type(header)) == header
    for name, value in vars(header).items():
        with pytest.raises(PublicError, match=f"is refused: .*the entry '{name}' is not valid"):
            _sent(header, **{name: WRONG[type(value)]}).read(type(header))
        if name != "fingerprint":  # Not every site sends one.
            with pytest.raises(PublicError, match=f"is refused: There is no entry '{name}'"):
                _sent(header, **{name: None}).read(type(header))
    with pytest.raises(PublicError, match=r"is refused: There is no entry .* named 'colour'"):
        _sent(header, colour="red").read(type(header))
    with pytest.raises(PublicError, match="it is not of the kind 'ready'"):
        _sent(header).read(messages.Ready)


def test_text_is_no_truth_value_for_a_site(tmp_path):
    """`bool("false")` is true: the site would send a sum where rows were agreed, or the reverse."""
    sites, said = services(write_tables(tmp_path / "tables"), tmp_path / "sites"), []

    def twist(site, message, answer):
        if site == "b" and message.kind == "round":
            for changes in ({"summed": "false"}, {"round": "0"}, {"round": 0.0}, {"colour": 1}):
                wrong = Message("round", {**message.header, **changes}, message.arrays)
                said.append(Message.from_bytes(sites[site].handle(wrong.to_bytes())))
        return answer()

    _, told = coordinate(job(**PMTL), sites, tmp_path / "server", transport=Faulty(sites, twist))
    assert {answer.kind for answer in said} == {"refused"}
    assert len({answer.header["sentence"] for answer in said}) == 4
    assert all("A message is refused: " in answer.header["sentence"] for answer in said)
    assert not any("did not answer" in sentence for sentence in told)  # The site's state is as new.


@pytest.mark.parametrize("changes", [{"colour": 1}, {"round": True}, {"attempt": None}])
def test_an_answer_that_is_not_as_declared_does_not_count(tmp_path, changes):
    sites = services(write_tables(tmp_path / "tables"), tmp_path / "sites")

    def twist(site, message, answer):
        read = Message.from_bytes(answer())
        if site != "b" or read.kind != "uploads" or message.header["round"] != 1:
            return read.to_bytes()
        return Message("uploads", {**read.header, **changes}, read.arrays).to_bytes()

    _, told = coordinate(job(**PMTL), sites, tmp_path / "server", transport=Faulty(sites, twist))
    assert "Site 'b', round 2: It sent an answer that was not asked for." in told
    assert "Site 'b' did not answer round 2; it counts as zero." in told


@pytest.mark.parametrize("kind", ["ready", "done"])
def test_an_answer_without_entries_has_none(tmp_path, kind):
    sites = services(write_tables(tmp_path / "tables"), tmp_path / "sites")

    def twist(site, message, answer):
        read = Message.from_bytes(answer())
        more = {"colour": 1} if site == "b" and read.kind == kind else {}
        return Message(read.kind, {**read.header, **more}, read.arrays).to_bytes()

    def run():
        return coordinate(job(**PMTL), sites, tmp_path / "server", transport=Faulty(sites, twist))

    if kind == "done":
        assert any("Site 'b' did not confirm the end" in sentence for sentence in run()[1])
    else:
        with pytest.raises(messages.PmtlError, match="b: It sent an answer that was not asked for"):
            run()


@pytest.mark.parametrize(
    "header",
    [r'"attempt": "\ud800"', r'"clients": ["b/\ud800"]', r'"\ud800": 1', r'"kind": "\ud800"'],
)
def test_text_that_is_not_valid_unicode_is_refused(header):
    """A site would train, and fail when it writes the answer."""
    with pytest.raises(messages.PmtlError, match=r"A message cannot be read: .*surrogates not"):
        Message.from_bytes(_with_header('{"kind": "round", ' + header + "}"))


@pytest.mark.parametrize("header", ["[]", "3", '{"kind": 3}', "{}", "nonsense"])
def test_bytes_without_a_kind_are_no_message(header):
    with pytest.raises(messages.PmtlError, match="cannot be read"):
        Message.from_bytes(_with_header(header))


def _with_header(header):
    """A message with this text as its header."""
    content = Message("round", {}, {"drawn": np.ones(2)}).to_bytes()
    length = int.from_bytes(content[:8], "little")
    about = json.loads(content[8 : 8 + length])
    about["__metadata__"]["pmtl"] = header
    changed = json.dumps(about).encode()
    return len(changed).to_bytes(8, "little") + changed + content[8 + length :]
