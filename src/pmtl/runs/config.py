"""What a run is asked to do.

One frozen dataclass, with the names of the command line. It is plain Python: pydantic reads TOML
*into* it (`runs/config_file.py`), but a machine that only trains does not need pydantic.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from hashlib import blake2b
from typing import Any

from pmtl.algorithms import ALGORITHMS, Algorithm
from pmtl.errors import PmtlError
from pmtl.privacy.accounting.validation import DEFAULT_SHARE
from pmtl.privacy.noise import MODES
from pmtl.privacy.plan import PrivacyRequest
from pmtl.simulation import ENGINES, LocalTraining
from pmtl.spec import construct, format_spec, settle_numbers, unknown

#: Written in place of a spec for something that exists in a Python program only.
IN_MEMORY = "(in memory)"


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides about a run; the same values give the same bits (and the last two
    do not change them)."""

    data: str = "synthetic"
    model: str = "auto"
    algorithm: str = "pmtl"
    privacy: PrivacyRequest = field(default_factory=PrivacyRequest)
    local: LocalTraining = field(default_factory=LocalTraining)
    mode: str = "experiment"  #: or "production"
    ledger: str | None = None  #: the population's ledger; production needs one
    seed: int | None = None  #: 0 unless given; production has none
    device: str = "auto"
    engine: str = "auto"  #: how cohorts are trained: "axis", "threads", or chosen
    compile: bool | None = None  #: whether steps are compiled; chosen unless given
    evaluate_every: int = 10  #: rounds between evaluations on validation rows; 0 for never
    patience: int | None = None  #: stop after so many evaluations without a lower released loss
    checkpoint_seconds: float = 10.0  #: how much work a crash may cost at most; 0: every round

    def __post_init__(self) -> None:
        settle_numbers(self)
        try:
            self.digest()
        except UnicodeEncodeError as error:
            raise PmtlError(
                f"The settings hold {error.object[error.start : error.end]!r}, which is not valid "
                "Unicode and could not be written to a file: rename what is called so."
            ) from error
        if self.evaluate_every < 0:
            raise PmtlError(
                f"evaluate_every must be 0 (never) or more, but {self.evaluate_every} was given."
            )
        if self.patience is not None and self.patience < 1:
            raise PmtlError(f"patience must be at least 1, but {self.patience} was given.")
        if self.patience is not None and (not self.metrics_share or not self.evaluate_every):
            raise PmtlError(
                "Stopping early looks at validation rows, which are private, and exact scores are "
                "paid for by nobody: let metrics be released through the gate (--metrics 0.1, "
                "--evaluate-every 10), or leave patience out."
            )
        if not self.checkpoint_seconds >= 0:
            raise PmtlError(
                f"checkpoint_seconds must be 0 or more, but {self.checkpoint_seconds} was given."
            )
        if self.engine not in ENGINES:
            raise unknown("engine", self.engine, ENGINES)
        if self.mode not in MODES:
            raise unknown("mode", self.mode, MODES)
        if self.mode == "production" and self.seed is not None:
            raise PmtlError(
                f"Production takes its randomness from the operating system, but the seed "
                f"{self.seed} was given: leave it out, or use the mode experiment."
            )
        if self.mode == "production" and self.ledger is None:
            raise PmtlError(
                "Production charges every release to the clients' ledger: name it with --ledger, "
                "after making it once with `pmtl ledger create`."
            )
        if self.seed is not None and self.seed < 0:
            raise PmtlError(f"The seed must not be negative, but {self.seed} was given.")

    @property
    def metrics_share(self) -> float:
        """The part of the budget that metrics get."""
        if self.privacy.metrics is None:
            return DEFAULT_SHARE if self.mode == "production" else 0.0
        return self.privacy.metrics

    def digest(self) -> str:
        """A short name for all of it, to notice a configuration that was changed."""
        return blake2b(self.to_toml().encode(), digest_size=16).hexdigest()

    def to_toml(self) -> str:
        """The configuration as a TOML file that `pmtl train --config` takes."""
        lines: list[str] = []
        tables: list[str] = []
        for key, value in asdict(self).items():
            if isinstance(value, dict):
                tables += ["", f"[{key}]", *_toml_lines(value)]
            else:
                lines += _toml_lines({key: value})
        return "\n".join(lines + tables) + "\n"


def part(kind: type[Any], value: Any, what: str) -> Any:
    """A `PrivacyRequest` or `LocalTraining` from itself or from a mapping of its fields."""
    if value is None:
        return kind()
    if isinstance(value, kind):
        return value
    if isinstance(value, Mapping):
        return construct(kind, value, what)
    raise PmtlError(
        f"{what} must be a {kind.__name__} or a mapping of its fields, "
        f"but a {type(value).__name__} was given."
    )


def algorithm_spec(algorithm: str | Algorithm) -> str:
    """The line that names an algorithm, if one can: `pmtl:lam=0.5`."""
    if isinstance(algorithm, str):
        return algorithm
    values = {item.name: getattr(algorithm, item.name) for item in fields(algorithm)}
    kind = type(algorithm)
    name = algorithm.name if ALGORITHMS.get(algorithm.name) is kind else _path_of(kind)
    if name is None or not all(isinstance(value, (int, float, str)) for value in values.values()):
        return IN_MEMORY
    return format_spec(name, values)


def _path_of(kind: type) -> str | None:
    """`package.module:Name`, if that leads to this class from another process, too."""
    if kind.__module__ == "__main__" or "." in kind.__qualname__:
        return None
    return f"{kind.__module__}:{kind.__qualname__}"


def resolve_device(device: str) -> str:
    """`auto` is the graphics card where there is one."""
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise PmtlError(
            f"The device {device!r} cannot be used here: choose auto, cpu or cuda."
        ) from error
    return device


def _toml_lines(values: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {_toml(value)}" for key, value in values.items() if value is not None]


def _toml(value: Any) -> str:
    if isinstance(value, str):
        # A TOML basic string takes the same escapes as JSON's.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)


__all__ = [
    "IN_MEMORY",
    "TrainConfig",
    "algorithm_spec",
    "part",
    "resolve_device",
]
