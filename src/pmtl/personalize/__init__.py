"""What a client does for itself when the run is over: fine-tuning, and choosing between models."""

from pmtl.personalize.choosing import Candidate, Chosen, candidates, choose
from pmtl.personalize.methods import METHODS, build_method
from pmtl.personalize.tuning import Tuner, Workspace, tune

__all__ = [
    "METHODS",
    "Candidate",
    "Chosen",
    "Tuner",
    "Workspace",
    "build_method",
    "candidates",
    "choose",
    "tune",
]
