"""Many clients on one machine: batches, cohorts, what clients own, the loop, evaluation."""

from pmtl.client.batches import Batches, LocalTraining
from pmtl.engines.axis import AxisTrainer
from pmtl.engines.base import CohortTrainer, Trained
from pmtl.engines.choose import ENGINES, check_engine
from pmtl.engines.feed import Feed
from pmtl.engines.loops import ThreadsTrainer
from pmtl.simulation.evaluation import Metrics, Weights, evaluate
from pmtl.simulation.federation import Federation, Progress
from pmtl.simulation.identity import identity
from pmtl.simulation.local_work import LocalWork
from pmtl.simulation.released_metrics import metric_bounds
from pmtl.simulation.round_report import RoundReport
from pmtl.simulation.row_file import RowFile, digest_rows, private
from pmtl.simulation.store import CHECKS, Store
from pmtl.simulation.team import ALONE, Team, device_of, join_team

__all__ = [
    "ALONE",
    "CHECKS",
    "ENGINES",
    "AxisTrainer",
    "Batches",
    "CohortTrainer",
    "Federation",
    "Feed",
    "LocalTraining",
    "LocalWork",
    "Metrics",
    "Progress",
    "RoundReport",
    "RowFile",
    "Store",
    "Team",
    "ThreadsTrainer",
    "Trained",
    "Weights",
    "check_engine",
    "device_of",
    "digest_rows",
    "evaluate",
    "identity",
    "join_team",
    "metric_bounds",
    "private",
]
