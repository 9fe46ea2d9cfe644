"""Timing that can be repeated: contenders take turns, and the mean and median of several turns
count. The mean is what a whole run costs; the median is less disturbed by other programs."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

#: What one contender does: so many rounds on end.
Turn = Callable[[int], object]


#: A turn is as many rounds on end as take about so long, as in training; what is given is one's.
TURN_SECONDS, MOST_ROUNDS = 2.0, 50


def seconds(turn: Turn, device: torch.device, rounds: int = 1) -> tuple[float, float]:
    """How long one of so many rounds takes, with everything that it set going on the device: by
    the clock, and in seconds of all cores together."""
    _wait(device)
    clock, cores = time.perf_counter(), time.process_time()
    turn(rounds)
    _wait(device)
    return (time.perf_counter() - clock) / rounds, (time.process_time() - cores) / rounds


def take_turns(
    contenders: dict[str, Turn], device: torch.device, repeats: int, patience: float
) -> dict[str, dict[str, Any]]:
    """Seconds of every contender: its first turn (with compiling and warming up), and the mean,
    the median, the least and the most of the others. The turns are interleaved and change places,
    so that whatever else the machine is doing falls upon all. A contender that has had `patience`
    seconds sits out."""
    first = {name: seconds(turn, device)[0] for name, turn in contenders.items()}
    rounds = dict.fromkeys(contenders, 1)
    for name, turn in contenders.items():
        settled = seconds(turn, device)[0]
        if settled < TURN_SECONDS:  # It may warm up twice.
            settled = min(settled, *(seconds(turn, device)[0] for _ in range(2)))
        rounds[name] = max(1, min(MOST_ROUNDS, int(TURN_SECONDS / settled)))
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    order = list(contenders.items())
    for _ in range(repeats):
        order.append(order.pop(0))  # Nobody always follows the same one.
        for name, turn in order:
            if sum(clock for clock, _ in times[name]) * rounds[name] < patience:
                times[name].append(seconds(turn, device, rounds[name]))
    return {
        name: {"first": first[name], "rounds_a_turn": rounds[name], **_summary(taken)}
        for name, taken in times.items()
    }


def _summary(taken: list[tuple[float, float]]) -> dict[str, Any]:
    clock, cores = zip(*taken, strict=True)
    return {
        "mean": statistics.mean(clock),
        "median": statistics.median(clock),
        "least": min(clock),
        "most": max(clock),
        "core_seconds": statistics.median(cores),
        "turns": len(taken),
    }


def matmul_rate(device: torch.device, tf32: bool, size: int = 8192) -> float:
    """FLOP/s of large products of float32 matrices, in or without TensorFloat-32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        a, b = (torch.randn(size, size, device=device) for _ in range(2))
        taken = [seconds(lambda rounds: a @ b, device)[0] for _ in range(8)]
        return 2 * size**3 / statistics.median(taken[2:])
    finally:
        torch.set_float32_matmul_precision(before)


def machine(device: torch.device) -> dict[str, Any]:
    """What was measured on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    return {
        "device": name,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123
            names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
        return names[0]
    except (OSError, IndexError):
        return platform.processor() or platform.machine()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
