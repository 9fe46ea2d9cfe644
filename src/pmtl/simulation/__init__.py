"""Many clients on one machine: batches, cohorts, what clients own, the loop, evaluation."""

from pmtl.simulation.batches import Batches, LocalTraining
from pmtl.simulation.cohort import CohortTrainer, Trained
from pmtl.simulation.evaluation import Metrics, Weights, evaluate
from pmtl.simulation.feed import Feed
from pmtl.simulation.rounds import Federation, Progress, RoundReport
from pmtl.simulation.row_file import RowFile, digest_rows, private
from pmtl.simulation.store import CHECKS, Store

__all__ = [
    "CHECKS",
    "Batches",
    "CohortTrainer",
    "Federation",
    "Feed",
    "LocalTraining",
    "Metrics",
    "Progress",
    "RoundReport",
    "RowFile",
    "Store",
    "Trained",
    "Weights",
    "digest_rows",
    "evaluate",
    "private",
]
