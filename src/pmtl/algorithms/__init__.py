"""One file per algorithm, each to be read beside its paper."""

from pmtl.algorithms.base import Algorithm
from pmtl.algorithms.clustered import ClusteredPMTL
from pmtl.algorithms.ditto import Ditto
from pmtl.algorithms.fedavg import FedAvg
from pmtl.algorithms.fedprox import FedProx
from pmtl.algorithms.local import Local
from pmtl.algorithms.naive_joint import NaiveJoint
from pmtl.algorithms.pmtl import PMTL
from pmtl.algorithms.ppsgd import PPSGD
from pmtl.algorithms.related import RelatedPMTL
from pmtl.spec import construct, parse_spec, unknown

ALGORITHMS: dict[str, type[Algorithm]] = {
    kind.name: kind
    for kind in (
        *(PMTL, FedAvg, FedProx, Local, Ditto, PPSGD),
        *(ClusteredPMTL, RelatedPMTL, NaiveJoint),
    )
}


def build_algorithm(spec: str | Algorithm) -> Algorithm:
    """The algorithm that `pmtl:lam=0.5` or the like names; an algorithm stays what it is."""
    if isinstance(spec, Algorithm):
        return spec
    name, options = parse_spec(spec)
    if name not in ALGORITHMS:
        raise unknown("algorithm", name, ALGORITHMS)
    return construct(ALGORITHMS[name], options, f"algorithm {name}")


__all__ = [
    "ALGORITHMS",
    "PMTL",
    "PPSGD",
    "Algorithm",
    "ClusteredPMTL",
    "Ditto",
    "FedAvg",
    "FedProx",
    "Local",
    "NaiveJoint",
    "RelatedPMTL",
    "build_algorithm",
]
