"""A site that lies or is slow, in a process of its own: `python misbehaving.py lying|slow KIT`.

Its process, certificate and rows are a site's; only its answers to some rounds are changed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pmtl.federation.messages import Message

#: Part of an error that must stay in the site's own log.
PRIVATE = "patient 4711"


def _uploads(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Message], bytes]:
    def answer(honest: Message) -> bytes:
        given = {"uploads": change(np.array(honest.arrays["uploads"]))}
        return Message("uploads", honest.header, given).to_bytes()

    return answer


def _other_round(honest: Message) -> bytes:
    return Message("uploads", {**honest.header, "round": 0}, honest.arrays).to_bytes()


def _error(honest: Message) -> bytes:
    raise ValueError(f"the row of {PRIVATE} cannot be used")


#: What the site answers in these rounds. `COUNTED` are answers with uploads that count as zero; all
#: others are dropped.
LIES: dict[int, Callable[[Message], bytes]] = {
    1: _uploads(lambda u: np.full(u.shape, np.nan)),
    2: _uploads(lambda u: np.full(u.shape, 2**31 - 1, dtype=np.int32)),
    3: _uploads(lambda u: u[:, :-1]),
    4: _uploads(lambda u: np.zeros((5000, 5000), dtype=np.int32)),
    5: lambda honest: b"\x08\0\0\0\0\0\0\0nonsense",
    6: lambda honest: b"",
    7: lambda honest: honest.to_bytes()[:-4],
    8: lambda honest: Message("done").to_bytes(),
    9: _other_round,
    10: _error,
}
COUNTED = frozenset({1, 2, 3, 4})


def lying(handle: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """A site's handler with other answers; round 11 is answered with that of round 0."""
    first: list[bytes] = []

    def answer(content: bytes) -> bytes:
        honest, message = handle(content), Message.from_bytes(content)
        if message.kind != "round":
            return honest
        round = int(message.header["round"])
        if round == 0:
            first.append(honest)
        if round == 11:
            return first[0]
        return LIES[round](Message.from_bytes(honest)) if round in LIES else honest

    return answer


def slow(handle: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """A site's handler that takes its time: other sites that are not waited for answer first."""

    def answer(content: bytes) -> bytes:
        time.sleep(0.7)
        return handle(content)

    return answer


if __name__ == "__main__":
    from pmtl.federation import service
    from pmtl.federation.nvflare import process

    how, place, opened = {"lying": lying, "slow": slow}[sys.argv[1]], sys.argv[2], service.open_site
    service.open_site = lambda kit, name: how(opened(kit, name))
    process.write_policy(Path(place))
    sys.exit(process.run(Path(place), None))
