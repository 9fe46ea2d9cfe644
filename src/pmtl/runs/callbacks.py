"""The user's own code that is called during a run.

    class Plot(pmtl.Callback):
        def on_round(self, event):
            if "validation" in event.metrics:
                draw(event.round, event.metrics["validation"]["personal"]["loss"])

    pmtl.train("visits.csv", callbacks=[Plot()])

On the command line a callback is named: `pmtl train --callback my_package.plots:Plot`. The library
has `tensorboard` and `mlflow` (`pmtl/tracking/`).

In production a callback gets only what is public: the line in `public/metrics.jsonl` and the shared
model. An error in a callback ends the run after a checkpoint, from which `resume` continues.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from pmtl.errors import PmtlError, kind_of
from pmtl.plugins import Library, error_text, find
from pmtl.spec import construct, parse_spec


@dataclass(frozen=True)
class Event:
    """The state of a run."""

    round: int  #: number of finished rounds
    rounds: int  #: rounds of the plan
    metrics: Mapping[str, Any]  #: the last round's line in `metrics.jsonl`
    shared: Tensor | None  #: a copy of the billboard [blocks, shared numbers], if there is one
    path: Path | None  #: the run's folder, if it has one; in production its public part


class Callback:
    """A base class for callbacks; a subclass overrides the methods that it needs.

    In a team only the first process calls it. A resumed run calls it for the remaining rounds.

    In the methods:
        - event: the state of the run.
    """

    def on_round(self, event: Event) -> None:
        """Called when a round is over and its line is written."""

    def on_checkpoint(self, event: Event) -> None:
        """Called when a checkpoint is written after a round (`checkpoint_seconds`). Not called for
        two checkpoints: that of a production run before its first round, and the last one, which is
        written with the result, before `on_end`."""

    def on_end(self, event: Event) -> None:
        """Called when the run is complete and its result is written."""


def build_callbacks(given: Any) -> list[Callback]:
    """Callbacks from a list of them."""
    if isinstance(given, (str, Callback)) or not isinstance(given, Sequence):
        raise PmtlError(
            f"callbacks is a list, but {kind_of(given)} was given: write callbacks=[…]."
        )
    return [build_callback(callback) for callback in given]


#: The library's own callbacks, which are imported when they are named.
LIBRARY: Library[type[Callback]] = Library(
    "pmtl.tracking", {"tensorboard": "tensorboard:TensorBoard", "mlflow": "mlflow:MLflow"}
)


def build_callback(given: Any) -> Callback:
    """A callback from an object, a class or a name: `tensorboard`, `mlflow:uri=…`, the name of an
    entry point, or `package.module:Name`, each with options (`NAME:key=value`)."""
    found, options = given, dict[str, str]()
    if isinstance(given, str):
        name, options = parse_spec(given)
        found = find("callback", name, LIBRARY)
    try:
        if options and not isinstance(found, type):
            raise PmtlError(f"The callback {given!r} is not a class, so it takes no options.")
        if isinstance(given, str) and isinstance(found, type):
            made = construct(found, options, f"callback {name}")
        else:
            made = found() if isinstance(found, type) else found
    except PmtlError:
        raise
    except (Exception, SystemExit) as error:  # The user's code may raise anything.
        raise PmtlError(f"The callback {given!r} cannot be made ({error_text(error)}).") from error
    if not isinstance(made, Callback):
        raise PmtlError(f"The callback {given!r} is not a pmtl.Callback: derive its class from it.")
    return made


def call(
    callbacks: Sequence[Callback], when: str, event: Callable[[], Event], ends: bool = False
) -> PmtlError | None:
    """Call the method `when` of all callbacks, and return the first error. `ends`: whether the run
    ends here in any case."""
    for callback in callbacks:
        now = event()
        try:
            getattr(callback, when)(now)
        except (Exception, SystemExit) as error:  # The user's code may raise anything.
            kind = type(callback)
            failed = PmtlError(
                f"The callback {kind.__module__}:{kind.__qualname__} failed in {when} after round "
                f"{now.round} of {now.rounds} ({error_text(error)}). {_how_to_continue(ends, now)}"
            )
            failed.__cause__ = error
            return failed
    return None


def _how_to_continue(ends: bool, event: Event) -> str:
    if event.path is None:
        return "The run had no folder (out=…) and cannot be continued."
    if ends:
        return "The run is complete nevertheless."
    return "The run is saved up to this round: fix the callback, and continue it with pmtl resume."
