"""What is known of a run beside its models: what of it is public, and whether data fits it."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from pmtl import storage as files
from pmtl._version import __version__
from pmtl.data import FederatedData
from pmtl.errors import PmtlError
from pmtl.runs.config import TrainConfig

#: Of what `run.json` says, what `public/plan.json` says, too.
_PUBLIC_FACTS = (
    *("id", "mode", "model", "algorithm", "shares", "personal", "relations", "parameters"),
    *("task", "outputs", "input_shape", "labels", "feature_names", "text", "disclosed", "pixels"),
    *("plan", "metrics_plan", "hardened", "clients", "blocks", "initialisation"),
)
_PUBLIC_SETTINGS = ("local", "evaluate_every", "patience")

#: Of a production run that version 0.1 wrote.
UNDIVIDED = (
    "The run at {} was written by an earlier version of pmtl, which did not keep private files "
    "apart: run.json tells whoever reads it about clients' rows. Hand out none of its files but "
    "shared.safetensors, privacy.txt, privacy.json and metrics.jsonl."
)


def versions() -> dict[str, Any]:
    """What the run was made with."""
    return {
        "pmtl": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def public_facts(config: TrainConfig, facts: Mapping[str, Any]) -> dict[str, Any]:
    """What everybody may know of a run before it begins."""
    settings = asdict(config)
    return {name: facts[name] for name in _PUBLIC_FACTS} | {
        name: settings[name] for name in _PUBLIC_SETTINGS
    }


def fingerprint_of(data: FederatedData, key: bytes) -> str:
    """What tells this data from any other; with a `key`, only for those who have it."""
    return files.digest_of_text(data.fingerprint(), key) if key else data.fingerprint()


def check_data(data: FederatedData, facts: dict[str, Any], key: bytes = b"") -> None:
    """Refuse data that is not what the run was trained on; `key` is the key of its digests."""
    if list(data.clients) != list(facts["clients"]):
        raise PmtlError(
            f"The run was made for {len(facts['clients'])} clients, and this data has {data.m} or "
            "other ones: a federation may not change during a run."
        )
    names = None if data.feature_names is None else list(data.feature_names)
    if names != facts["feature_names"]:
        what = "words" if data.text is not None else "feature columns"
        how = _first_difference(names, facts)
        raise PmtlError(
            f"This data has other {what} than the run was trained on{how}: "
            "a model's weights mean nothing for others. Read it with the same options."
        )
    if fingerprint_of(data, key) != facts["fingerprint"]:
        raise PmtlError("This data is not what the run was trained on: its fingerprint differs.")


def _first_difference(names: list[str] | None, facts: dict[str, Any]) -> str:
    known = facts["feature_names"]
    for name, other in zip(names or (), known or (), strict=False):
        if name != other:
            return f" ({name!r} in place of {other!r})"
    return f" ({len(names or ())} in place of {len(known or ())})"
