"""What a long run asks of its process: few threads for small work, a graceful end, and how much
memory it took."""

from __future__ import annotations

import resource
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from pmtl.simulation import Sites

#: Threads for what is left to the CPU beside a graphics card: reading rows and drawing noise.
BESIDE_A_CARD = 4
#: A step of a whole cohort that touches fewer floats than this runs on one thread.
SMALL_STEP = 2**22


@contextmanager
def threads_for(work: Sites) -> Iterator[None]:
    """One thread for small steps: waking a second one costs more than it saves (on a busy machine
    several times more), and sums come out the same whatever the machine's default is. Threads that
    have a client each need not wait for one another and are left alone. Beside a graphics card
    there is little to do, and a thread for each of many cores would mostly wait for the others."""
    before = torch.get_num_threads()
    if work.device.type == "cuda":
        torch.set_num_threads(min(before, BESIDE_A_CARD))
    elif work.engine != "threads" and work.step_floats < SMALL_STEP:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def peak_resident_bytes() -> int:
    """The most memory this process has held so far."""
    try:
        # A program started by a larger one inherits that one's peak from getrusage, not from here.
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])
    except (OSError, IndexError, ValueError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak


_stops: list[threading.Event] = []


@contextmanager
def graceful_stop() -> Iterator[threading.Event]:
    """Let Ctrl-C and SIGTERM end a run after the present round; a second one ends it at once.

    Within a comparison, which asks for this itself, all its runs look at the same event.
    """
    if _stops:
        yield _stops[-1]
        return
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # Only the main thread may handle signals.
        return

    def ask(number: int, frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    _stops.append(stop)
    try:
        yield stop
    finally:
        _stops.pop()
        for number, handler in before.items():
            signal.signal(number, handler)
