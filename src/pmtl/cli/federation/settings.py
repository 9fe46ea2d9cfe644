"""The settings of a federation's run: those of any run, and what sites hide from the server."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pmtl.errors import PmtlError
from pmtl.federation.transport import AT_THE_SERVER
from pmtl.options import declared, option
from pmtl.privacy.request import PrivacyRequest
from pmtl.runs.config import TrainConfig

_PANEL = "Secure aggregation"

#: Settings of other runs that the server or the sites decide, or that have no meaning here.
LEFT_OUT = (
    *("data", "ledger", "device", "engine", "compile", "evaluate_every", "metric", "metrics"),
    *("patience", "loss_bound", "checkpoint_seconds"),
)


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

    def __post_init__(self) -> None:
        if self.mode == "production" and self.ledger is None:
            object.__setattr__(self, "ledger", AT_THE_SERVER)
        super().__post_init__()
        parts: dict[Any, Any] = {FederationConfig: self, PrivacyRequest: self.privacy}
        given = [
            name
            for kind, part in parts.items()
            for name, setting in declared(kind).items()
            if name in LEFT_OUT and getattr(part, name) not in (setting.default, AT_THE_SERVER)
        ]
        if given:
            raise PmtlError(
                f"A federation's run has no setting {' or '.join(given)}: the server or the sites "
                "decide it, or it has no meaning there. Leave it out."
            )


def job_of(name: str, config: FederationConfig) -> dict[str, Any]:
    """The part of a job that the settings decide."""
    values = asdict(config)
    secure, colluders = values.pop("secure_aggregation"), values.pop("colluders")
    if colluders is not None and not secure:
        raise PmtlError("colluders needs secure aggregation: give secure_aggregation, too.")
    return {"run": name, "config": values, "secure": secure, "colluders": colluders}
