"""One release as data: everything that its cost depends on; and counted releases.

A `PrivacyPlan` describes a whole run, a `GaussianEvent` one release. `composition` adds events up,
the `ledger` stores them. Unknown fields, mechanisms and sampling schemes are refused, because their
cost is not known.

>>> event = GaussianEvent("poisson", clients=205, cohort=100, clip_norm=0.5, noise_std=0.05)
>>> event.noise_multiplier, event == GaussianEvent.from_dict(event.to_dict())
(10.0, True)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from pmtl.errors import PmtlError
from pmtl.privacy.plan import ADJACENCY, PrivacyPlan, fields_of, refuse_unknown_cost
from pmtl.privacy.schemes import is_library_scheme

MECHANISM = "gaussian"
TRAINING = "training"


@dataclass(frozen=True)
class GaussianEvent:
    """A clipped sum over a cohort, divided by the constant q, with Gaussian noise; published once.

    The fields mean what they mean in a `PrivacyPlan`, and are checked by making one.
    """

    sampling: str
    clients: int
    cohort: int
    clip_norm: float
    noise_std: float
    kind: str = TRAINING
    """What was published ("training", "validation", …). It does not change the cost."""
    chance: float | None = None
    """With a scheme of the user's own: its largest chance that a client takes part, which is what
    it costs. It is kept here, so that a ledger is read without the user's code."""

    def __post_init__(self) -> None:
        plan = self._plan()
        if self.chance is None:
            object.__setattr__(self, "chance", plan.own_chance)
        elif (
            is_library_scheme(self.sampling)
            or not isinstance(self.chance, float)
            or not plan.rate <= self.chance <= 1
        ):
            raise PmtlError(
                f"A privacy event with the sampling scheme {self.sampling!r} cannot have a chance "
                f"of {self.chance!r}."
            )
        for name in ("clients", "cohort", "clip_norm", "noise_std"):
            # Python numbers, so that 1 and np.float64(1.0) are the same event, also in JSON.
            object.__setattr__(self, name, getattr(plan, name))
        if not isinstance(self.kind, str) or not self.kind or not self.kind.isprintable():
            raise PmtlError(
                f"The kind of a privacy event must be a word such as 'training', but "
                f"{self.kind!r} was given."
            )

    @classmethod
    def of(cls, plan: PrivacyPlan, kind: str = TRAINING) -> GaussianEvent:
        """One round of a plan."""
        return cls(
            sampling=plan.sampling,
            clients=plan.clients,
            cohort=plan.cohort,
            clip_norm=plan.clip_norm,
            noise_std=plan.noise_std,
            kind=kind,
            chance=plan.own_chance,
        )

    @property
    def cost(self) -> tuple[str, float]:
        """The scheme of the library, and its rate, as which it is charged."""
        plan = self._plan()
        return plan.scheme.charged_as(plan.rate)

    @property
    def rate(self) -> float:
        """p = q/m, the probability that a given client takes part."""
        return self._plan().rate

    @property
    def noise_multiplier(self) -> float:
        """z = σq/γ; 0 without noise or without clipping, and then ε is infinite."""
        return self._plan().noise_multiplier

    def to_dict(self) -> dict[str, Any]:
        """The event for JSON; an infinite clip norm is the text "inf"."""
        values = asdict(self) | {"mechanism": MECHANISM, "adjacency": ADJACENCY}
        values["clip_norm"] = self._plan().to_dict()["clip_norm"]
        if self.chance is None:
            del values["chance"]
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> GaussianEvent:
        """The event that `to_dict` wrote; anything else is refused. The code of a user's own
        sampling scheme is not imported, because reading a file must not run code: its chance has to
        be in the file."""
        if not isinstance(values, Mapping):
            raise PmtlError(f"A privacy event is a table of fields, but {values!r} was given.")
        values = dict(values)
        for name, only in (("mechanism", MECHANISM), ("adjacency", ADJACENCY)):
            given = values.pop(name, None)
            if given != only:
                raise PmtlError(
                    f"A privacy event has the {name} {given!r}, but this version of pmtl can "
                    f"only account for {only!r}: use the version that wrote it."
                )
        values = {"chance": None, **values}
        refuse_unknown_cost(values, "privacy event")
        return cls(**fields_of(cls, values, "privacy event"))

    def _plan(self) -> PrivacyPlan:
        """A plan of one round (any δ), which makes all the checks."""
        return PrivacyPlan(
            clients=self.clients,
            cohort=self.cohort,
            sampling=self.sampling,
            clip_norm=self.clip_norm,
            noise_std=self.noise_std,
            rounds=1,
            delta=0.5,
            chance=self.chance,
        )


#: Releases, and how often each was made.
Events = Counter[GaussianEvent]


class Charge(NamedTuple):
    """A charge of a run: the kind of release, the round, and the charge's hash."""

    kind: str
    round: int
    hash: str


class Largest(NamedTuple):
    """The largest account: its ε, and how many clients have it."""

    epsilon: float
    clients: int

    def larger(self, epsilon: float, clients: int) -> Largest:
        """The larger of this account and one of `clients` other clients; equal ones are merged."""
        if epsilon == self.epsilon:
            return Largest(epsilon, self.clients + clients)
        return max(self, Largest(epsilon, clients))


def total(parts: Iterable[Mapping[GaussianEvent, int]]) -> Events:
    summed: Events = Counter()
    for part in parts:
        summed.update(part)
    return summed


def count_of_kind(events: Mapping[GaussianEvent, int], kind: str) -> int:
    """How many releases of this kind there were."""
    return sum(count for event, count in events.items() if event.kind == kind)


def to_list(events: Mapping[GaussianEvent, int]) -> list[dict[str, Any]]:
    """Counted events for JSON."""
    return [event.to_dict() | {"count": count} for event, count in events.items() if count]


def from_list(values: Any) -> Events:
    """The counted events that `to_list` wrote; anything else is an error."""
    events: Events = Counter()
    for each in values:
        event = dict(each)
        count = event.pop("count")
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f"{count!r} releases")
        events[GaussianEvent.from_dict(event)] += count
    return events
