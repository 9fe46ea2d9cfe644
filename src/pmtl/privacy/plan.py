"""The privacy plan: everything ε depends on, in one immutable object.

The mechanism, T times: draw a cohort, clip every upload to norm γ, sum, divide by the *constant* q,
add N(0, σ²) to every coordinate of that average, publish. The sampler, the gate and the accountant
all use the same `PrivacyPlan`, so what is run is what is charged. σ is the standard deviation of
the noise on the **average**; ε depends on the noise multiplier z = σq/γ:

>>> plan = PrivacyPlan(clients=205, cohort=100, sampling="poisson", clip_norm=0.5,
...                    noise_std=0.05, rounds=100, delta=1 / 2050)
>>> plan.noise_multiplier, plan.adjacency, plan.private
(10.0, 'replace-one', True)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pmtl.errors import PmtlError, how_many
from pmtl.privacy.sampler import Sampler
from pmtl.privacy.sampling import SamplingScheme
from pmtl.privacy.schemes import Recorded, find_scheme, is_library_scheme
from pmtl.spec import unknown

ADJACENCY = "replace-one"

#: The largest counts, the range of ε and the least δ. Outside these, float64 has too few digits.
MOST = {"clients": 10**12, "cohort": 10**12, "rounds": 10**9}
LEAST_EPSILON, MOST_EPSILON = 1e-12, 1e12
LEAST_DELTA = 1e-300


def default_delta(clients: int) -> float:
    """1/(10m). The paper's δ = 1/m would allow publishing the data of one random client."""
    return 1 / (10 * count_of(clients, "clients"))


@dataclass(frozen=True)
class PrivacyPlan:
    """What is run and what is charged.

    In the methods:
        - seed: of an experiment; None in production.
        - client_keys: `streams.name_keys` of the clients' names.
        - values: what `to_dict` returned.
    """

    clients: int  #: m, the number of clients of the federation
    cohort: int  #: q, the size of a cohort, or its expected size (poisson); always the divisor
    sampling: str  #: the name of a sampling scheme (`privacy/schemes.py`)
    clip_norm: float  #: γ, the largest L2 norm of an upload; inf is no clipping, and ε is inf
    noise_std: float  #: σ, the standard deviation of the noise on the average over q
    rounds: int  #: T, how often a noisy average is published
    delta: float  #: δ, the probability with which the guarantee may fail
    #: In a plan that was read or copied, with a scheme of the user's own: the scheme's chance when
    #: the plan was made, which is what it costs. Its code is imported only to draw (`with_code`).
    chance: float | None = field(default=None, compare=False)
    words: str | None = field(default=None, compare=False)  #: with it: how cohorts were drawn
    #: With a chance: the scheme, m and q for which it was recorded, so that it is not kept for
    #: others (`dataclasses.replace`). It is set by the plan itself.
    recorded_for: tuple[str, int, int] | None = field(default=None, compare=False, repr=False)
    #: Neighbouring federations differ in the whole data set of one client.
    adjacency: ClassVar[str] = ADJACENCY

    def __post_init__(self) -> None:
        # NumPy scalars become Python numbers, so that a plan can always be written as JSON.
        for name in ("clients", "cohort", "rounds"):
            object.__setattr__(self, name, count_of(getattr(self, name), name))
        for name, words in (("clip_norm", "clip norm"), ("noise_std", "noise"), ("delta", "delta")):
            object.__setattr__(self, name, number_of(getattr(self, name), words))
        if self.cohort > self.clients:
            raise PmtlError(
                f"A cohort of {self.cohort} cannot be drawn from "
                f"{how_many(self.clients, 'client')}: choose a cohort between 1 and {self.clients}."
            )
        if not isinstance(self.sampling, str) or is_library_scheme(self.sampling):
            object.__setattr__(self, "chance", None)
            object.__setattr__(self, "words", None)
        self._check_record()
        if not isinstance(self.words, str | None):
            raise PmtlError(f"The words of a privacy plan are text, and not {self.words!r}.")
        self.scheme.check(self.clients, self.cohort)
        if self.chance is not None:
            self.scheme.checked_chance(self.rate)
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
                f"The ratio of a noise of {self.noise_std:g} to a clip norm of "
                f"{self.clip_norm:g} is too large to be computed: choose a clip norm nearer to 1, "
                "or less noise."
            )
        if 0 < self.delta < LEAST_DELTA:
            raise PmtlError(
                f"Delta is {self.delta:g}, but below {LEAST_DELTA:g} there are not enough digits "
                "to compute with: 1/(10 · clients) is the default."
            )
        if not 0 < self.delta < 1:
            raise PmtlError(
                f"Delta is a probability strictly between 0 and 1, but {self.delta:g} was given: "
                "1/(10 · clients) is the default."
            )

    def _check_record(self) -> None:
        """Refuse a chance that was recorded for another scheme, or for other sizes."""
        now = None if self.chance is None else (self.sampling, self.clients, self.cohort)
        if now is not None and self.recorded_for not in (None, now):
            raise PmtlError(
                f"The chance of the sampling scheme {self.sampling!r} is not known for a cohort of "
                f"{self.cohort} of {self.clients} clients, because this plan was read or copied "
                "with other sizes or another scheme: change plan.with_code() instead."
            )
        object.__setattr__(self, "recorded_for", now)

    @property
    def scheme(self) -> SamplingScheme:
        """How cohorts are drawn, and what that costs."""
        if self.chance is None:
            return find_scheme(self.sampling)
        return Recorded(self.chance, self.words)

    def with_code(self) -> PrivacyPlan:
        """The plan with its scheme's code, which can draw; refused if the chance has changed."""
        if self.chance is None:
            return self
        try:
            plan = replace(self, chance=None, words=None)
            chance = plan.scheme.checked_chance(plan.rate)
        except PmtlError as error:
            raise self._cannot_draw(f"cannot be used: {error}") from error
        if chance != self.chance:
            raise self._cannot_draw(f"has changed, and its chance is {chance} today.")
        return plan

    def _cannot_draw(self, why: str) -> PmtlError:
        return PmtlError(
            f"The sampling scheme {self.sampling!r} {why} A client's chance to take part in a "
            f"round was {self.chance}. To draw, use the scheme's former code."
        )

    @property
    def own_chance(self) -> float | None:
        """The chance of a user's own scheme, which is what it costs; None for the library's."""
        return None if is_library_scheme(self.sampling) else self.scheme.checked_chance(self.rate)

    @property
    def rate(self) -> float:
        """p = q/m, the probability that a given client is in a given round."""
        return self.cohort / self.clients

    @property
    def noise_multiplier(self) -> float:
        """z = σq/γ, the noise on the sum in units of the largest upload."""
        return self.noise_std * (self.cohort / self.clip_norm)

    @property
    def private(self) -> bool:
        """Whether ε is finite, which needs both clipping and noise."""
        return self.noise_multiplier > 0

    def sampler(self, seed: int | None, client_keys: NDArray[np.uint64]) -> Sampler:
        """The cohorts this plan is charged for."""
        return Sampler(self.with_code(), seed, client_keys)

    def epsilon(self) -> float:
        """The ε this plan guarantees at its δ (needs scipy, and dp-accounting if q < m)."""
        from pmtl.privacy.accounting import accountant

        return accountant.epsilon(self)

    def to_dict(self) -> dict[str, Any]:
        """The plan for JSON; an infinite clip norm is the text "inf"."""
        values: dict[str, Any] = asdict(self) | {"adjacency": self.adjacency}
        if math.isinf(self.clip_norm):
            values["clip_norm"] = "inf"
        del values["chance"], values["words"], values["recorded_for"]
        if (chance := self.own_chance) is not None:
            values["chance"] = chance
            values["words"] = self.scheme.in_words(self, {})
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PrivacyPlan:
        """The plan that `to_dict` wrote, checked again. The code of a user's own scheme is not
        imported, because reading a file must not run code: the plan keeps the written chance."""
        values = dict(values)
        adjacency = values.pop("adjacency", ADJACENCY)
        if adjacency != ADJACENCY:
            raise PmtlError(
                f"The privacy plan was written for the adjacency {adjacency!r}, but pmtl accounts "
                f"only for {ADJACENCY!r}: make a new plan."
            )
        values = {"chance": None, "words": None, "recorded_for": None, **values}
        refuse_unknown_cost(values, "privacy plan")
        return cls(**fields_of(cls, values, "privacy plan"))

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is read like a file: it keeps its cost, even if the scheme's code changes."""
        return PrivacyPlan.from_dict, (self.to_dict(),)


def refuse_unknown_cost(values: Mapping[str, Any], what: str) -> None:
    """Refuse what a file says of a sampling scheme that is not the library's, without its chance:
    the code would have to be imported to know the cost."""
    sampling = values.get("sampling")
    own = isinstance(sampling, str) and not is_library_scheme(sampling)
    if own and values["chance"] is None:
        raise PmtlError(
            f"The {what} names the sampling scheme {sampling!r}, which is not one of the "
            "library's, without its chance, from which its cost follows: make a new one."
        )


def fields_of(kind: type[Any], values: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The values that `to_dict` wrote, if they are exactly the fields of `kind`."""
    known = [field.name for field in fields(kind)]
    for name in values:
        if name not in known:
            raise unknown(f"field of a {what} named", str(name), known)
    missing = [name for name in known if name not in values]
    if missing:
        raise PmtlError(f"A {what} lacks {', '.join(missing)}: write it again with to_dict.")
    return {**values, "clip_norm": math.inf} if values["clip_norm"] == "inf" else dict(values)


def check_epsilon(epsilon: float) -> float:
    """The target ε, if it is in the allowed range; inf is no privacy."""
    epsilon = number_of(epsilon, "epsilon")
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


def count_of(value: object, name: str) -> int:
    """A whole number of at least 1, for the `name` of what is counted."""
    what = "The size of the cohort" if name == "cohort" else f"The number of {name}"
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral):
        raise PmtlError(f"{what} must be a whole number, but {value!r} was given.")
    if value < 1:
        raise PmtlError(f"{what} must be at least 1, but {value} was given.")
    if int(value) > MOST[name]:
        raise PmtlError(f"{what} must be at most {MOST[name]:,}, but {value!r} was given.")
    return int(value)


def number_of(value: object, name: str) -> float:
    """A number, for the `name` of a setting."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise PmtlError(f"The {name} must be a number, but {value!r} was given.")
    try:
        return float(value)
    except OverflowError as error:  # A whole number with more than 308 digits.
        raise PmtlError(f"The {name} is a number that is too large.") from error
