"""The device, threads, signals and memory of the process of a run."""

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

from pmtl.errors import PmtlError


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Set torch's number of threads to `count`; restore it afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def devices() -> list[str]:
    """The devices of this machine, with threads or memory."""
    threads = torch.get_num_threads()
    found = [f"cpu ({threads} thread{'s' * (threads > 1)})"]
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        about = torch.cuda.get_device_properties(number)
        found.append(f"cuda:{number} ({about.name}, {about.total_memory / 2**30:.0f} GiB)")
    if len(found) == 1:
        built = torch.version.cuda is not None
        found[0] += ", no CUDA device" if built else ", and a PyTorch without CUDA"
    return found


def resolve_device(device: str) -> str:
    """The device to use; `auto` is the graphics card if there is one."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise PmtlError(
            f"The device {device!r} cannot be used here. There is: {', '.join(devices())}. "
            "--device auto uses the best of them."
        ) from error
    return device


def peak_resident_bytes() -> int:
    """The largest amount of memory that this process has held so far."""
    try:
        # getrusage would include the peak of the program that started this one.
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])
    except (OSError, IndexError, ValueError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak


_stops: list[threading.Event] = []


@contextmanager
def graceful_stop() -> Iterator[threading.Event]:
    """Let Ctrl-C and SIGTERM end a run after the current round; a second signal ends it at once.

    If it is nested, as for the runs of a comparison, all share one event.
    """
    if _stops:
        yield _stops[-1]
        return
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # Only the main thread may handle signals.
        return

    def handle(number: int, frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    _stops.append(stop)
    try:
        yield stop
    finally:
        _stops.pop()
        for number, handler in before.items():
            signal.signal(number, handler)
