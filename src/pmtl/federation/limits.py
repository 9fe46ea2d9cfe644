"""The limits of a site, from a file that only the site can change.

    [site]
    data = "visits.csv:client=hospital,target=outcome"
    folder = "models"

    [limits]
    epsilon = 4
    models = ["logistic", "linear"]

A run that asks for more is refused by the site, before it trains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pmtl._version import __version__
from pmtl.algorithms import ALGORITHMS
from pmtl.errors import PmtlError, PublicError, errors_naming
from pmtl.federation.agreement import Agreement
from pmtl.models import MODELS
from pmtl.options import check_options, option
from pmtl.privacy.grid import Grid
from pmtl.secure_aggregation import shares
from pmtl.spec import from_values, parse_spec, unknown
from pmtl.storage import read_toml


@dataclass(frozen=True)
class Limits:
    """The most that a run may ask of a site."""

    epsilon: float = option(4.0, help="The largest ε of one run.", at_least=0)
    delta: float = option(0.05, help="The largest δ of one run.", at_least=0)
    #: Their δ add up, too: n runs within these limits are (total_epsilon, n · delta)-private
    #: together.
    total_epsilon: float = option(
        math.inf, help="The largest sum of the ε of all runs of this site.", at_least=0
    )
    clip: float = option(math.inf, help="The largest clip norm.", at_least=0)
    rounds: float = option(10_000.0, help="The largest number of rounds, or inf.", at_least=0)
    clients: int = option(
        2, help="The least number of clients of the whole federation.", at_least=0
    )
    models: tuple[str, ...] = tuple(MODELS)  #: that may be trained
    algorithms: tuple[str, ...] = tuple(name for name in ALGORITHMS if name != "naive_joint")
    version: str = option(__version__, help="The version of pmtl that the server must have.")
    #: An experiment sends a digest of the site's rows.
    modes: tuple[str, ...] = ("experiment", "production")
    secure: bool = option(False, help="Take part only with secure aggregation.")
    colluders: int = option(
        0, help="The least number of colluding sites to protect against.", at_least=0
    )

    def __post_init__(self) -> None:
        check_options(self)

    def check_mode(self, mode: str) -> None:
        """Refuse a mode that is not allowed."""
        if mode not in self.modes:
            raise PublicError(
                f"This site's limits do not allow the run: its mode is {mode}, and the site allows "
                f"{_listed(self.modes)}."
            )

    def check(self, agreement: Agreement, version: str, spent: float = 0.0) -> None:
        """Refuse what is beyond the limits, with sentences that are public. `version` is the
        version of pmtl at the server, and `spent` the sum of the ε of earlier runs at this site."""
        plan, config = agreement.plan, agreement.config
        if plan.clients != len(set(agreement.clients)) or plan.clients != len(agreement.clients):
            raise PublicError("The run's plan is for another number of clients than the run names.")
        if agreement.secure is not None:
            if plan.rate != 1:
                raise PublicError(
                    "With secure aggregation all clients take part, but the plan draws fewer."
                )
            shares.scale(Grid.of(plan), *agreement.secure)  # Refuses what is not covered.
        self.check_mode(config.mode)
        epsilon, clip = plan.epsilon(), plan.clip_norm
        method, model = parse_spec(config.algorithm)[0], parse_spec(config.model)[0]
        most, all_runs = self.epsilon * (1 + 1e-9), self.total_epsilon * (1 + 1e-9)
        algorithms, models = _listed(self.algorithms), _listed(self.models)
        earlier = f"ε = {epsilon:.4g} after runs of {spent:.4g} together"
        colluders = agreement.colluders
        too_few = colluders is not None and colluders < self.colluders
        noun = "site" if colluders == 1 else "sites"
        over = [
            (version != self.version, f"version {version} of pmtl, but allows {self.version}"),
            (epsilon > most, f"ε = {epsilon:.4g}, but allows {self.epsilon:g}"),
            (plan.delta > self.delta, f"δ = {plan.delta:.3g}, but allows {self.delta:g}"),
            (clip > self.clip, f"a clip norm of {clip:g}, but allows {self.clip:g}"),
            (plan.rounds > self.rounds, f"{plan.rounds} rounds, but allows {self.rounds:g}"),
            (plan.clients < self.clients, f"{plan.clients} clients, but needs {self.clients}"),
            (model not in self.models, f"the model {model!r}, but allows {models}"),
            (method not in self.algorithms, f"the algorithm {method!r}, but allows {algorithms}"),
            (
                spent + epsilon > all_runs,
                f"{earlier}, but allows {self.total_epsilon:g} for all runs",
            ),
            (self.secure and colluders is None, "plain uploads, but needs secure aggregation"),
            (too_few, f"{colluders} colluding {noun}, but needs {self.colluders}"),
        ]
        reasons = [reason for is_over, reason in over if is_over]
        if reasons:
            raise PublicError(
                f"This site's limits do not allow the run: it asks for {'; '.join(reasons)}."
            )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


@dataclass(frozen=True)
class SiteSettings:
    """The content of a site's own file."""

    data: str  #: the spec of the site's rows; paths are relative to the file
    folder: Path  #: where personal models are kept
    one_client: bool = False  #: whether all rows belong to one client, which has the site's name
    limits: Limits = Limits()


@dataclass(frozen=True)
class _SiteSection:
    """The section [site] of the file."""

    data: str
    folder: str
    one_client: bool = False


def read_settings(path: Path) -> SiteSettings:
    """Read a site's file; every mistake raises a `PmtlError`."""
    values = read_toml(path, "The file of the site's settings")
    with errors_naming(str(path)):
        for key in values:
            if key not in ("site", "limits"):
                raise unknown("section", key, ("site", "limits"))
        site = from_values(_SiteSection, _table(values, "site"), "[site]")
        limits = from_values(Limits, _table(values, "limits"), "[limits]")
        return SiteSettings(site.data, path.parent / site.folder, site.one_client, limits)


def _table(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = values.get(name, {})
    if not isinstance(table, Mapping):
        raise PmtlError(f"[{name}] must be a section.")
    return table
