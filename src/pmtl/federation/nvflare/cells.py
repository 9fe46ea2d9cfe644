"""The server's side of the transport: messages to sites and their answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.byte_receiver import RxTask

CHANNEL = "pmtl"
ASK, PING, ECHO = "ask", "ping", "echo"
PING_BYTES = 16  #: of the number of a site's process
_PING_SECONDS, PING_EVERY = 3.0, 2.0
GIVE_UP = 30.0  # Seconds without a sign of life after which the server stops waiting for a site.


class CellTransport:
    """A `Transport` over NVFLARE's cells.

    A request goes to the cell with the site's name, and only the holder of the site's certificate
    has that name. Its answer is found by a random number that no other site sees. Payloads are
    bytes and are not decoded by NVFLARE. `cell` is the cell of the job's process; `registered`
    gives the sites that the server knows to be connected.
    """

    def __init__(
        self, cell: Any, sites: tuple[str, ...], registered: Callable[[], frozenset[str]]
    ) -> None:
        self.sites = sites
        self.asked = 0  #: how many times sites were asked
        self._cell, self._registered, self._closed = cell, registered, threading.Event()
        self._threads = ThreadPoolExecutor(max_workers=4 * len(sites), thread_name_prefix="ask")

    def present(self) -> frozenset[str]:
        """The sites that are connected now: those that are registered and answer at once."""
        return frozenset(self._ping(self._registered() & frozenset(self.sites)))

    def ask(
        self,
        messages: Mapping[str, bytes],
        deadline: float,
        wait_for: frozenset[str] | None = None,
        topic: str = ASK,
    ) -> dict[str, bytes]:
        """As `Transport.ask`. The server stops waiting for a site if the site's process was started
        again, or gives no sign of life for 30 seconds. With the topic `ECHO` sites only send back
        what they received, for measuring."""
        if unknown := set(messages) - set(self.sites):
            raise ValueError(f"no site has the name {sorted(unknown)[0]!r}")
        self.asked += 1
        begun = time.monotonic()
        late = Signal()
        alive = self._ping(frozenset(messages), min(deadline, _PING_SECONDS))
        waiting = {
            self._threads.submit(self._request, site, messages[site], deadline, topic, late): site
            for site in alive
        }
        pending = _Pending(alive)
        wanted = frozenset(messages) if wait_for is None else wait_for
        answers: dict[str, bytes] = {}
        pings: Future[dict[str, bytes]] | None = None
        while wanted & (frozenset(waiting.values()) - pending.lost) and not self._closed.is_set():
            if (left := begun + deadline - time.monotonic()) <= 0:
                break
            done, _ = wait(waiting, timeout=min(left, 0.2), return_when=FIRST_COMPLETED)
            for future in done:
                site = waiting.pop(future)
                if (answer := future.result()) is not None:
                    answers[site] = answer
            if pings is None:
                if pending.due():
                    asked = frozenset(waiting.values())
                    pings = self._threads.submit(self._ping, asked)
            elif pings.done():
                pending.answered(asked, pings.result())
                pings = None
        late.trigger(True)  # What is still under way is dropped.
        return answers

    def close(self) -> None:
        """End the threads; answers that are still awaited are dropped."""
        self._closed.set()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ping(self, sites: frozenset[str], seconds: float = _PING_SECONDS) -> dict[str, bytes]:
        """The number of the process of each site that answers at once."""
        late = Signal()
        asked = {
            site: self._threads.submit(self._request, site, b"", seconds, PING, late)
            for site in sites
        }
        wait(asked.values(), timeout=seconds)
        late.trigger(True)
        found = {site: future.result() for site, future in asked.items() if future.done()}
        return {site: number for site, number in found.items() if number}

    def _request(
        self, site: str, content: bytes, deadline: float, topic: str, late: Signal
    ) -> bytes | None:
        if late.triggered:
            return None
        try:
            reply = self._cell.send_request(
                channel=CHANNEL,
                topic=topic,
                target=site,
                request=Message({}, content),
                timeout=deadline,
                optional=True,
                abort_signal=late,
            )
        except Exception:  # A site that cannot be reached does not answer.
            return None
        headers = reply.headers or {}
        code = headers.get(MessageHeaderKey.RETURN_CODE, ReturnCode.OK)
        origin = headers.get(MessageHeaderKey.ORIGIN, site)
        if code != ReturnCode.OK or origin != site or late.triggered:
            return None
        if not isinstance(reply.payload, bytes | bytearray | memoryview):
            return None
        answer = bytes(reply.payload)
        if topic != PING:
            _release(site)
        return answer


def _release(site: str) -> None:
    """Free the answers of a site that were copied. NVFLARE keeps what it received for a minute, in
    case that the site sends a part of it again, and would keep all rounds of that minute."""
    with RxTask.map_lock:
        tasks = [task for (origin, _), task in RxTask.rx_task_map.items() if origin == site]
    for task in tasks:
        future = task.stream_future
        if task.completed and future is not None and task.size > PING_BYTES:
            future.value = None


class _Pending:
    """Finds awaited sites that have lost the request."""

    def __init__(self, alive: Mapping[str, bytes]) -> None:
        self.lost: frozenset[str] = frozenset()
        self._alive = dict(alive)
        self._answered = dict.fromkeys(alive, time.monotonic())
        self._next = time.monotonic() + PING_EVERY

    def due(self) -> bool:
        """Whether it is time to ping again."""
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + PING_EVERY
        return True

    def answered(self, asked: frozenset[str], numbers: Mapping[str, bytes]) -> None:
        """Record the answers of the sites that were pinged."""
        now = time.monotonic()
        self._answered |= dict.fromkeys(numbers, now)
        self.lost |= {
            site
            for site in asked
            if now - self._answered[site] > GIVE_UP
            or (site in numbers and numbers[site] != self._alive[site])
        }
