"""The settings of a federation's run: those of any run, and what sites hide from the server."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pmtl.errors import PmtlError
from pmtl.options import option
from pmtl.runs.config import TrainConfig

_PANEL = "Secure aggregation"


@dataclass(frozen=True)
class FederationConfig(TrainConfig):
    """The settings of `pmtl federation run`, and of its configuration file."""

    secure_aggregation: bool = option(
        False, help="Sites hide their uploads from the server (experimental).", panel=_PANEL
    )
    colluders: int | None = option(
        None,
        help="How many sites may collude with the server; by default a third.",
        at_least=0,
        panel=_PANEL,
    )


def job_of(name: str, config: FederationConfig) -> dict[str, Any]:
    """The part of a job that the settings decide."""
    values = asdict(config)
    secure, colluders = values.pop("secure_aggregation"), values.pop("colluders")
    if colluders is not None and not secure:
        raise PmtlError("colluders needs secure aggregation: give secure_aggregation, too.")
    return {"run": name, "config": values, "secure": secure, "colluders": colluders}
