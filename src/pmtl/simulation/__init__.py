"""Many clients on one machine: batches, cohorts, what clients own, the loop, evaluation."""

from pmtl.simulation.axis import AxisTrainer
from pmtl.simulation.batches import Batches, LocalTraining
from pmtl.simulation.cohort import CohortTrainer, Trained
from pmtl.simulation.curves import metric_bounds
from pmtl.simulation.engines import ENGINES, check_engine
from pmtl.simulation.evaluation import Metrics, evaluate
from pmtl.simulation.feed import Feed
from pmtl.simulation.rounds import Federation, Progress, RoundReport
from pmtl.simulation.store import Store
from pmtl.simulation.threads import ThreadsTrainer

__all__ = [
    "ENGINES",
    "AxisTrainer",
    "Batches",
    "CohortTrainer",
    "Federation",
    "Feed",
    "LocalTraining",
    "Metrics",
    "Progress",
    "RoundReport",
    "Store",
    "ThreadsTrainer",
    "Trained",
    "check_engine",
    "evaluate",
    "metric_bounds",
]
