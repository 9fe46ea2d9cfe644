"""A small setting, and how to wait for an answer."""

from __future__ import annotations

from dataclasses import replace

from pmtl.experiments.results import Results
from pmtl.experiments.settings import SETTINGS
from pmtl.simulation import LocalTraining

TINY = replace(
    SETTINGS["synthetic"],
    data="synthetic:clients=20,samples=10,features=3,classes=2,clusters=2",
    local=LocalTraining(steps=2, batch=5),
    tune=LocalTraining(steps=2, batch=5),
    cohort=12,
    rounds=4,
    sigmas=(0.05, 0.2),
    clips=(0.5,),
    lams=(0.1,),
    seeds=(0, 1),
    epsilons=(1.0, 50.0),
    table_epsilons=(50.0,),
)


def filled(results: Results, ask, *arguments):
    """An answer, computed if need be."""
    ask(*arguments)
    results.fill()
    return ask(*arguments)
