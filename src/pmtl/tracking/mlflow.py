"""`--callback mlflow`: a run's settings, metrics and privacy statement in MLflow."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlparse

from pmtl.errors import PmtlError, require_package
from pmtl.runs.callbacks import Callback, Event
from pmtl.tracking.scalars import read, run_id, run_name, scalars, settings

#: The tag by which a resumed run is found.
TAG = "pmtl.run"
#: MLflow's limit for one call.
_BATCH = 100
#: MLflow's limit for the length of a parameter.
_MAX_LENGTH = 500
#: MLflow's settings for the first request.
_FEW_RETRIES = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}


@contextmanager
def _few_retries() -> Iterator[None]:
    """Fail within seconds, not minutes, if there is no server. Later requests, during a run, have
    MLflow's own number of retries."""
    set_here = {name: value for name, value in _FEW_RETRIES.items() if name not in os.environ}
    os.environ.update(set_here)
    try:
        yield
    finally:
        for name in set_here:
            del os.environ[name]


class MLflow(Callback):
    """Writes to a tracking server or to a folder. A resumed run continues its MLflow run.

    Args:
        uri: the address of a tracking server, or a folder; by default `MLFLOW_TRACKING_URI` or
            the folder `mlruns`.
        experiment: the name of the MLflow experiment, which is made if it does not exist.
    """

    def __init__(self, uri: str | None = None, experiment: str = "pmtl") -> None:
        uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or "mlruns"
        if len(urlparse(uri).scheme) < 2 or uri.startswith("file:"):
            # MLflow 3 needs this confirmation that a folder is meant.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        with require_package("The callback mlflow needs MLflow: pip install 'pmtl[mlflow]'."):
            from mlflow.exceptions import MlflowException
            from mlflow.tracking import MlflowClient
        try:
            self._client: Any = MlflowClient(tracking_uri=uri)
            with _few_retries():
                known = self._client.get_experiment_by_name(experiment)
                made = known.experiment_id if known else self._client.create_experiment(experiment)
        except (MlflowException, ImportError, OSError) as error:
            raise PmtlError(
                f"MLflow at {uri} cannot be used ({str(error).partition(chr(10))[0]}): give the "
                "address of a tracking server or a folder, as mlflow:uri=…."
            ) from error
        self._experiment: str = made
        self._run: str | None = None

    def on_round(self, event: Event) -> None:
        """Write the metrics of the round; the settings come with the first one."""
        if self._run is None:
            self._run = self._begin(event)
        self._log(scalars(event), event.round)

    def on_end(self, event: Event) -> None:
        """Write the privacy statement, and end the MLflow run."""
        if self._run is None:
            return
        if privacy := read(event.path, "privacy.json"):
            numbers = {f"privacy.{name}": privacy[name] for name in ("epsilon", "delta")}
            finite = {name: value for name, value in numbers.items() if isinstance(value, float)}
            self._log(finite, event.round)
            self._client.log_text(self._run, privacy["text"], "privacy.txt")
        self._client.set_terminated(self._run)
        self._run = None

    def _begin(self, event: Event) -> str:
        """The identity of the MLflow run: a new one, or the identity of the run that is resumed."""
        from mlflow.entities import Param

        own = run_id(event.path)
        if own is not None:
            wanted = f"tags.`{TAG}` = '{own}'"
            if found := self._client.search_runs([self._experiment], wanted):
                again = str(found[0].info.run_id)
                self._client.update_run(again, status="RUNNING")
                return again
        made = self._client.create_run(
            self._experiment, run_name=run_name(event.path), tags={} if own is None else {TAG: own}
        )
        name = str(made.info.run_id)
        given = [Param(key, value[:_MAX_LENGTH]) for key, value in settings(event.path).items()]
        for first in range(0, len(given), _BATCH):
            self._client.log_batch(name, params=given[first : first + _BATCH])
        return name

    def _log(self, values: dict[str, float], round: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, round) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)
