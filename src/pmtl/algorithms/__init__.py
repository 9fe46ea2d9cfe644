"""One file per algorithm, each to be read beside its paper.

An algorithm is imported when it is first used: the names alone need no torch.
"""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from inspect import get_annotations
from typing import TYPE_CHECKING, Any

from pmtl.errors import PmtlError, kind_of
from pmtl.plugins import Library, find
from pmtl.spec import construct, parse_spec

if TYPE_CHECKING:  # For editors and type checkers; `__getattr__` finds every class of the library.
    from pmtl.algorithms.base import Algorithm as Algorithm
    from pmtl.algorithms.clustered import ClusteredPMTL as ClusteredPMTL
    from pmtl.algorithms.default.anchored import Anchored as Anchored
    from pmtl.algorithms.default.exact import ExactAlgorithm as ExactAlgorithm
    from pmtl.algorithms.default.exact import Sizes as Sizes
    from pmtl.algorithms.default.pooling import Pooling as Pooling
    from pmtl.algorithms.ditto import Ditto as Ditto
    from pmtl.algorithms.fedadam import FedAdam as FedAdam
    from pmtl.algorithms.fedavg import FedAvg as FedAvg
    from pmtl.algorithms.fedprox import FedProx as FedProx
    from pmtl.algorithms.local import Local as Local
    from pmtl.algorithms.naive_joint import NaiveJoint as NaiveJoint
    from pmtl.algorithms.pmtl import PMTL as PMTL
    from pmtl.algorithms.ppsgd import PPSGD as PPSGD
    from pmtl.algorithms.related import RelatedPMTL as RelatedPMTL

#: The library's algorithms: classes in modules of this package.
_PLACES = {
    "pooling": "default.pooling:Pooling",
    "anchored": "default.anchored:Anchored",
    "pmtl": "pmtl:PMTL",
    "fedavg": "fedavg:FedAvg",
    "fedadam": "fedadam:FedAdam",
    "fedprox": "fedprox:FedProx",
    "local": "local:Local",
    "ditto": "ditto:Ditto",
    "ppsgd": "ppsgd:PPSGD",
    "clustered": "clustered:ClusteredPMTL",
    "related": "related:RelatedPMTL",
    "naive_joint": "naive_joint:NaiveJoint",
}
ALGORITHMS: Library[type[Algorithm]] = Library(__name__, _PLACES)
#: How `--help` writes algorithms whose options matter most. The shell completes what is in {}.
_IN_HELP = {
    "pmtl": "{pmtl}[:lam=0.1]",
    "fedadam": "{fedadam}[:server_lr=0.03]",
    "fedprox": "{fedprox}[:mu=0.1]",
    "ditto": "{ditto}[:lam=0.1]",
    "ppsgd": "{ppsgd}[:alpha=1]",
    "clustered": "{clustered:clusters=}FILE (JSON or CSV, client to cluster)",
    "related": "{related:omega=}FILE (.npy, or CSV with names)",
}
#: The interfaces, and their modules in this package.
_INTERFACES = {"Algorithm": "base", "ExactAlgorithm": "default.exact", "Sizes": "default.exact"}


def __getattr__(name: str) -> Any:
    if name in _INTERFACES:
        return getattr(import_module(f"{__name__}.{_INTERFACES[name]}"), name)
    for algorithm, place in _PLACES.items():
        if place.endswith(f":{name}"):
            return ALGORITHMS[algorithm]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    classes = (place.partition(":")[2] for place in _PLACES.values())
    return sorted({*globals(), *_INTERFACES, *classes})


def algorithms_in_help() -> str:
    """All algorithms, as `--help` lists them."""
    return ", ".join(_IN_HELP.get(name, f"{{{name}}}") for name in _PLACES)


def names_sharing_parts() -> str:
    """The algorithms that can share a part of a model, for error messages."""
    *names, last = (name for name, kind in ALGORITHMS.items() if kind.shares_parts)
    return f"{', '.join(names)} or {last}"


def build_algorithm(spec: str | Algorithm | type[Algorithm]) -> Algorithm:
    """The algorithm that a spec names; an algorithm is returned as it is.

    Args:
        spec: `pmtl:lam=0.5`, `package.module:Name:key=value`, an algorithm, or its class.
    """
    from pmtl.algorithms.base import Algorithm

    if isinstance(spec, Algorithm):
        return spec
    if isinstance(spec, type) and issubclass(spec, Algorithm):
        _refuse_unfinished(spec, spec.__name__)
        return construct(spec, {}, f"algorithm {spec.__name__}")
    if not isinstance(spec, str):
        raise PmtlError(
            "An algorithm is a spec (pmtl:lam=0.5) or an object such as pmtl.algorithms.Ditto(), "
            f"but {kind_of(spec)} was given: leave it out for the default."
        )
    name, options = parse_spec(spec)
    kind = find("algorithm", name, ALGORITHMS)
    if not (isinstance(kind, type) and issubclass(kind, Algorithm)):
        raise PmtlError(f"{name!r} is not an algorithm: name a subclass of pmtl.Algorithm.")
    _refuse_unfinished(kind, name)
    for item in fields(kind):
        if item.metadata.get("derived") and item.name in options:
            raise PmtlError(f"{name}: {item.name} follows from the run and cannot be set.")
    return construct(kind, options, f"algorithm {name}")


def _refuse_unfinished(kind: type[Algorithm], name: str) -> None:
    """Refuse a class that lacks what every algorithm has."""
    if missing := sorted(getattr(kind, "__abstractmethods__", ())):
        raise PmtlError(f"The algorithm {name} has no {', '.join(missing)}: write these methods.")
    if not isinstance(getattr(kind, "name", None), str):
        raise PmtlError(f'The algorithm {name} has no name: write name = "…" in its class.')
    own = [item for item in get_annotations(kind).values() if "ClassVar" not in str(item)]
    if own and "__dataclass_fields__" not in vars(kind):
        raise PmtlError(
            f"The algorithm {name} is not a dataclass: write @dataclass(frozen=True) above its "
            "class."
        )
