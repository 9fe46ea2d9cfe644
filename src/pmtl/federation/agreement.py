"""What the sites of a run agree on: the format of rows, the clients, and the plan.

All of it is public. Server and sites derive the same algorithm from it (`Agreement.algorithm`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from pmtl.algorithms import Algorithm, ExactAlgorithm, build_algorithm
from pmtl.errors import PmtlError, PublicError
from pmtl.federation.messages import check_run_name, refuse_code
from pmtl.jsontext import to_json
from pmtl.models import FlatModel, Task, build_model
from pmtl.models.linear.last_layer import last_layer
from pmtl.privacy.plan import PrivacyPlan
from pmtl.runs.config import TrainConfig, parse_config
from pmtl.server.resolve import auto_algorithm, resolve_algorithm, sizes_of
from pmtl.sharing import PublicInputs, share_part
from pmtl.spec import from_values
from pmtl.storage import digest_of_text

if TYPE_CHECKING:
    from pmtl.data import FederatedData


@dataclass(frozen=True)
class Columns:
    """The format of the rows, which is the same at all sites."""

    input_shape: tuple[int, ...]
    task: Task
    outputs: int
    labels: tuple[str, ...] | None
    feature_names: tuple[str, ...] | None
    bounded: bool = False  #: whether features have public bounds
    target_range: tuple[float, float] | None = None  #: public bounds of a numeric target

    @classmethod
    def of(cls, data: FederatedData) -> Columns:
        """Of a site's data."""
        bounds = data.bounds
        return cls(
            tuple(data.input_shape),
            data.task,
            data.outputs,
            data.labels,
            data.feature_names,
            bounds is not None and bool(bounds.features),
            None if bounds is None else bounds.target,
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Columns:
        """The inverse of `asdict`, for values that came as JSON, checked."""
        return from_values(cls, values, "the format of a site's rows")

    def difference(self, other: Columns) -> str | None:
        """The first difference in words; None if there is none."""
        for item in fields(self):
            mine, its = getattr(self, item.name), getattr(other, item.name)
            if mine != its:
                return f"{item.name.replace('_', ' ')}: {_short(mine)} and {_short(its)}"
        return None


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:197]}…"


@dataclass(frozen=True)
class Agreement:
    """A run that all its sites have joined."""

    run: str  #: the identity of the run
    config: TrainConfig
    columns: Columns
    clients: tuple[str, ...]  #: the names of all clients, sorted; a site's are SITE/CLIENT
    plan: PrivacyPlan
    initialisation: int  #: the seed of the common start
    colluders: int | None  #: with secure aggregation: how many sites may collude

    @classmethod
    def make(
        cls,
        run: str,
        config: TrainConfig,
        columns: Columns,
        clients: tuple[str, ...],
        initialisation: int,
        public: PublicInputs,
        colluders: int | None = None,
    ) -> Agreement:
        """The agreement with the plan that follows from the settings."""
        # Metrics do not leave sites.
        config = replace(config, privacy=replace(config.privacy, metrics=0.0), evaluate_every=0)
        model = _model(config, columns, initialisation, public)
        if config.model == "auto":
            config = replace(config, model=model.name)
        if config.algorithm == "auto":
            linear = last_layer(model, columns.input_shape) is not None
            method = auto_algorithm(config.privacy, config.local, config.share, linear)
            config = replace(config, algorithm=method)
        asked = config.privacy
        settled = _settled(config, columns, len(clients), model)
        if isinstance(settled, ExactAlgorithm):
            asked = replace(asked, rounds=settled.releases, clip=1.0)
            if config.share is None:
                config = replace(config, share=settled.default_share)
        plan = asked.resolve(len(clients))
        hardened = plan.private if config.privacy.hardened is None else config.privacy.hardened
        config = replace(
            config, privacy=replace(config.privacy, hardened=hardened, delta=plan.delta)
        )
        return cls(run, config, columns, clients, plan, initialisation, colluders)

    @property
    def hardened(self) -> bool:
        """Whether the gate computes in whole numbers."""
        return bool(self.config.privacy.hardened)

    @property
    def sites(self) -> frozenset[str]:
        """The names of the sites."""
        return frozenset(client.partition("/")[0] for client in self.clients)

    @property
    def secure(self) -> tuple[int, int] | None:
        """With secure aggregation: how many sites there are, and how many may collude."""
        return None if self.colluders is None else (len(self.sites), self.colluders)

    @property
    def noise_std(self) -> float:
        """The noise on an average that is published. In shares it is more than the plan's, which
        is what remains if some sites collude with the server."""
        if self.secure is None:
            return self.plan.noise_std
        sites, colluders = self.secure
        return self.plan.noise_std * math.sqrt(sites / (sites - colluders))

    def model(self, public: PublicInputs) -> FlatModel:
        """The model with the common start; `public` is the public start or basis."""
        return _model(self.config, self.columns, self.initialisation, public)

    def algorithm(self, model: FlatModel, public: PublicInputs) -> Algorithm:
        """The algorithm with all settings, bound to the model."""
        method = _settled(self.config, self.columns, len(self.clients), model)
        method = share_part(method, self.config.share, model, public.rows)
        if isinstance(method, ExactAlgorithm):
            method = method.with_noise(self.noise_std)
        return method.bind(model.layout)

    def digest(self) -> str:
        """A digest of everything that was agreed, to which keys and masks are bound."""
        return digest_of_text(to_json(self.to_dict()))

    def to_dict(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "config": asdict(self.config),
            "columns": asdict(self.columns),
            "clients": list(self.clients),
            "plan": self.plan.to_dict(),
            "initialisation": self.initialisation,
            "colluders": self.colluders,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Agreement:
        """The inverse of `to_dict`, checked. Names of code are refused before any import."""
        try:
            refuse_code(values["config"], values["plan"]["sampling"])
            check_run_name(values["run"])
            read = {
                "config": parse_config(values["config"], "the run's settings"),
                "columns": Columns.from_dict(values["columns"]),
                "plan": PrivacyPlan.from_dict(values["plan"]),
            }
            return from_values(cls, {**values, **read}, "the agreement")
        except PublicError:
            raise
        except KeyError as error:
            raise PublicError(f"What was agreed has no entry {error}.") from error
        except (TypeError, ValueError, AttributeError, PmtlError) as error:
            raise PublicError(f"What was agreed cannot be read: {error}") from error


def belongs_to(client: str, site: str) -> bool:
    """Whether a client is one of this site's, or the site itself is the client."""
    return client == site or client.startswith(f"{site}/")


def _model(
    config: TrainConfig, columns: Columns, initialisation: int, public: PublicInputs
) -> FlatModel:
    sizes = columns.input_shape, columns.outputs, columns.task
    return build_model(config.model, *sizes, initialisation, public.start, config.frozen)


def _settled(config: TrainConfig, columns: Columns, clients: int, model: FlatModel) -> Algorithm:
    sizes = sizes_of(
        model,
        columns.input_shape,
        columns.task,
        columns.outputs,
        bounded=columns.bounded,
        target_range=columns.target_range,
        public_start=config.init is not None,
    )
    return resolve_algorithm(build_algorithm(config.algorithm), config.privacy, clients, sizes)
