"""What a comparison runs: algorithms × settings × ε × seeds.

An axis is a setting with its values: `lr=0.1,0.3`, or `pmtl:lam=0.1,1` for a setting of one
algorithm. A candidate is an algorithm with one value of each axis that concerns it; a cell is a
candidate at one ε with one seed, and becomes one run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pmtl.algorithms import build_algorithm
from pmtl.client.batches import LocalTraining
from pmtl.errors import PmtlError
from pmtl.options import declared, tables_by_setting
from pmtl.privacy.plan import check_epsilon
from pmtl.runs.config import TrainConfig, merge, parse_config, without_none
from pmtl.spec import format_spec, parse_spec, unknown
from pmtl.streams import name_key

if TYPE_CHECKING:
    from pmtl.algorithms import Algorithm

#: Settings that are the same in all runs, and why.
FIXED = {
    "data": "all runs of a comparison read the same data",
    "mode": "a comparison is an experiment",
    "ledger": "all runs of a comparison are charged to one ledger",
    "noise": "a comparison sets ε, which decides the noise",
    "delta": "the ε of two runs can be compared only at the same δ",
    "metric": "all runs are measured alike",
    "metrics": "a comparison measures its runs exactly",
    "loss_bound": "all runs are measured alike",
    "patience": "it needs released metrics, and a comparison measures its runs exactly",
}
#: Settings that have options of their own, which may be given several times.
LISTED = {"algorithm": "--algorithm", "epsilon": "--epsilon", "seed": "--seeds"}
#: Settings that an algorithm which shares nothing does not use.
_ONLY_FOR_SHARING = {"clip", "hardened"}
#: Settings that an exact algorithm decides itself.
_SET_BY_EXACT = ("rounds", "clip")

Axes = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Candidate:
    """One method with all its settings."""

    algorithm: str  #: its spec, such as `pmtl:lam=0.1`
    settings: tuple[tuple[str, Any], ...] = ()  #: names and values of other settings that vary

    @property
    def method(self) -> str:
        """The algorithm's name without its settings."""
        return parse_spec(self.algorithm)[0]

    def __str__(self) -> str:
        return ", ".join([self.algorithm, *(f"{name}={as_text(v)}" for name, v in self.settings)])


@dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    candidate: Candidate  #: the method and its settings
    epsilon: float | None  #: ε; None for an algorithm that shares nothing
    seed: int  #: of the run

    def __str__(self) -> str:
        """The name of its folder: a readable name, with a key if that may be ambiguous."""
        whole = str(self.candidate)
        name = "".join(c if c.isalnum() or c in "._=-" else "-" for c in whole)
        budget = "" if self.epsilon is None else f"-eps{self.epsilon!r}"
        key = "" if name[:120] == whole else f"-{name_key(whole) % 16**6:06x}"
        return f"{name[:120]}{key}{budget}-seed{self.seed}"

    def to_dict(self) -> dict[str, Any]:
        """Everything that identifies the run, for tables."""
        return {
            "name": str(self.candidate),
            "method": self.candidate.method,
            "algorithm": self.candidate.algorithm,
            "settings": dict(self.candidate.settings),
            "epsilon": self.epsilon,
            "seed": self.seed,
        }


@dataclass(frozen=True)
class Grid:
    """What is compared, and the settings that all runs share.

    Args:
        algorithms: Specs of algorithms, such as `pmtl:lam=0.1` or `package.module:Name`.
        epsilons: The ε of the runs; ∞ means no privacy.
        seeds: The seeds; one run for each.
        base: All other settings.
        axes: Settings that vary, with their values: `{"lr": (0.1, 0.3), "pmtl:lam": (0.1, 1)}`.
    """

    algorithms: tuple[str, ...] = ("pmtl", "fedavg", "local")
    epsilons: tuple[float, ...] = (0.5, 2.0, 8.0)
    seeds: tuple[int, ...] = (0, 1, 2)
    base: TrainConfig = field(default_factory=TrainConfig)
    axes: Axes = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (self.algorithms and self.epsilons and self.seeds):
            raise PmtlError("A comparison needs at least one algorithm, one ε and one seed.")
        for name in ("algorithms", "epsilons", "seeds"):  # Without duplicates.
            object.__setattr__(self, name, tuple(dict.fromkeys(getattr(self, name))))
        for epsilon in self.epsilons:
            check_epsilon(epsilon)
        if self.base.mode != "experiment":
            raise PmtlError(
                "A comparison is an experiment: it uses exact metrics of every run, and a ledger "
                "has no entry for a private choice between runs. Leave the mode out."
            )
        for seed in self.seeds:
            replace(self.base, seed=seed)  # Refused now, and not in its run.
        if self.base.privacy.epsilon is not None or self.base.privacy.noise is not None:
            raise PmtlError("A comparison sets ε itself: leave epsilon and noise out of privacy.")
        checked = {name: self._checked(name, values) for name, values in self.axes.items()}
        object.__setattr__(self, "axes", checked)

    def _checked(self, name: str, values: Sequence[Any]) -> tuple[Any, ...]:
        """The values of an axis in the type that was declared, without duplicates."""
        if isinstance(values, str) or not values:
            raise PmtlError(f"The grid needs at least one value of {name}: write {name}=1,2.")
        if ":" in name:
            method = name.rpartition(":")[0]
            names = [parse_spec(algorithm)[0] for algorithm in self.algorithms]
            if method not in names:
                raise PmtlError(
                    f"The grid has {name}, but {method!r} is not compared; these are: "
                    f"{', '.join(names)}. Add --algorithm {method}, or leave it out."
                )
            return tuple(dict.fromkeys(values))
        if name in LISTED:
            raise PmtlError(f"The grid cannot have {name}: use {LISTED[name]}, several times.")
        if name in FIXED:
            raise PmtlError(f"The grid cannot have {name}: {FIXED[name]}.")
        if name not in tables_by_setting(TrainConfig):
            raise unknown(
                "setting for the grid named", name, set(tables_by_setting(TrainConfig)) - set(FIXED)
            )
        configs = [with_settings(self.base, {name: value}) for value in values]
        return tuple(dict.fromkeys(setting(config, name) for config in configs))

    def candidates(self) -> list[Candidate]:
        """Every method with every combination of the settings that concern it, in order."""
        found: dict[Candidate, None] = {}
        for algorithm in self.algorithms:
            for spec in self._specs(algorithm):
                unused = unused_by(build_algorithm(spec))
                names = [name for name in self.axes if ":" not in name and name not in unused]
                for values in product(*(self.axes[name] for name in names)):
                    found[Candidate(spec, tuple(zip(names, values, strict=True)))] = None
        return [*found]

    def _specs(self, algorithm: str) -> Iterator[str]:
        """The algorithm with every combination of the values of its own axes."""
        method, options = parse_spec(algorithm)
        own = [name for name in self.axes if name.rpartition(":")[0] == method]
        keys = [name.rpartition(":")[2] for name in own]
        if twice := [key for key in keys if key in options]:
            raise PmtlError(
                f"{twice[0]} of {method} is set by --algorithm {algorithm} and by the grid: keep "
                "one of them."
            )
        for values in product(*(self.axes[name] for name in own)):
            chosen = {key: as_text(value) for key, value in zip(keys, values, strict=True)}
            yield format_spec(method, {**options, **chosen}) if chosen else algorithm

    def notes(self) -> list[str]:
        """Sentences about settings that were given and that a method does not use."""
        given = [name for name in _SET_BY_EXACT if getattr(self.base.privacy, name) is not None]
        given += [name for name in self.axes if ":" not in name]
        first: dict[str, str] = {}
        for algorithm in self.algorithms:
            first.setdefault(parse_spec(algorithm)[0], algorithm)
        notes = []
        for method, algorithm in first.items():
            unused = unused_by(build_algorithm(next(self._specs(algorithm))))
            if names := [name for name in given if name in unused]:
                notes.append(f"{method} does not use {' and '.join(names)}: the others do.")
        return notes

    def cells(self) -> list[Cell]:
        """All runs; an algorithm that shares nothing has no ε and is run once for each seed."""
        cells = []
        for candidate in self.candidates():
            shares = build_algorithm(candidate.algorithm).shares
            epsilons: Iterable[float | None] = self.epsilons if shares else (None,)
            cells += [Cell(candidate, e, s) for e in epsilons for s in self.seeds]
        return cells


def parse_axes(texts: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The axes that `--grid` options describe.

    Args:
        texts: such as `lr=0.1,0.3` or `pmtl:lam=0.1,1`; a comma inside a value is written %2C.
    """
    axes: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name, parts = name.strip(), [part.strip() for part in values.split(",")]
        name = name if ":" in name else name.replace("-", "_")
        if not equals or not name or not all(parts):
            raise PmtlError(
                f"The grid cannot be read at {text!r}: write a setting and its values, such as "
                "lr=0.1,0.3 or pmtl:lam=0.1,1."
            )
        if name in axes:
            raise PmtlError(f"The grid has {name} twice: write all its values after one {name}=.")
        axes[name] = tuple(unquote(part) for part in parts)
    return axes


def with_settings(base: TrainConfig, settings: Mapping[str, Any]) -> TrainConfig:
    """The configuration with other values of some settings, of the run, of privacy or of local
    training."""
    if not settings:
        return base
    changes: dict[str, Any] = {}
    for name, value in settings.items():
        table = tables_by_setting(TrainConfig)[name]
        (changes.setdefault(table, {}) if table else changes)[name] = value
    return parse_config(merge(without_none(asdict(base)), changes), "the grid")


def setting(config: TrainConfig, name: str) -> Any:
    """The value of a setting, wherever it belongs."""
    table = tables_by_setting(TrainConfig)[name]
    return getattr(getattr(config, table) if table else config, name)


def config_of(base: TrainConfig, cell: Cell) -> TrainConfig:
    """The configuration of a cell's run."""
    config = with_settings(base, dict(cell.candidate.settings))
    epsilon = float("inf") if cell.epsilon is None else cell.epsilon
    privacy = replace(config.privacy, epsilon=epsilon)
    if build_algorithm(cell.candidate.algorithm).exact:
        privacy = replace(privacy, **dict.fromkeys(_SET_BY_EXACT))
    return replace(config, algorithm=cell.candidate.algorithm, privacy=privacy, seed=cell.seed)


def unused_by(method: Algorithm) -> set[str]:
    """The settings that make no difference to an algorithm, so that they are not varied for it."""
    if method.exact:
        return {*_SET_BY_EXACT, *declared(LocalTraining)}
    return set() if method.shares else _ONLY_FOR_SHARING


def as_text(value: Any) -> str:
    """A value of a setting as text."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
