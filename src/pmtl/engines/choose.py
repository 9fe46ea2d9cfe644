"""Which engine trains a cohort, and how many clients at once.

The client axis is for GPUs, where it turns thousands of small products into one large one, and for
small models on a CPU, where a loop over clients would spend its time in Python. With convolutions
or very many parameters one client keeps a core busy: then each thread trains one client.
Batches, cohorts and noise are the same with all engines.
"""

from __future__ import annotations

import torch

from pmtl.algorithms import Algorithm
from pmtl.engines.axis import AxisTrainer
from pmtl.engines.base import CohortTrainer
from pmtl.engines.loops import DebugTrainer, ThreadsTrainer
from pmtl.errors import PmtlError
from pmtl.models import FlatModel, Task
from pmtl.models.lowering import has_convolutions, lowered
from pmtl.spec import unknown

ENGINES = ("auto", "axis", "threads", "debug")

#: Floats that the clients trained at once may hold together. On a CPU's client axis they should fit
#: in its caches; on sparse rows clients touch little of what they hold.
CHUNK_FLOATS, GPU_FLOATS, THREADS_FLOATS, SPARSE_FLOATS = 2**23, 2**32, 2**29, 2**26

#: With fewer clients at once, the client axis is slower than a loop.
_FEW_CLIENTS = 4
#: The most slots of an array in production.
MOST_SLOTS, MOST_SLOTS_GPU = 512, 4096
#: Seconds that compiling takes on a GPU, and that a compiled step saves for every layer
#: with weights and every float it touches (about as in benchmarks/results/engines-h200.json).
_COMPILE, _SAVED_PER_LAYER, _SAVED_PER_FLOAT = 40.0, 4e-3, 4.5e-12


def check_engine(engine: str, compile: bool | None, device: str) -> None:
    """Refuse an engine that is unknown, or not for this device."""
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if engine == "threads" and device != "cpu":
        raise PmtlError(
            f"The engine 'threads' trains on a CPU's cores, but the device is {device}: leave "
            "the engine to auto, or use the device cpu."
        )
    if engine in ("threads", "debug") and compile:
        raise PmtlError(
            f"The engine {engine!r} compiles nothing: use the engine axis, or no compile."
        )


def choose(
    engine: str,
    compile: bool | None,
    model: FlatModel,
    device: torch.device,
    *,
    client_floats: int,
    cohort: int,
    steps: int,
    isolate: bool = False,
    one_by_one: bool = False,
) -> tuple[str, bool]:
    """The engine's name and whether it compiles: as given, or chosen where `engine` is "auto" and
    `compile` is None. A client's step touches about `client_floats` floats, a round has about
    `cohort` clients, and the run about `steps` steps. `isolate` is for production; there, models
    that are not safe on the client axis are trained one by one (`one_by_one`), and threads are the
    faster engine for that on a CPU."""
    check_engine(engine, compile, device.type)
    if isolate and compile:
        raise PmtlError(
            "Production compiles nothing: which steps are compiled would depend on the clients' "
            "numbers of rows, and so would the last bits of models. Leave compile out."
        )
    if isolate and engine == "debug":
        raise PmtlError(
            "Production does not run the engine 'debug', because its errors show what went wrong "
            "with one client's data: leave the engine to auto, or debug in an experiment."
        )
    if engine == "auto":
        engine = "axis"
        # With dropout, all threads would share one random generator.
        if device.type == "cpu" and not (compile or model.traits.random_forward):
            few = clients_at_once("axis", device, client_floats) < _FEW_CLIENTS
            if one_by_one or few or has_convolutions(model.module):
                engine = "threads"
    if compile is None:
        layers = sum(any(True for _ in part.parameters(False)) for part in model.module.modules())
        saved = _SAVED_PER_LAYER * layers + _SAVED_PER_FLOAT * (cohort * client_floats)
        on_gpu = device.type == "cuda" and not isolate
        compile = engine == "axis" and on_gpu and steps * saved > _COMPILE
    return engine, compile


def clients_at_once(engine: str, device: torch.device, client_floats: int) -> int:
    """How many clients an engine, or training on "sparse" rows, trains at once."""
    floats = {"axis": CHUNK_FLOATS, "sparse": SPARSE_FLOATS}.get(engine, THREADS_FLOATS)
    if device.type == "cuda":  # A quarter of its memory.
        memory = torch.cuda.get_device_properties(device).total_memory
        floats = min(GPU_FLOATS, memory // 16)
    return max(1, floats // client_floats)


def slot_count(clients: int, cohort: int, device: torch.device, client_floats: int) -> int:
    """How many slots an array has in production, a power of two: one for each client if all take
    part, else four for each client of a cohort, so that few clients share a slot; fewer if memory
    is short."""
    wanted = clients if cohort >= clients else min(4 * cohort, clients)
    most = min(MOST_SLOTS_GPU if device.type == "cuda" else MOST_SLOTS, 2 * wanted - 1)
    return 1 << max(0, min(most, clients_at_once("axis", device, client_floats)).bit_length() - 1)


def build_trainer(
    engine: str,
    compile: bool,
    algorithm: Algorithm,
    model: FlatModel,
    task: Task,
    width: int | None = None,
    isolate: bool = False,
) -> CohortTrainer:
    """The engine that `choose` named. `width` is the number of clients at once, if it never varies;
    `isolate` is for production (`slots.py`)."""
    if engine == "debug":
        return DebugTrainer(algorithm, model, task)
    if engine == "threads":
        return ThreadsTrainer(algorithm, lowered(model, "channels_last"), task)
    model = lowered(model, "patches")
    return AxisTrainer(algorithm, model, task, compile=compile, width=width, isolate=isolate)
