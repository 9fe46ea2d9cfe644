"""One private, personal model per client.

    import pmtl

    run = pmtl.train("synthetic", algorithm="pmtl", privacy=2.0)
    run.personal("client 7"), run.shared, run.evaluate(), run.privacy

Names are looked up when they are first used: `import pmtl` alone loads neither torch nor the
accountant.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pmtl._version import __version__
from pmtl.errors import PmtlError, did_you_mean

if TYPE_CHECKING:
    from pmtl.algorithms import Algorithm as Algorithm
    from pmtl.algorithms import build_algorithm as build_algorithm
    from pmtl.client.batches import LocalTraining as LocalTraining
    from pmtl.data import FederatedData as FederatedData
    from pmtl.data import Schema as Schema
    from pmtl.data import load as load
    from pmtl.experiments.compare import compare as compare
    from pmtl.export import Exported as Exported
    from pmtl.export import export_model as export_model
    from pmtl.personalize.finetuning import finetune as finetune
    from pmtl.personalize.result import Finetuned as Finetuned
    from pmtl.personalize.result import load_finetuned as load_finetuned
    from pmtl.planning.advice import Plan as Plan
    from pmtl.planning.advice import plan as plan
    from pmtl.privacy.plan import PrivacyPlan as PrivacyPlan
    from pmtl.privacy.request import PrivacyRequest as PrivacyRequest
    from pmtl.report.run_verdict import verdict as verdict
    from pmtl.report.verdict import Verdict as Verdict
    from pmtl.runs.callbacks import Callback as Callback
    from pmtl.runs.result import Run as Run
    from pmtl.runs.result import load_run as load_run
    from pmtl.runs.training import resume as resume
    from pmtl.runs.training import train as train
    from pmtl.simulation import join_team as join_team

_NAMES = {
    "algorithms": ("Algorithm", "build_algorithm"),
    "client.batches": ("LocalTraining",),
    "data": ("FederatedData", "Schema", "load"),
    "experiments.compare": ("compare",),
    "export": ("Exported", "export_model"),
    "personalize.finetuning": ("finetune",),
    "personalize.result": ("Finetuned", "load_finetuned"),
    "planning.advice": ("Plan", "plan"),
    "privacy.plan": ("PrivacyPlan",),
    "privacy.request": ("PrivacyRequest",),
    "report.run_verdict": ("verdict",),
    "report.verdict": ("Verdict",),
    "runs.callbacks": ("Callback",),
    "runs.result": ("Run", "load_run"),
    "runs.training": ("resume", "train"),
    "simulation": ("join_team",),
}
_MODULES = {name: f"pmtl.{module}" for module, names in _NAMES.items() for name in names}

__all__ = ["PmtlError", "__version__", *sorted(_MODULES)]


def __getattr__(name: str) -> Any:
    if name == "sklearn":  # A package of its own, which imports scikit-learn.
        return import_module("pmtl.sklearn")
    if name not in _MODULES:
        hint = did_you_mean(name, __all__)
        raise AttributeError(f"module 'pmtl' has no attribute {name!r}{'.' * bool(hint)}{hint}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
