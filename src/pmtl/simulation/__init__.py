"""One server and many sites on one machine."""

from pmtl.client.batches import Batches, LocalTraining
from pmtl.engines.choose import check_engine
from pmtl.engines.row_tensors import RowTensors
from pmtl.simulation.evaluation import Metrics, Weights, evaluate
from pmtl.simulation.identity import identity
from pmtl.simulation.owned.row_file import RowFile, digest_rows, private
from pmtl.simulation.owned.store import CHECKS, Store
from pmtl.simulation.released_metrics import ReleasedMetrics, metric_bounds
from pmtl.simulation.round_report import RoundReport
from pmtl.simulation.rounds import RunState, Simulation
from pmtl.simulation.simulate import simulate
from pmtl.simulation.sites import Sites
from pmtl.simulation.team import ALONE, Team, device_of, join_team

__all__ = [
    "ALONE",
    "CHECKS",
    "Batches",
    "LocalTraining",
    "Metrics",
    "ReleasedMetrics",
    "RoundReport",
    "RowFile",
    "RowTensors",
    "RunState",
    "Simulation",
    "Sites",
    "Store",
    "Team",
    "Weights",
    "check_engine",
    "device_of",
    "digest_rows",
    "evaluate",
    "identity",
    "join_team",
    "metric_bounds",
    "private",
    "simulate",
]
