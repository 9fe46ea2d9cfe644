"""The processes of a team work on one federation: they must hold the same data, settings and code.

torchrun starts the processes, and nothing in it keeps them from reading different files. Rows of
one organisation would then end up in models that are saved under another's names. So the processes
compare digests before anything is trained, charged or written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from pmtl.algorithms import Algorithm
from pmtl.data import FederatedData
from pmtl.errors import PmtlError
from pmtl.jsontext import to_json
from pmtl.models import FlatModel
from pmtl.privacy.plan import PrivacyPlan
from pmtl.runs.config import TrainConfig
from pmtl.runs.facts import versions
from pmtl.simulation import Team, identity


def refuse_differences(
    team: Team,
    data: FederatedData,
    config: TrainConfig,
    plans: Sequence[PrivacyPlan | None],
    model: FlatModel,
    method: Algorithm,
    run: str = "",
) -> None:
    """Refuse, in every process of the team, to begin with processes that differ.

    Data and algorithm are compared by what they are and not by where their files lie, and the
    ledger is the leader's affair. `plans` are the privacy plans; `run` is the run that is resumed.
    """
    if team.size == 1:
        return
    ledger = None if config.ledger is None else ""
    settings = replace(config, data="", algorithm="", ledger=ledger).to_toml()
    promised = [None if plan is None else plan.to_dict() for plan in plans]
    software = versions()
    differing = team.differing(
        {
            "the data": data.fingerprint(),
            "the settings": to_json([settings, promised, run]),
            "the model": identity(model.module, model.start()),
            "the algorithm": identity(method, _board(method, data)),
            "the version of pmtl": f"{software.pop('pmtl')} {_sources()}",
            "the version of Python or torch": to_json(software),
        }
    )
    if differing:
        raise PmtlError(
            f"The processes of this job differ in {' and in '.join(differing)}. Nothing was "
            "trained, charged or written. torchrun is for the machines of one owner, who all hold "
            "the same files, and not for a federation between organisations: start every process "
            "with the same data, settings and installation."
        )


def _board(method: Algorithm, data: FederatedData) -> Any:
    """What the algorithm makes of the clients; None where these are not the ones it is for."""
    try:
        return method.billboard(data.clients).description()
    except PmtlError:
        return None


@cache
def _sources() -> str:
    """A digest of the installed package's own source files."""
    state, package = blake2b(digest_size=16), Path(__file__).parents[1]
    for file in sorted(package.rglob("*.py")):
        for content in (str(file.relative_to(package)).encode(), file.read_bytes()):
            state.update(len(content).to_bytes(8, "little") + content)
    return state.hexdigest()
