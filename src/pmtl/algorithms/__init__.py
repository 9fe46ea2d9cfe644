"""One file per algorithm, each to be read beside its paper."""

from dataclasses import fields

from pmtl.algorithms.base import Algorithm as Algorithm
from pmtl.algorithms.base import ExactAlgorithm as ExactAlgorithm
from pmtl.algorithms.base import Sizes as Sizes
from pmtl.algorithms.clustered import ClusteredPMTL as ClusteredPMTL
from pmtl.algorithms.default.anchored import Anchored as Anchored
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
from pmtl.errors import PmtlError, kind_of
from pmtl.plugins import find
from pmtl.spec import construct, parse_spec

ALGORITHMS: dict[str, type[Algorithm]] = {
    kind.name: kind
    for kind in (
        *(Pooling, Anchored, PMTL, FedAvg, FedAdam, FedProx, Local, Ditto, PPSGD),
        *(ClusteredPMTL, RelatedPMTL, NaiveJoint),
    )
}


def build_algorithm(spec: str | Algorithm | type[Algorithm]) -> Algorithm:
    """The algorithm that a spec names; an algorithm is returned as it is.

    Args:
        spec: `pmtl:lam=0.5`, `package.module:Name:key=value`, an algorithm, or its class.
    """
    if isinstance(spec, Algorithm):
        return spec
    if isinstance(spec, type) and issubclass(spec, Algorithm):
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
    for item in fields(kind):
        if item.metadata.get("derived") and item.name in options:
            raise PmtlError(f"{name}: {item.name} follows from the run and cannot be set.")
    return construct(kind, options, f"algorithm {name}")
