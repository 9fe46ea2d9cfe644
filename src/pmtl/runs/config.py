"""The configuration of a run: the options of `pmtl train` and the settings of a TOML file.

This module does not import torch, so that `pmtl train --help` is fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from numbers import Real
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar

from pmtl.algorithms import ALGORITHMS, algorithms_in_help
from pmtl.client.batches import LocalTraining
from pmtl.errors import PmtlError, errors_naming, kind_of
from pmtl.jsontext import to_json
from pmtl.options import check_options, declared, option, tables, tables_by_setting
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.request import DEFAULT_SHARE, PrivacyRequest
from pmtl.privacy.schemes import SCHEMES, is_library_scheme
from pmtl.spec import construct, format_spec
from pmtl.storage import digest_of_text, read_toml

if TYPE_CHECKING:
    from pmtl.algorithms import Algorithm

T = TypeVar("T")

#: Replaces the spec of an object that exists only in a Python program.
IN_MEMORY = "(in memory)"

DATA = "Data and model"

#: What errors call a file of settings.
CONFIGURATION = "The configuration"


@dataclass(frozen=True)
class Reading:
    """Options of the data's spec that are also options of commands."""

    client_column: str | None = option(None, help="The column of a table that names the client.")
    target: str | None = option(
        None, help="The column of a table that is to be predicted; several as a+b."
    )
    scale: str | None = option(
        None, help="{client}: every client standardises its features by its own training rows."
    )
    bounds: str | None = option(
        None,
        help="A TOML file with public bounds of columns ([columns.NAME] with low and high), by "
        "which they are scaled.",
        metavar="FILE",
    )
    schema: str | None = option(
        None,
        help="A TOML file that says what the columns of a table hold; pmtl data schema writes one.",
        metavar="FILE",
    )


def in_spec(name: str) -> str:
    """What the data's spec calls an option of `Reading`."""
    return name.removesuffix("_column")


@dataclass(frozen=True)
class TrainConfig:
    """All settings of a run; the same settings give the same bits."""

    data: str = option(
        "synthetic",
        help="PATH[:key=value,…] (.csv, .parquet, .npz, .h5, LEAF .json, …) or synthetic.",
        panel=DATA,
        metavar="SPEC",
    )
    model: str = option(
        "auto",
        help="{logistic}, {linear}, {mlp}[:hidden=64,layers=1], {femnist_cnn}, {celeba_cnn}, "
        "{hog}, package.module:Name, or {auto}: logistic or linear, by the target.",
        panel=DATA,
    )
    algorithm: str = option(
        "auto",
        help="{auto} (pooling for linear models, anchored for others), "
        f"{algorithms_in_help()}, or package.module:Name.",
    )
    init: str | None = option(
        None,
        help="Weights to start from, a safetensors file with the names of the model's parameters; "
        "you state that it is public.",
        panel=DATA,
        metavar="FILE",
    )
    frozen: str | None = option(
        None,
        help="Parameters that are not trained: patterns of names (encoder.*), joined by +.",
        panel=DATA,
    )
    share: str | None = option(
        None,
        help="What leaves a client: patterns of parameter names (head.*), joined by +, {biases}, "
        "{subspace:k=}1000[,seed=0], {lowrank:rank=}4[,seed=0], {film} or {basis:file=}FILE "
        "(public); by default the whole model.",
        panel=DATA,
    )
    privacy: PrivacyRequest = field(default_factory=PrivacyRequest, metadata={"panel": "Privacy"})
    local: LocalTraining = field(
        default_factory=LocalTraining, metadata={"panel": "What a client does in a round"}
    )
    mode: str = option(
        "experiment",
        help="{experiment} (seeded, repeatable) or {production} (the operating system's "
        "randomness, every release charged, only average metrics with noise).",
        only_names=True,
    )
    ledger: str | None = option(
        None,
        help="The clients' ledger, which is charged; see pmtl ledger create.",
        metavar="FILE",
    )
    seed: int | None = option(
        None,
        help="The same seed gives the same bits; by default 0, in production none.",
        at_least=0,
    )
    device: str = option("auto", help="{auto}, {cpu} or {cuda}.")
    engine: str = option(
        "auto",
        help="{axis} (all clients in one computation), {threads} (one client per core), {debug} "
        "(one client after the other; errors name the client and the stage) or {auto}.",
        only_names=True,
    )
    compile: bool | None = option(
        None,
        help="Compile the steps of the engine axis; by default on a graphics card, if the run is "
        "long enough.",
    )
    evaluate_every: int = option(
        10, help="Rounds between evaluations on validation rows; 0 for never.", at_least=0
    )
    metric: str | None = option(
        None,
        help="Further measures (auc, f1, …) and metrics of your own, package.module:function of "
        "the targets and the predictions; several joined by +. Experiments only.",
    )
    patience: int | None = option(
        None,
        help="Stop after this many evaluations without a lower released loss (needs metrics); the "
        "whole plan is charged.",
        at_least=1,
    )
    checkpoint_seconds: float = option(
        10.0,
        help="Seconds between checkpoints, which a crash may cost; 0: every round.",
        at_least=0,
    )

    def __post_init__(self) -> None:
        check_options(self)
        try:
            self.digest()
        except UnicodeEncodeError as error:
            raise PmtlError(
                f"The settings hold {error.object[error.start : error.end]!r}, which is not valid "
                "Unicode and could not be written to a file: rename it."
            ) from error
        if self.patience is not None and (not self.metrics_share or not self.evaluate_every):
            raise PmtlError(
                "Stopping early depends on validation rows, which are private: release metrics "
                "through the gate (--metrics 0.1, --evaluate-every 10), or leave patience out."
            )
        if self.seed is not None and self.seed >= 2**63:
            raise PmtlError(f"seed must be below 2**63, but {self.seed} was given.")
        if self.mode != "production":
            return
        if self.seed is not None:
            raise PmtlError(
                f"Production takes its randomness from the operating system, but the seed "
                f"{self.seed} was given: leave it out, or use the mode experiment."
            )
        if self.metric is not None:
            raise PmtlError(
                "Exact metrics are private, and production withholds them: leave metric out."
            )
        if self.ledger is None:
            raise PmtlError(
                "Production charges every release to the clients' ledger: name it with --ledger, "
                "after making it once with `pmtl ledger create`."
            )

    @property
    def metrics_share(self) -> float:
        """The share of the budget for metrics."""
        if self.privacy.metrics is None:
            return DEFAULT_SHARE if self.mode == "production" else 0.0
        return self.privacy.metrics

    def digest(self) -> str:
        """A digest of all settings, to notice a changed configuration."""
        return digest_of_text(to_json(without_none(asdict(self))))

    def to_toml(self) -> str:
        """The configuration as a TOML file that `pmtl train --config` takes."""
        import tomli_w  # Only a run with a folder needs it.

        return tomli_w.dumps(without_none(asdict(self)))


def privacy_of(given: Any) -> PrivacyRequest:
    """The privacy that a Python program asks for: an ε, fields of `PrivacyRequest`, or a plan."""
    number = isinstance(given, Real) and not isinstance(given, bool)  # True is an int to Python.
    if number:
        return PrivacyRequest(epsilon=float(given))
    if isinstance(given, PrivacyPlan):
        return PrivacyRequest.of(given)
    if given is None or isinstance(given, (PrivacyRequest, Mapping)):
        return part(PrivacyRequest, given, "privacy")
    raise PmtlError(
        'privacy must be an ε (2.0), a mapping of settings ({"epsilon": 2.0, "delta": 1e-5}) or a '
        f"pmtl.PrivacyRequest, but {kind_of(given)} was given."
    )


def part(kind: type[T], value: Any, what: str) -> T:
    """A `PrivacyRequest` or `LocalTraining` from itself or from a mapping of its fields."""
    if value is None:
        return kind()
    if isinstance(value, kind):
        return value
    if isinstance(value, Mapping):
        return construct(kind, value, what)
    raise PmtlError(
        f"{what} must be a {kind.__name__} or a mapping of its fields, but {value!r} was given."
    )


def without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values without None, which TOML does not have."""
    return {
        key: without_none(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if value is not None
    }


def read_config(path: str | Path) -> TrainConfig:
    return parse_config(read_toml(path, CONFIGURATION), str(path))


def parse_config(
    values: Mapping[str, Any], where: str, kind: type[TrainConfig] = TrainConfig
) -> TrainConfig:
    """A configuration from a mapping; error messages name `where` it came from."""
    with errors_naming(where):
        _refuse_misplaced(values, kind)
        settings = dict(values)
        for name, inner, _ in tables(kind):
            given = values.get(name)
            if not isinstance(given, (Mapping, inner, NoneType)):
                raise PmtlError(
                    f"{name} is a heading, but {given!r} was given: write [{name}], and its "
                    "settings below that line."
                )
            settings[name] = part(inner, given, name)
        return construct(kind, settings, "the configuration")


def _refuse_misplaced(values: Mapping[str, Any], kind: type[TrainConfig]) -> None:
    """Refuse a setting that is under the wrong heading of the file."""
    known = tables_by_setting(kind)
    parts = {"": values, **{name: values.get(name) for name, _, _ in tables(kind)}}
    problems = []
    for place, part in parts.items():
        for name in part if isinstance(part, Mapping) else ():
            table = known.get(name, place)
            if name in declared(Reading):
                problems.append(
                    f'{name} is an option of the data: write data = "FILE:{in_spec(name)}=…".'
                )
            elif name in FEDERATION_SETTINGS and name not in known:
                problems.append(
                    f"{name} is only for pmtl federation run: this run has no server. Leave it out."
                )
            elif table != place and name not in parts:
                where = f"under [{table}]: put it below that line"
                problems.append(
                    f"{name} belongs {where if table else 'at the top, above the first [heading]'}."
                )
    if problems:
        raise PmtlError(" ".join(problems))


#: Settings of `pmtl federation run` only.
FEDERATION_SETTINGS = ("secure_aggregation", "colluders")


def merge(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`values` overridden by `changes`, table by table."""
    merged = dict(values)
    for key, value in changes.items():
        old = merged.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            merged[key] = merge(_without_excluded(old, value), value)
        else:
            merged[key] = value
    return merged


def _without_excluded(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """`old` without settings that exclude one in `new`: the command line overrides the file."""
    excluded = {"epsilon": "noise", "noise": "epsilon", "epochs": "steps", "steps": "epochs"}
    sampling = old.get("sampling")
    if is_library_scheme(sampling) and SCHEMES[sampling].takes_everybody:
        excluded["sampling"] = "cohort"
    return {key: value for key, value in old.items() if excluded.get(key) not in new}


def algorithm_spec(algorithm: str | Algorithm) -> str:
    """The spec of an algorithm (`pmtl:lam=0.5`), or `IN_MEMORY` if no spec can name it."""
    if isinstance(algorithm, str):
        return algorithm
    own = [item.name for item in fields(algorithm) if not item.metadata.get("derived")]
    values = without_none({name: getattr(algorithm, name) for name in own})
    kind = type(algorithm)
    if ALGORITHMS.get(algorithm.name) is kind:
        name = algorithm.name
    elif kind.__module__ == "__main__" or "." in kind.__qualname__:
        return IN_MEMORY  # Another process cannot import it.
    else:
        name = f"{kind.__module__}:{kind.__qualname__}"
    if not all(isinstance(value, (int, float, str)) for value in values.values()):
        return IN_MEMORY
    return format_spec(name, values)
