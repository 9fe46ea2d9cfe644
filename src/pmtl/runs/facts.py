"""The facts of a run (`run.json`), which are public, and whether data and model fit them."""

from __future__ import annotations

import copy
import json
import platform
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Any

import numpy as np
import torch

from pmtl import storage as files
from pmtl._version import __version__
from pmtl.data import Bounds, FederatedData, Schema
from pmtl.data.readers.text import TextRule
from pmtl.data.targets import Task
from pmtl.errors import PmtlError, PmtlWarning, errors_naming, how_many
from pmtl.models import FlatModel, build_model
from pmtl.plugins import add_folder, check_signature, named_code, warn_of_other_module
from pmtl.privacy.ledger.events import GaussianEvent, from_list, to_list
from pmtl.privacy.plan import PrivacyPlan
from pmtl.runs.config import IN_MEMORY, TrainConfig
from pmtl.sharing import PublicInputs
from pmtl.simulation import code_digest
from pmtl.spec import from_values, take_format

#: The format of `run.json`. Files of pmtl 0.1 have no number; fields that they lack have defaults.
FORMAT = 3

#: The facts and settings that are also in `public/plan.json`.
_PUBLIC_FACTS = (
    *("id", "mode", "model", "algorithm", "shares", "personal", "relations", "parameters"),
    *("task", "outputs", "input_shape", "labels", "feature_names", "text", "disclosed", "pixels"),
    *("plan", "metrics_plan", "hardened", "clients", "blocks", "initialisation"),
    *("frozen", "share", "shared_numbers", "public_files", "bounds", "schema"),
)
#: How entries that are kept as plain values are read when they are used.
_PARTS: dict[str, Callable[[Any], object]] = {
    "text": partial(from_values, TextRule, where="the text rule"),
    "bounds": Bounds.from_dict,
    "schema": Schema.from_dict,
}
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
    plugin_folder: str | None = None  #: the folder of the user's own modules, if the run has any
    code_signature: str | None = None  #: of what names these modules, by the user who made the run
    model_identity: str | None = None  #: of its code and of what is not trained
    initialisation: int | None = None  #: the seed of the models' start; not in files of pmtl 0.1
    metric: str | None = None  #: metrics of the user's own
    relations: str | None = None  #: what decides which clients read an average together
    text: dict[str, Any] | None = None  #: the `TextRule` of text features
    releases: str | None = None  #: what an exact algorithm released, as text
    scaled: bool = False  #: whether features were scaled
    bounds: dict[str, Any] | None = None  #: the public `Bounds` of features and target
    schema: dict[str, Any] | None = None  #: the `Schema` of the table's columns
    shows_model: bool = True  #: whether what was published predicts by itself
    target_spans: tuple[float, ...] | None = None  #: see `Algorithm.target_spans`
    disclosed: tuple[str, ...] = ()  #: sentences on what reading the data disclosed
    board: str | None = None  #: the digest of the billboard
    noise_key: str | None = None  #: everything that an experiment's noise depends on
    frozen: str | None = None  #: which parameters are not trained
    share: str | None = None  #: which part of the model leaves a client; None: the whole model
    shared_numbers: int | None = None  #: how many numbers that part has
    #: the `file` (its name) and the `sha256` of each public file
    public_files: dict[str, dict[str, str]] = field(default_factory=dict)
    start_digest: str | None = None  #: of `start.safetensors`, the copy of what these files hold
    choice: dict[str, Any] | None = None  #: what choosing this run among others cost
    secure: tuple[int, ...] | None = None  #: with secure aggregation: sites, and colluding ones
    at_site: bool = False  #: whether these are the clients of one site of a federation
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
        format = take_format(values, where, FORMAT)
        if format < 3 and "model_folder" in values:  # The former name.
            values["plugin_folder"] = values.pop("model_folder")
        with errors_naming(where):
            values = {name: _read(name, value) for name, value in values.items()}
        # pmtl 0.1 had further entries.
        facts = from_values(cls, values, where, lenient=format == 1)
        sound = {
            "blocks": len(facts.blocks) == len(facts.clients),
            "choice": facts.choice is None or {"costs", "protocol"} <= facts.choice.keys(),
            "public_files": all(
                {"file", "sha256"} <= f.keys() for f in facts.public_files.values()
            ),
            "secure": facts.secure is None or len(facts.secure) == 2,
            "written": not facts.complete or {"shared", "metrics"} <= facts.written.keys(),
        }
        for name in sound:
            if not sound[name]:
                raise PmtlError(f"In {where}: the entry {name!r} is damaged.")
        return facts


def _read(name: str, value: Any) -> Any:
    """A value of `run.json` as `RunFacts` has it."""
    try:
        if name in ("plan", "metrics_plan"):
            return None if value is None else PrivacyPlan.from_dict(value)
        if name == "charged":
            return None if value is None else from_list(value)
        if name in _PARTS and value is not None:
            _PARTS[name](value)  # Refused now, and not when it is used.
        if value == "inf" and name.startswith("population"):  # JSON has no infinity.
            return float(value)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise PmtlError(f"The entry {name!r} cannot be read ({error}).") from error
    return value


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
    """The data with the run's bounds and scaling, if it has none yet."""
    alike = data.input_shape == facts.input_shape and data.task == facts.task
    raw = not data.is_scaled and data.bounds is None and isinstance(data.x, np.ndarray)
    if facts.bounds is not None and raw and alike:
        data = data.bounded(Bounds.from_dict(facts.bounds))
    return data.scaled() if facts.scaled and not data.is_scaled else data


def check_data(data: FederatedData, facts: RunFacts, key: bytes = b"") -> None:
    """Refuse data other than what the run was trained on; `key` is the key of its digests."""
    if tuple(data.clients) != facts.clients:
        raise PmtlError(
            f"This data has {how_many(data.m, 'client')}, other than the {len(facts.clients)} of "
            "the run: a federation may not change during a run."
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


def signed_text(facts: RunFacts) -> str:
    """Everything in a run's files that decides which code is imported."""
    parts = (facts.id, facts.data, facts.model, facts.algorithm, facts.plan.sampling, facts.metric)
    return json.dumps([*parts, facts.plugin_folder, facts.config_digest])


def check_own_code(facts: RunFacts, path: object) -> None:
    """Refuse the run at `path` if it names code and somebody else made it."""
    names = [facts.model, facts.algorithm, facts.plan.sampling, *(facts.metric or "").split("+")]
    if named := named_code(names, facts.data):
        words = f"The run at {path} names code of its own ({', '.join(named)})"
        check_signature(words, signed_text(facts), facts.code_signature)


def find_own_modules(facts: RunFacts) -> None:
    """Let the user's own modules be found that the run was made with."""
    if facts.plugin_folder is not None:
        add_folder(facts.plugin_folder)
        for name in (facts.model, facts.plan.sampling, *(facts.metric or "").split("+")):
            warn_of_other_module(name, facts.plugin_folder)


def rebuild_model(
    facts: RunFacts, model: Any = None, public: PublicInputs | None = None
) -> FlatModel:
    """The run's model, from its spec or from the factory `model`, and from its `public` start. If
    it is not the model that was trained, there is a warning, which is also in `changed`."""
    spec = model if model is not None else facts.model
    if spec == IN_MEMORY:
        raise PmtlError(
            "This run's model came from a Python program: give its factory again as model=…."
        )
    find_own_modules(facts)
    begin = (facts.seed or 0) if facts.initialisation is None else facts.initialisation
    init = None if public is None else public.start
    sizes = (facts.input_shape, facts.outputs, facts.task)
    flat = build_model(spec, *sizes, begin, init, facts.frozen)
    # Compiled code, which the digest covers, differs between versions of Python.
    same_python = facts.python.split(".")[:2] == platform.python_version().split(".")[:2]
    known = facts.model_identity if same_python else None
    if known not in (None, model_identity(flat)):
        flat.changed = _CHANGED.format(flat.name)
        warnings.warn(PmtlWarning(flat.changed), stacklevel=3)
    return flat


_CHANGED = (
    "The model {!r} changed since this run was trained: its code or an untrained part of it is "
    "different, so the trained weights may not fit it. Put the code back as it was, or train again."
)


def model_identity(model: FlatModel) -> str:
    """A digest of everything that decides a model's answers, except its trained weights."""
    module = copy.deepcopy(model.module)
    parameters = dict(module.named_parameters())
    with torch.no_grad():
        for part in model.layout.parameters:
            parameters[part.name].zero_()
    return code_digest(module)
