"""The appendix' comparison with PP-SGD, which predicts with w + θ_k (Bietti et al., ICML 2022)."""

from __future__ import annotations

from pmtl.experiments import fig3
from pmtl.experiments.result_cache import ResultCache
from pmtl.experiments.tables import Sheet


def run(lab: ResultCache) -> Sheet:
    """PMTL and PP-SGD."""
    methods = (fig3.METHODS[0], ("PP-SGD", "ppsgd", "personal"))
    return fig3.against(lab, "ppsgd", "PMTL against PP-SGD", methods)
