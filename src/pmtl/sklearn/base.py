"""The base class of both estimators: from arrays and groups to a run, and from a run to answers.

A *group* is a client: `groups` names the client of each row. Routing is asked for by default, so
that with `sklearn.set_config(enable_metadata_routing=True)` groups reach `fit`, `predict`,
`predict_proba` and `score` through pipelines, searches and cross-validation.
"""

from __future__ import annotations

import math
import uuid
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_consistent_length, check_is_fitted
from torch import Tensor

from pmtl.data import FederatedData
from pmtl.data.client_names import encode
from pmtl.errors import PmtlError, PmtlWarning
from pmtl.models import Task
from pmtl.privacy.request import DEFAULT_EPSILON, PrivacyRequest
from pmtl.runs.config import TrainConfig
from pmtl.runs.result import Run
from pmtl.runs.training import train
from pmtl.sklearn.columns import check_rows, without_column
from pmtl.sklearn.saved import SavedArrays, SavedPath, save
from pmtl.sklearn.search import note_fit, warn_of_search

#: The name of the only client if there are no groups.
ALONE = "all rows"

_WITHOUT_GROUPS = (
    "fit was called without groups, so all rows belong to one client: its model is trained on them "
    "alone and is not private (ε is infinite). Pass groups=… with the client of each row; inside "
    "pipelines and searches after sklearn.set_config(enable_metadata_routing=True)."
)
_SHARED_ANSWERS = (
    "{} was called without groups, so the shared model answers for all rows. Pass groups=… for the "
    "clients' own models; scorers cannot, so give group_column=… if you use scoring=…."
)
#: What all clients lack here, because an estimator trains on all rows that it is given.
_EXPECTED = ("no test rows and", "no validation rows and")


class PMTLEstimator(BaseEstimator):  # type: ignore[misc]
    """The base class of `PMTLClassifier` and `PMTLRegressor`."""

    __metadata_request__fit = {"groups": True}  # noqa: RUF012
    __metadata_request__predict = {"groups": True}  # noqa: RUF012
    __metadata_request__predict_proba = {"groups": True}  # noqa: RUF012
    __metadata_request__score = {"groups": True}  # noqa: RUF012

    def __init__(
        self,
        epsilon: float = DEFAULT_EPSILON,
        delta: float | None = PrivacyRequest.delta,
        *,
        algorithm: Any = TrainConfig.algorithm,
        model: Any = TrainConfig.model,
        share: str | None = TrainConfig.share,
        bounds: Any = None,
        privacy: Mapping[str, Any] | None = None,
        local: Mapping[str, Any] | None = None,
        group_column: str | int | None = None,
        ledger: str | Path | None = None,
        mode: str = TrainConfig.mode,
        folder: str | Path | None = None,
        device: str = TrainConfig.device,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        """Keep the settings; `fit` checks them.

        Args:
            epsilon: ε of one fit, for every client against all others; inf for no privacy.
            delta: δ; 1/(10 · clients) unless given.
            algorithm: a spec (`pmtl:lam=0.5`) or an algorithm; "auto" is pooling for linear
                models and anchored for others.
            model: a spec (`mlp:hidden=32`) or a factory of torch modules; "auto" is linear.
            share: what leaves a client, as for `pmtl.train`; by default the whole model.
            bounds: public (low, high) of columns, by name or position; `"target"` is the target's.
            privacy: further fields of `PrivacyRequest` (`{"rounds": 20, "cohort": 50}`).
            local: a client's work in a round, fields of `LocalTraining` (`{"lr": 0.1}`).
            group_column: the column of `X` that names the client, by name or position, instead of
                `groups`. It is not a feature.
            ledger: the clients' ledger; every fit is charged to it.
            mode: "experiment" (seeded) or "production" (the operating system's randomness).
            folder: where every fit keeps its run, each in a new folder; by default in memory.
            device: auto, cpu or cuda.
            random_state: the seed of an experiment; None draws one, as everywhere in scikit-learn.
            verbose: whether to show a progress bar.
        """
        self.epsilon = epsilon
        self.delta = delta
        self.algorithm = algorithm
        self.model = model
        self.share = share
        self.bounds = bounds
        self.privacy = privacy
        self.local = local
        self.group_column = group_column
        self.ledger = ledger
        self.mode = mode
        self.folder = folder
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def _fit(self, X: Any, groups: Any, targets: Callable[[Any], dict[str, Any]]) -> Self:
        """Train one model for each group. `targets` checks X and gives the checked rows, `y` and
        the other arguments of `FederatedData.from_arrays`."""
        X, groups = without_column(X, self.group_column, groups)
        columns = targets(X)
        alone = groups is None
        privacy = self._privacy()
        if alone:
            if self.mode == "production" or self.ledger is not None:
                raise PmtlError(
                    "Production and a ledger need to know the client of each row: pass groups=… to "
                    "fit."
                )
            warnings.warn(PmtlWarning(_WITHOUT_GROUPS), stacklevel=3)
            groups = np.full(columns["x"].shape[0], ALONE)
            PrivacyRequest(**privacy).resolve(1)  # Wrong settings are refused here, too.
            privacy = {"epsilon": math.inf}  # One client needs no protection from others.
        check_consistent_length(columns["x"], groups := _column(groups))
        names = getattr(self, "feature_names_in_", None)
        data = FederatedData.from_arrays(
            client=encode(groups, "group"),
            feature_names=None if names is None else [str(name) for name in names],
            bounds=self.bounds,
            validation=0.0,
            test=0.0,
            **columns,
        )
        announced = not alone and warn_of_search(data.m)
        self.run_ = train(
            data,
            model=self.model,
            algorithm=self.algorithm,
            privacy=privacy,
            local=_fields(self.local, "local"),
            share=self.share,
            mode=self.mode,
            ledger=self.ledger,
            seed=self._seed(),
            device=self.device,
            evaluate_every=0,
            out=None if self.folder is None else Path(self.folder) / f"run-{uuid.uuid4().hex[:12]}",
            progress=bool(self.verbose),
            warn=(lambda sentence: None) if alone else _warn,  # _WITHOUT_GROUPS was enough.
        )
        self.privacy_ = self.run_.privacy
        self.groups_ = None if alone else np.array(self.run_.clients)
        if not alone:
            note_fit(self.run_, announced)
        return self

    def _privacy(self) -> dict[str, Any]:
        more = _fields(self.privacy, "privacy") or {}
        known = {} if "noise" in more else {"epsilon": self.epsilon}
        twice = sorted({"epsilon", "delta"} & set(more))
        if twice:
            raise PmtlError(
                f"{twice[0]} is a parameter of the estimator: take it out of privacy={{…}}."
            )
        return {**known, "delta": self.delta, **more}

    def _seed(self) -> int | None:
        if self.mode == "production":
            if self.random_state is not None:
                raise PmtlError(
                    "Production takes its randomness from the operating system: leave "
                    "random_state out, or use mode='experiment'."
                )
            return None
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _answers(
        self, X: Any, groups: Any, name: str, kind: Callable[[Task], Callable[[Tensor], Tensor]]
    ) -> NDArray[Any]:
        """Rows of answers of a kind: of each group's own model, and of the shared model for other
        groups."""
        check_is_fitted(self)

        def answer(run: Run, client: str | None, x: Any) -> NDArray[Any]:
            return run._models.answers(client, x, kind(run.facts.task), exact=True)

        X, groups = without_column(X, self.group_column, groups)
        X = check_rows(self, X, dtype=FLOATS, reset=False)
        if self.groups_ is None:
            if groups is not None:
                raise PmtlError(
                    "This estimator was fitted without groups and has one model only: leave groups "
                    f"out of {name}, or pass groups=… to fit as well."
                )
            return answer(self.run_, ALONE, X)
        if groups is None:
            warnings.warn(PmtlWarning(_SHARED_ANSWERS.format(name)), stacklevel=4)
            self._refuse_new()
            return answer(self.run_, None, X)
        check_consistent_length(X, groups := _column(groups))
        codes, names = encode(groups, "group")
        known = set(self.run_.clients)
        if not known.issuperset(names):
            self._refuse_new()
        order = np.argsort(codes, kind="stable")
        ends = np.cumsum(np.bincount(codes, minlength=len(names)))
        answers: NDArray[Any] | None = None
        for client, rows in zip(names, np.split(order, ends[:-1]), strict=True):
            part = answer(self.run_, client if client in known else None, X[rows])
            if answers is None:
                answers = np.empty((X.shape[0], *part.shape[1:]), dtype=part.dtype)
            answers[rows] = part
        assert answers is not None  # There is at least one row.
        return answers

    def _refuse_new(self) -> None:
        """Refuse rows of clients that `fit` did not see, if there is no shared model for them."""
        facts = self.run_.facts
        if facts.shares and not facts.shows_model:
            raise PmtlError(
                "Each client of this fit has its own unit of the target, so there is no "
                "shared model for other clients: pass groups=… with clients that fit saw, or fit "
                'with public bounds of the target (bounds={"target": (low, high)}).'
            )

    def _refuse_score(self) -> None:
        check_is_fitted(self)
        if self.run_.facts.production:
            raise PmtlError(
                "Exact metrics are private, and this is a production run: score withholds them."
            )

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        if isinstance(state.get("run_"), Run):
            state["run_"] = save(state["run_"])
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        saved = state.get("run_")
        if isinstance(saved, (SavedPath, SavedArrays)):
            model = state["model"]
            run = saved.restored(None if isinstance(model, str) else model)
            state = {**state, "run_": run}
        super().__setstate__(state)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


#: The types in which features are kept; others become the first.
FLOATS = [np.float64, np.float32]


def _column(groups: Any) -> Any:
    """A column of groups of any library as an array."""
    if isinstance(groups, (str, bytes)):
        raise PmtlError(
            f"groups must have the client of each row, but {groups!r} was given: to name a column "
            "of X, make the estimator with group_column=…."
        )
    return groups.to_numpy() if hasattr(groups, "to_numpy") else np.asarray(groups)


def _fields(given: Any, name: str) -> dict[str, Any] | None:
    """A parameter that is a mapping of settings."""
    if given is not None and not isinstance(given, Mapping):
        raise PmtlError(f"{name} must be a mapping of settings, but {given!r} was given.")
    return None if given is None else dict(given)


def _warn(sentence: str) -> None:
    if not any(words in sentence for words in _EXPECTED):
        warnings.warn(PmtlWarning(sentence), stacklevel=7)
