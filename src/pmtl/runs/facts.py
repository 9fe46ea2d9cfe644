"""The facts of a run (`run.json`), which of them are public, and whether data fits them."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import torch

from pmtl import storage as files
from pmtl._version import __version__
from pmtl.data import Bounds, FederatedData
from pmtl.data.targets import Task
from pmtl.errors import PmtlError, naming
from pmtl.privacy.ledger.charges import from_list, to_list
from pmtl.privacy.ledger.events import GaussianEvent
from pmtl.privacy.plan import PrivacyPlan
from pmtl.runs.config import TrainConfig
from pmtl.spec import unknown

#: The format of `run.json`. Files of pmtl 0.1 have no number; fields that they lack have defaults.
FORMAT = 2

#: The facts and settings that are also in `public/plan.json`.
_PUBLIC_FACTS = (
    *("id", "mode", "model", "algorithm", "shares", "personal", "relations", "parameters"),
    *("task", "outputs", "input_shape", "labels", "feature_names", "text", "disclosed", "pixels"),
    *("plan", "metrics_plan", "hardened", "clients", "blocks", "initialisation"),
    *("frozen", "share", "shared_numbers", "public_files", "bounds"),
)
_PUBLIC_SETTINGS = ("local", "evaluate_every", "patience")


@dataclass(frozen=True)
class RunFacts:
    """The content of `run.json`: enough to continue a run, to evaluate it and to predict."""

    id: str
    mode: str
    data: str
    model: str
    algorithm: str
    seed: int | None
    shares: bool  #: whether anything leaves a client
    personal: bool  #: whether clients end up with models of their own
    task: Task
    outputs: int
    input_shape: tuple[int, ...]
    labels: tuple[str, ...] | None
    feature_names: tuple[str, ...] | None
    pixels: bool  #: whether features were bytes, which became numbers between 0 and 1
    parameters: int
    plan: PrivacyPlan
    metrics_plan: PrivacyPlan | None  #: of average metrics, if any are released
    hardened: bool
    fingerprint: str  #: of the data; in production under the run's key
    clients: tuple[str, ...]
    blocks: tuple[int, ...]  #: the block of the billboard that each client reads
    config_digest: str = ""
    ledger: str | None = None
    ledger_id: str | None = None  #: the identity of the ledger
    model_folder: str | None = None  #: the folder of the module of the user's own model
    initialisation: int | None = None  #: the seed of the models' start; not in files of pmtl 0.1
    metric: str | None = None  #: metrics of the user's own
    relations: str | None = None  #: what decides which clients read an average together
    text: dict[str, Any] | None = None  #: the `TextRule` of text features
    releases: str | None = None  #: what an exact algorithm released, in words
    scaled: bool = False  #: whether features were scaled
    bounds: dict[str, Any] | None = None  #: the public `Bounds` of features and target
    shows_model: bool = True  #: whether what was published predicts by itself
    target_spans: tuple[float, ...] | None = None  #: see `Algorithm.target_spans`
    disclosed: tuple[str, ...] = ()  #: sentences on what reading the data disclosed
    board: str | None = None  #: the digest of the billboard
    noise_key: str | None = None  #: everything that an experiment's noise depends on
    frozen: str | None = None  #: which parameters are not trained
    share: str | None = None  #: which part of the model leaves a client; None: the whole model
    shared_numbers: int | None = None  #: how many numbers that part has
    public_files: dict[str, Any] = field(default_factory=dict)  #: names and digests of public files
    start_digest: str | None = None  #: of `start.safetensors`, the copy of what these files hold
    pmtl: str = __version__
    python: str = platform.python_version()
    torch: str = torch.__version__
    state: str = "running"  #: or "complete"
    stopped: str | None = None  #: why it ended before the last round of the plan
    not_finite: str | None = None  #: a sentence if some weights are infinite or NaN
    memory: dict[str, Any] | None = None  #: the memory that an experiment used
    charged: dict[GaussianEvent, int] | None = None  #: the ledger's charges for this run
    population_epsilon: float | None = None  #: of the largest account; see `Budget.spent`
    population_filter: float | None = None
    written: dict[str, str] = field(default_factory=dict)  #: digests of the files of the result

    @property
    def production(self) -> bool:
        return self.mode == "production"

    @property
    def complete(self) -> bool:
        """Whether the run is finished and its result is written."""
        return self.state == "complete"

    def to_dict(self) -> dict[str, Any]:
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        for name in ("plan", "metrics_plan"):
            values[name] = None if values[name] is None else values[name].to_dict()
        values["charged"] = None if self.charged is None else to_list(self.charged)
        return {"format": FORMAT, **values}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str) -> RunFacts:
        """The inverse of `to_dict`, for values from the file `where`, which are checked."""
        values = dict(values)
        format = values.pop("format", 1)
        if format not in range(1, FORMAT + 1):
            raise PmtlError(
                f"{where} has the format {format!r}, and this version of pmtl reads formats up to "
                f"{FORMAT}: use the version that wrote it."
            )
        known, hints = {item.name: item for item in fields(cls)}, get_type_hints(cls)
        for name in [name for name in values if name not in known]:
            if format == FORMAT:
                raise unknown(f"entry of {where} named", name, known)
            del values[name]  # Earlier versions had further entries.
        for name, item in known.items():
            required = item.default is MISSING and item.default_factory is MISSING
            if required and name not in values:
                raise PmtlError(f"{where} cannot be used: it has no entry {name!r}.")
        with naming(where):
            return cls(**{name: _read(name, value, hints[name]) for name, value in values.items()})


def _read(name: str, value: Any, hint: Any) -> Any:
    """A value of `run.json` as `RunFacts` has it."""
    try:
        if name in ("plan", "metrics_plan"):
            value = None if value is None else PrivacyPlan.from_dict(value)
        elif name == "charged":
            value = None if value is None else from_list(value)
        elif isinstance(value, list):
            value = tuple(value)
        elif value == "inf" and name.startswith("population"):  # JSON has no infinity.
            value = float(value)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise PmtlError(f"The entry {name!r} cannot be read ({error}).") from error
    if not _fits(value, hint):
        raise PmtlError(f"The entry {name!r} is not valid: {value!r}.")
    return value


def _fits(value: Any, hint: Any) -> bool:
    if isinstance(hint, UnionType):
        return any(_fits(value, kind) for kind in get_args(hint))
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind is Literal:
        return value in inner
    if kind is tuple:
        return isinstance(value, tuple) and all(_fits(item, inner[0]) for item in value)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def versions() -> dict[str, Any]:
    return {"pmtl": __version__, "python": platform.python_version(), "torch": torch.__version__}


def public_facts(config: TrainConfig, facts: RunFacts) -> dict[str, Any]:
    """The content of `public/plan.json`."""
    values, settings = facts.to_dict(), asdict(config)
    return {
        **versions(),
        **{name: values[name] for name in _PUBLIC_FACTS},
        **{name: settings[name] for name in _PUBLIC_SETTINGS},
    }


def fingerprint_of(data: FederatedData, key: bytes) -> str:
    """The fingerprint of the data; in production under the run's `key`."""
    return files.digest_of_text(data.fingerprint(), key) if key else data.fingerprint()


def as_trained(data: FederatedData, facts: RunFacts) -> FederatedData:
    """The data with the bounds and the scaling that the run gave it, if it came without."""
    alike = data.input_shape == facts.input_shape and data.task == facts.task
    raw = data.scaling is None and data.bounds is None and type(data.x) is np.ndarray
    if facts.bounds is not None and raw and alike:
        data = data.bounded(Bounds.from_dict(facts.bounds))
    return data.scaled() if facts.scaled and data.scaling is None else data


def check_data(data: FederatedData, facts: RunFacts, key: bytes = b"") -> None:
    """Refuse data other than what the run was trained on; `key` is the key of its digests."""
    if tuple(data.clients) != facts.clients:
        raise PmtlError(
            f"The run has {len(facts.clients)} clients, but this data has {data.m} or other ones: "
            "a federation may not change during a run."
        )
    names = None if data.feature_names is None else tuple(data.feature_names)
    if names != facts.feature_names:
        what = "words" if data.text is not None else "feature columns"
        how = _first_difference(names or (), facts.feature_names or ())
        raise PmtlError(
            f"This data has other {what} than the run was trained on ({how}): "
            "the model's weights do not fit them. Read it with the same options."
        )
    if fingerprint_of(data, key) != facts.fingerprint:
        raise PmtlError("This data is not what the run was trained on: its fingerprint differs.")


def _first_difference(names: tuple[str, ...], known: tuple[str, ...]) -> str:
    for name, other in zip(names, known, strict=False):
        if name != other:
            return f"{name!r} in place of {other!r}"
    return f"{len(names)} in place of {len(known)}"
