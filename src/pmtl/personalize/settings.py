"""The settings of fine-tuning, for Python and the command line. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from pmtl.client.batches import LocalTraining
from pmtl.options import check_options, option, same_option
from pmtl.runs.config import TrainConfig

#: λ of the methods that have one, unless it is given.
DEFAULT_LAMS = {"mean": 0.1, "kl": 1.0, "ewc": 1.0}
#: The λ that are tried with each of them when clients choose.
TRIED_LAMS = (0.1, 1.0)

_DEFAULTS = ", ".join(f"{lam:g} for {name}" for name, lam in DEFAULT_LAMS.items())
_TRIED = " and ".join(f"{lam:g}" for lam in TRIED_LAMS)


@dataclass(frozen=True)
class FinetuneSettings:
    """How clients are fine-tuned."""

    method: str = option(
        "vanilla",
        help="{vanilla}, {mean}, {kl}, {ewc}, or {select}: every client chooses the best model by "
        "its own validation rows, also with 5 times as many steps. The command line also has "
        "{all}: all four methods, one after the other.",
    )
    start: str | None = option(
        None,
        help="{shared} or {personal}: the model to start from; by default personal if the run has "
        "such models. select tries both unless given.",
    )
    lam: float | None = option(
        None,
        help="λ, how strongly the published model pulls; "
        f"by default {_DEFAULTS}. select tries {_TRIED} unless given.",
    )
    seed: int | None = option(
        None,
        help="The same seed gives the same bits; by default the run's; not in production.",
        at_least=0,
    )
    device: str = same_option(TrainConfig, "device")
    engine: str = same_option(TrainConfig, "engine")
    local: LocalTraining = field(
        default_factory=LocalTraining, metadata={"panel": "What a client does"}
    )

    def __post_init__(self) -> None:
        check_options(self)
