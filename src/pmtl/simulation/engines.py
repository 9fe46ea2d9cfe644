"""Which engine trains a cohort: decided here, and nowhere else.

A graphics card has the client axis: thousands of small products are one large one. So have models
without convolutions on a CPU, where a loop over clients would spend its time in Python. There a
convolution is large enough for one client to fill a core, and clients are trained one per thread.

An engine decides how quickly a run goes and about the last bits of its sums; batches, cohorts and
noise are the same with all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from pmtl.algorithms import Algorithm
from pmtl.errors import PmtlError
from pmtl.models import FlatModel, Task, has_convolutions
from pmtl.simulation.axis import AxisTrainer
from pmtl.simulation.cohort import CohortTrainer
from pmtl.simulation.threads import ThreadsTrainer
from pmtl.spec import unknown

ENGINES = ("auto", "axis", "threads")

#: What compiling a step costs, and what a compiled step saves, in seconds: so much of launching,
#: and so much for every float that a step touches.
_COMPILE, _SAVED, _SAVED_PER_FLOAT = 40.0, 2e-3, 1e-11


@dataclass(frozen=True)
class Work:
    """What is known of a run's local training before it begins."""

    batch: int  #: rows of a step
    steps: int  #: steps of the whole run, about
    floats: int  #: that a step of a whole cohort touches, about
    width: int | None  #: clients trained at once, where that is always the same number


def check_engine(engine: str, compile: bool | None, device: str) -> None:
    """Refuse what cannot be."""
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if engine == "threads" and device != "cpu":
        raise PmtlError(
            f"The engine 'threads' trains on a CPU's cores, but the device is {device}: leave "
            "the engine to auto, or use the device cpu."
        )
    if engine == "threads" and compile:
        raise PmtlError(
            "The engine 'threads' compiles nothing: use the engine axis, or no compile."
        )


def choose(
    engine: str, compile: bool | None, model: FlatModel, device: torch.device, work: Work
) -> tuple[str, bool]:
    """The engine's name and whether it compiles; what was asked for, as far as something was."""
    check_engine(engine, compile, device.type)
    if engine == "auto":
        engine = "axis" if compile or not _prefers_threads(model, device) else "threads"
    if compile is None:
        compile = engine == "axis" and device.type == "cuda" and _pays(work)
    return engine, compile


def _prefers_threads(model: FlatModel, device: torch.device) -> bool:
    # With dropout threads would have to take turns at the one generator.
    own_core = device.type == "cpu" and not model.random_forward
    return own_core and has_convolutions(model.module)


def _pays(work: Work) -> bool:
    return work.steps * (_SAVED + _SAVED_PER_FLOAT * work.floats) > _COMPILE


def build_trainer(
    engine: str,
    compile: bool,
    algorithm: Algorithm,
    model: FlatModel,
    task: Task,
    width: int | None = None,
    **options: Any,
) -> CohortTrainer:
    """The engine that `choose` named."""
    if engine == "threads":
        return ThreadsTrainer(algorithm, model, task)
    return AxisTrainer(algorithm, model, task, compile=compile, width=width, **options)
