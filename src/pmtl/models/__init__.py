"""The paper's models, the losses, and a module read as a function of one flat vector."""

from pmtl.models.build import MODELS as MODELS
from pmtl.models.build import build_model as build_model
from pmtl.models.build import check_model as check_model
from pmtl.models.flat import FlatModel as FlatModel
from pmtl.models.layout import Layout as Layout
from pmtl.models.losses import Batch as Batch
from pmtl.models.losses import Task as Task
from pmtl.models.losses import draw_targets as draw_targets
from pmtl.models.losses import metric_names as metric_names
from pmtl.models.losses import predictions as predictions
from pmtl.models.losses import probabilities as probabilities
from pmtl.models.losses import row_divergences as row_divergences
from pmtl.models.losses import row_losses as row_losses
from pmtl.models.losses import row_metrics as row_metrics
from pmtl.models.losses import row_nll as row_nll
from pmtl.models.losses import row_squares as row_squares
from pmtl.models.losses import uniforms_per_row as uniforms_per_row
from pmtl.models.public_files import PublicFile as PublicFile
from pmtl.models.public_files import read_public as read_public
from pmtl.models.start import start_warnings as start_warnings
