"""The paper's models, the losses, and a module read as a function of one flat vector."""

from pmtl.models.build import MODELS, build_model, check_model
from pmtl.models.flat import FlatModel
from pmtl.models.layout import Layout
from pmtl.models.likelihood import draw_targets, row_divergences, row_surprises, uniforms_per_row
from pmtl.models.losses import (
    Batch,
    Task,
    batch_loss,
    metric_names,
    predictions,
    probabilities,
    row_counts,
    row_losses,
    row_squares,
)
from pmtl.models.lowering import floats_per_row, has_convolutions, lowered
from pmtl.models.public_files import PublicFile, read_public
from pmtl.models.start import start_warnings, used_of_start

__all__ = [
    "MODELS",
    "Batch",
    "FlatModel",
    "Layout",
    "PublicFile",
    "Task",
    "batch_loss",
    "build_model",
    "check_model",
    "draw_targets",
    "floats_per_row",
    "has_convolutions",
    "lowered",
    "metric_names",
    "predictions",
    "probabilities",
    "read_public",
    "row_counts",
    "row_divergences",
    "row_losses",
    "row_squares",
    "row_surprises",
    "start_warnings",
    "uniforms_per_row",
    "used_of_start",
]
