"""Many clients on one machine: batches, cohorts, what clients own, the loop, evaluation."""

from pmtl.simulation.axis import AxisTrainer
from pmtl.simulation.batches import Batches, LocalTraining
from pmtl.simulation.cohort import CohortTrainer, Trained
from pmtl.simulation.curves import metric_bounds
from pmtl.simulation.engines import ENGINES, check_engine
from pmtl.simulation.evaluation import Metrics, Weights, evaluate
from pmtl.simulation.feed import Feed
from pmtl.simulation.identity import identity
from pmtl.simulation.local_work import LocalWork
from pmtl.simulation.report import RoundReport
from pmtl.simulation.rounds import Federation, Progress
from pmtl.simulation.row_file import RowFile, digest_rows, private
from pmtl.simulation.store import CHECKS, Store
from pmtl.simulation.team import ALONE, Team, device_of, join_team
from pmtl.simulation.threads import ThreadsTrainer

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
