"""The user's own metrics: one number for each client, from the targets and the predictions.

A metric is a function of two arrays, as in scikit-learn: `sklearn.metrics:f1_score` works. The name
of its second parameter says what it needs: `y_score`, `y_prob` or `y_proba` are probabilities (of
the second class if there are two), anything else is the prediction: a class, a 0 or 1 for each
label, or a number.

Values are exact and therefore private: experiments only. Clients for which the metric is NaN (such
as AUC with one class) have no value.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pmtl.errors import PmtlError, how_many, kind_of
from pmtl.models import Task, metric_names, predictions, probabilities
from pmtl.plugins import error_text, find, refuse_options
from pmtl.simulation.measures import ALL, MEASURES, NAMES, measures_of

#: From one client's targets and predictions to a number.
Metric = Callable[[NDArray[Any], NDArray[Any]], float]

_PROBABILITIES = ("y_score", "y_prob", "y_proba")
#: Names that results have anyway, and columns of a table of clients.
_TAKEN = {name for task in MEASURES for name in metric_names(task)} | {*NAMES, ALL}
_TAKEN |= {"client", "rows", "model"}
#: Metrics whose names end like this are errors: less is better.
_ERRORS = ("_loss", "_error", "_deviance")


def find_metrics(names: str | None, task: Task | None = None) -> dict[str, Metric | None]:
    """Metrics, by the names they get in results; None for a measure of the library.

    `names` are measures (`measures.py`; `all`: every one of the task), `package.module:function` or
    the names of entry points, joined by `+`. A measure that the `task` does not have is refused.
    """
    if names is not None and not isinstance(names, str):
        raise PmtlError(
            f"A metric is named package.module:function, as text, but {kind_of(names)} was given."
        )
    found: dict[str, Metric | None] = {}
    for name in names.split("+") if names else ():
        refuse_options("metric", name, "write a function that sets them, and name that")
        metric = find("metric", name, dict.fromkeys((*NAMES, ALL)))
        if metric is None:
            if task is not None:
                measures_of(task, [name])
            found[name] = None
            continue
        if not callable(metric):
            raise PmtlError(f"The metric {name!r} is not a function of targets and predictions.")
        short = name.rpartition(":")[2]
        if short in _TAKEN:
            raise PmtlError(
                f"The metric {name!r} would replace {short!r}, which results have anyway: give "
                "your function another name."
            )
        if short in found:
            raise PmtlError(f"Two metrics have the name {short!r}: results need different names.")
        found[short] = metric
    return found


def client_value(name: str, metric: Metric, task: Task, targets: Tensor, outputs: Tensor) -> float:
    """The value of one client, or NaN; `outputs` [n, …] are the model's for all of its rows."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # There would be one for each client.
            return float(metric(targets.cpu().numpy(), _predictions(metric, task, outputs)))
    except (Exception, SystemExit) as error:  # The user's code may raise anything.
        raise PmtlError(
            f"The metric {name!r} failed for a client with {how_many(len(targets), 'row')}: "
            f"{error_text(error)}."
        ) from error


def _predictions(metric: Metric, task: Task, outputs: Tensor) -> NDArray[Any]:
    parameters = list(inspect.signature(metric).parameters)
    if len(parameters) > 1 and parameters[1] in _PROBABILITIES:
        found = probabilities(task)(outputs).cpu().numpy()
        two_classes = task == "classification" and found.shape[1] == 2
        return np.asarray(found[:, 1] if two_classes else found)
    return predictions(task)(outputs).cpu().numpy()


def less_is_better(name: str, metric: Metric) -> bool:
    """Whether the user's metric is an error."""
    return bool(getattr(metric, "less_is_better", name.endswith(_ERRORS)))


def summary(name: str, values: NDArray[np.float64], less_is_better: bool) -> dict[str, float]:
    """The mean over clients, and over the worst tenth; NaN if no client has a value."""
    defined = values[~np.isnan(values)]
    return mean_and_worst(name, defined if len(defined) else np.array([np.nan]), less_is_better)


def mean_and_worst(
    name: str, values: NDArray[np.float64], less_is_better: bool
) -> dict[str, float]:
    """The mean over clients, and over the tenth of them (rounded up) with the worst values."""
    ordered = np.sort(values)
    worst = -(-len(ordered) // 10)
    tail = ordered[-worst:] if less_is_better else ordered[:worst]
    return {f"{name}_mean": float(ordered.mean()), f"{name}_worst_decile": float(tail.mean())}
