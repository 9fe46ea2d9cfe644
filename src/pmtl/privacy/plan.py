"""The privacy plan: everything ε depends on, in one object that cannot change.

The mechanism: draw a cohort, clip every upload to norm γ, add them up, divide by the *constant* q,
add N(0, σ²) to every coordinate of that average, publish; T times. `PrivacyPlan` holds those
numbers, δ and m. The sampler, the gate and the accountant are all derived from it, so a run cannot
draw its cohorts in one way and be charged for another.

The noise is stated as its standard deviation on the **average** (the paper's σ). ε depends on its
ratio to what one client can add to that average, the noise multiplier z = σq/γ:

>>> plan = PrivacyPlan(clients=205, cohort=100, sampling="poisson", clip_norm=0.5,
...                    noise_std=0.05, rounds=100, delta=1 / 2050)
>>> plan.noise_multiplier, plan.adjacency, plan.private
(10.0, 'replace-one', True)

`PrivacyRequest` is what a person asks for (an ε or a noise, and defaults for the rest);
`resolve` turns it into a plan once the number of clients is known.

This module needs only NumPy: a machine that trains need not be able to compute ε.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmtl.errors import PmtlError
from pmtl.privacy.sampling import Sampler, SamplingScheme, default_sampling, find_scheme
from pmtl.spec import settle_numbers, unknown

ADJACENCY = "replace-one"
DEFAULT_EPSILON = 2.0
DEFAULT_CLIP = 0.5
"""γ unless given; every command has the same."""

#: The largest counts, the range of ε and the least δ. Beyond these float64 has too few digits.
MOST = {"clients": 10**12, "cohort": 10**12, "rounds": 10**9}
LEAST_EPSILON, MOST_EPSILON = 1e-12, 1e12
LEAST_DELTA = 1e-300


def default_delta(clients: int) -> float:
    """1/(10m). δ is the chance that the guarantee says nothing at all, and at the paper's 1/m a
    mechanism that publishes one random client's data outright would still satisfy it."""
    return 1 / (10 * _count(clients, "clients"))


@dataclass(frozen=True)
class PrivacyPlan:
    """What is run and what is charged.

    Args:
        clients: m, how many clients the federation has.
        cohort: q, the size of a cohort, or its expected size (poisson); always the divisor.
        sampling: how a cohort is drawn: `full`, `poisson`, `fixed`, or the name of a scheme of
            your own (`privacy/sampling.py`).
        clip_norm: γ, the largest L2 norm of one client's upload; inf means no clipping, and then ε
            is inf.
        noise_std: σ, the noise's standard deviation on the average over q.
        rounds: T, how often a noisy average is published.
        delta: δ, the probability with which the guarantee may fail.
    """

    clients: int
    cohort: int
    sampling: str
    clip_norm: float
    noise_std: float
    rounds: int
    delta: float

    def __post_init__(self) -> None:
        checked = {
            "clients": _count(self.clients, "clients"),
            "cohort": _count(self.cohort, "cohort"),
            "rounds": _count(self.rounds, "rounds"),
            "clip_norm": _number(self.clip_norm, "clip norm"),
            "noise_std": _number(self.noise_std, "noise"),
            "delta": _number(self.delta, "delta"),
        }
        for name, value in checked.items():
            # NumPy's scalars become Python's, so that a plan can always be written as JSON.
            object.__setattr__(self, name, value)
        if self.cohort > self.clients:
            raise PmtlError(
                f"A cohort of {self.cohort} cannot be drawn from {self.clients} clients: "
                f"choose a cohort between 1 and {self.clients}."
            )
        self.scheme.check(self.clients, self.cohort)
        if not self.clip_norm > 0:
            raise PmtlError(
                f"The clip norm must be greater than 0, but {self.clip_norm:g} was given: "
                "choose a positive number, or inf for no clipping (and no privacy)."
            )
        if not 0 <= self.noise_std < math.inf:
            raise PmtlError(
                f"The noise must be a finite standard deviation of at least 0, but "
                f"{self.noise_std:g} was given: choose 0 (no privacy) or more."
            )
        if self.noise_std > 0 and not math.isfinite(self.noise_multiplier):
            raise PmtlError(
                f"Noise of {self.noise_std:g} on an average of uploads of norm "
                f"{self.clip_norm:g} is a ratio that is too large to be computed: choose a clip "
                "norm nearer to 1, or less noise."
            )
        if 0 < self.delta < LEAST_DELTA:
            raise PmtlError(
                f"Delta is {self.delta:g}, and below {LEAST_DELTA:g} there are not enough digits "
                f"to compute with: the default for {self.clients} clients is "
                f"{default_delta(self.clients):.3g}."
            )
        if not 0 < self.delta < 1:
            raise PmtlError(
                f"Delta is a probability strictly between 0 and 1, but {self.delta:g} was given: "
                f"the default for {self.clients} clients is {default_delta(self.clients):.3g}."
            )

    @property
    def adjacency(self) -> str:
        """Neighbouring federations differ in one client's whole data set, replaced by any other."""
        return ADJACENCY

    @property
    def scheme(self) -> SamplingScheme:
        """How cohorts are drawn, and what that costs."""
        return find_scheme(self.sampling)

    @property
    def rate(self) -> float:
        """p = q/m: how likely a given client is to be in a given round."""
        return self.cohort / self.clients

    @property
    def noise_multiplier(self) -> float:
        """z = σq/γ: the noise on the sum, in units of one client's largest upload."""
        return self.noise_std * (self.cohort / self.clip_norm)

    @property
    def private(self) -> bool:
        """Whether ε is finite: that takes both a clip and noise."""
        return self.noise_multiplier > 0

    def sampler(self, seed: int | None, client_keys: NDArray[np.uint64]) -> Sampler:
        """The cohorts this plan is charged for."""
        return Sampler(self, seed, client_keys)

    def epsilon(self) -> float:
        """The ε this plan guarantees at its δ (needs scipy, and dp-accounting if q < m)."""
        from pmtl.privacy.accounting import accountant

        return accountant.epsilon(self)

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON can hold it (infinity, which JSON lacks, as the text "inf")."""
        values: dict[str, Any] = asdict(self) | {"adjacency": self.adjacency}
        if math.isinf(self.clip_norm):
            values["clip_norm"] = "inf"
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PrivacyPlan:
        """The plan that `to_dict` wrote, checked again."""
        values = dict(values)
        adjacency = values.pop("adjacency", ADJACENCY)
        if adjacency != ADJACENCY:
            raise PmtlError(
                f"The privacy plan was written for the adjacency {adjacency!r}, but only "
                f"{ADJACENCY!r} is accounted for here: make the plan anew."
            )
        return cls(**fields_of(cls, values, "privacy plan"))


@dataclass(frozen=True)
class PrivacyRequest:
    """What a person asks for, in the words of the command line.

    Args:
        epsilon: the ε to keep; 2 unless it or the noise is given.
        noise: σ, the noise's standard deviation on the average; instead of `epsilon`.
        delta: δ; 1/(10m) unless given.
        clip: γ, the largest L2 norm of an upload; inf for no clipping.
        sampling: as in `PrivacyPlan`; full if the cohort is everybody, else poisson.
        cohort: q; everybody unless given.
        rounds: T.
        hardened: whether noise is drawn exactly, on a grid (`privacy/grid.py`); by default in
            production only.
        metrics: the share of the budget for average metrics (`accounting/validation.py`); by
            default a tenth in production, otherwise none.
        loss_bound: the largest loss that a client's metrics report; larger ones count as this.
    """

    epsilon: float | None = None
    noise: float | None = None
    delta: float | None = None
    clip: float = DEFAULT_CLIP
    sampling: str | None = None
    cohort: int | None = None
    rounds: int = 20
    hardened: bool | None = None
    metrics: float | None = None
    loss_bound: float | None = None

    def __post_init__(self) -> None:
        settle_numbers(self)
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float) and math.isnan(value):
                raise PmtlError(f"{field.name.capitalize()} must be a number, but nan was given.")

    @classmethod
    def of(cls, plan: PrivacyPlan) -> PrivacyRequest:
        """A request for exactly this plan."""
        return cls(
            noise=plan.noise_std,
            delta=plan.delta,
            clip=plan.clip_norm,
            sampling=plan.sampling,
            cohort=plan.cohort,
            rounds=plan.rounds,
        )

    def resolve(self, clients: int) -> PrivacyPlan:
        """The plan for a federation of `clients`: an ε becomes the least noise that keeps it."""
        if self.epsilon is not None and self.noise is not None:
            raise PmtlError(
                f"Both epsilon ({self.epsilon:g}) and noise ({self.noise:g}) were given, and each "
                "decides the other: give one of them."
            )
        clients = _count(clients, "clients")
        cohort = clients if self.cohort is None else self.cohort
        # Everything else is checked, on a plan without noise, before a calibration that may take
        # a second; the plan with noise is checked again when it is made.
        plan = PrivacyPlan(
            clients=clients,
            cohort=cohort,
            sampling=self.sampling or default_sampling(clients, cohort),
            clip_norm=self.clip,
            noise_std=0.0 if self.noise is None else self.noise,
            rounds=self.rounds,
            delta=default_delta(clients) if self.delta is None else self.delta,
        )
        if self.noise is not None or math.isinf(self.target):
            return plan
        from pmtl.privacy.accounting import accountant

        return replace(plan, noise_std=accountant.noise_for(plan, self.target))

    @property
    def target(self) -> float:
        """The ε to keep where no noise was given."""
        return check_epsilon(DEFAULT_EPSILON if self.epsilon is None else self.epsilon)


def fields_of(kind: type[Any], values: Mapping[str, Any], what: str) -> dict[str, Any]:
    """What `to_dict` wrote of a plan or an event, if it is exactly the fields of its class."""
    known = [field.name for field in fields(kind)]
    for name in values:
        if name not in known:
            raise unknown(f"field of a {what} named", str(name), known)
    missing = [name for name in known if name not in values]
    if missing:
        raise PmtlError(f"A {what} lacks {', '.join(missing)}: write it again with to_dict.")
    return {**values, "clip_norm": math.inf} if values["clip_norm"] == "inf" else dict(values)


def check_epsilon(epsilon: float) -> float:
    """A target ε that can be aimed at: positive, or inf for no privacy."""
    epsilon = _number(epsilon, "epsilon")
    if not epsilon > 0:
        raise PmtlError(
            f"Epsilon must be greater than 0, but {epsilon:g} was given: choose a positive "
            "number (2 is the default), or inf for no privacy."
        )
    if not LEAST_EPSILON <= epsilon <= MOST_EPSILON and math.isfinite(epsilon):
        raise PmtlError(
            f"Epsilon must lie between {LEAST_EPSILON:g} and {MOST_EPSILON:g}, or be inf for no "
            f"privacy, but {epsilon:g} was given: 2 is the default."
        )
    return epsilon


def _count(value: object, name: str) -> int:
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral):
        raise PmtlError(f"The number of {name} must be a whole number, but {value!r} was given.")
    if value < 1:
        raise PmtlError(f"The number of {name} must be at least 1, but {value} was given.")
    if int(value) > MOST[name]:
        raise PmtlError(
            f"The number of {name} must be at most {MOST[name]:,}, but {value!r} was given."
        )
    return int(value)


def _number(value: object, name: str) -> float:
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise PmtlError(f"The {name} must be a number, but {value!r} was given.")
    return float(value)
