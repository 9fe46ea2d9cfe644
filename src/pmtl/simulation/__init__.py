"""One server and many sites on one machine."""

from pmtl.client.batches import LocalTraining as LocalTraining
from pmtl.engines.row_tensors import RowTensors as RowTensors
from pmtl.simulation.client_vectors.store import Store as Store
from pmtl.simulation.code_digest import code_digest as code_digest
from pmtl.simulation.evaluation import Metrics as Metrics
from pmtl.simulation.evaluation import Weights as Weights
from pmtl.simulation.evaluation import evaluate as evaluate
from pmtl.simulation.released_metrics import ReleasedMetrics as ReleasedMetrics
from pmtl.simulation.released_metrics import metric_bounds as metric_bounds
from pmtl.simulation.round_report import RoundReport as RoundReport
from pmtl.simulation.rounds import RunState as RunState
from pmtl.simulation.rounds import Simulation as Simulation
from pmtl.simulation.simulate import simulate as simulate
from pmtl.simulation.sites import Sites as Sites
from pmtl.simulation.team import ALONE as ALONE
from pmtl.simulation.team import Team as Team
from pmtl.simulation.team import device_of as device_of
from pmtl.simulation.team import join_team as join_team
