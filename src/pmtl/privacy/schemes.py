"""The library's sampling schemes, one class for each, and how a scheme is found by its name.

| name | cohort | what colluding clients know about another client |
|---|---|---|
| `full` | all clients | that it took part; sampling hides nothing |
| `poisson` | each client with probability q/m, independently | nothing |
| `fixed` | exactly q clients, as in the paper | whether it took part: they count their own draws |

An unknown name is refused; a plan that was read keeps the cost that its file states, and draws
nothing if the name is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from pmtl import plugins
from pmtl.errors import PmtlError, kind_of
from pmtl.privacy.sampling import ALL_OTHERS, FIXED, FULL, POISSON, SamplingScheme

if TYPE_CHECKING:
    from pmtl.privacy.plan import PrivacyPlan
    from pmtl.privacy.sampler import Sampler


class Full(SamplingScheme):
    """All clients take part in every round."""

    takes_everybody = True
    in_help = "everybody"
    accountant = "exact Gaussian (μ-GDP), replace-one"
    holds_against = ALL_OTHERS

    def check(self, clients: int, cohort: int) -> None:
        if cohort != clients:
            raise PmtlError(
                f"Full participation means a cohort of all {clients} clients, but {cohort} was "
                "given: leave the cohort out, or choose sampling 'poisson'."
            )

    def draw(self, sampler: Sampler, round: int) -> NDArray[np.int64]:
        return np.arange(sampler.plan.clients, dtype=np.int64)

    def chance(self, rate: float) -> float:
        return 1.0

    def in_words(self, plan: PrivacyPlan, also: Mapping[str, Any]) -> str:
        return "all clients took part in every round"


class Poisson(SamplingScheme):
    """Each client takes part by a coin of its own. The size of the cohort varies and may be zero.
    A coin says nothing about other coins, so the amplified guarantee holds against colluders."""

    size_varies = True
    coins_are_secret = True
    in_help = "a coin per client"
    accountant = "PLD, Poisson-subsampled Gaussian, replace-one"
    holds_against = f"{ALL_OTHERS}, as long as the client's own coins stay secret"

    def draw(self, sampler: Sampler, round: int) -> NDArray[np.int64]:
        # A coin is the first 53 bits of a ticket as a number below 1; below p is in.
        limit = np.uint64(math.ceil(sampler.plan.rate * 2**53))
        coins = sampler.tickets(round) >> np.uint64(11)
        return np.flatnonzero(coins < limit).astype(np.int64)

    def chance(self, rate: float) -> float:
        return rate

    def empty(self, plan: PrivacyPlan) -> float:
        return math.exp(plan.clients * math.log1p(-plan.rate)) if plan.rate < 1 else 0.0

    def in_words(self, plan: PrivacyPlan, also: Mapping[str, Any]) -> str:
        rate = f"{plan.rate:.4g}"
        return f"each client took part in a round with probability {rate}, by a coin of its own"


class Fixed(SamplingScheme):
    """Exactly q clients, as in the paper. The other m − 1 clients together can count how many of
    them were drawn, so they know whether the last client was."""

    in_help = "exactly q, as in the paper"
    holds_against = f"{ALL_OTHERS} and can tell from their own draws when this client took part"
    labels: Mapping[str, str] = {
        "outsiders": "fixed size, against those who see only the models",
        "colluders": "fixed size, against clients who collude",
    }

    def draw(self, sampler: Sampler, round: int) -> NDArray[np.int64]:
        # The q lowest tickets; equal tickets (probability 2^−64) are ordered by index.
        order = np.argsort(sampler.tickets(round), kind="stable")
        return np.sort(order[: sampler.plan.cohort]).astype(np.int64)

    def chance(self, rate: float) -> float:
        return rate

    def comparisons(self, plan: PrivacyPlan) -> dict[str, float]:
        """`outsiders` see only the models; `colluders` know who was drawn."""
        from pmtl.privacy.accounting import poisson

        if not plan.private:
            return {"outsiders": math.inf, "colluders": math.inf}
        costs = (plan.noise_multiplier, plan.rate, plan.rounds, plan.delta)
        outsiders = poisson.outsiders_epsilon(*costs)
        return {"outsiders": outsiders, "colluders": self.epsilon(*costs)}

    def in_words(self, plan: PrivacyPlan, also: Mapping[str, Any]) -> str:
        words = (
            f"{plan.cohort} of {plan.clients} clients were drawn for each round; colluding clients "
            "can count who was drawn, so the ε above assumes that they know it"
        )
        if "outsiders" in also:
            outsiders = also["outsiders"]
            words += f" (for outsiders, who see only the models, ε would be {outsiders:.4g})"
        return words


class Recorded(SamplingScheme):
    """A scheme of the user's own in a plan that was read. It has a cost, and cannot draw."""

    def __init__(self, chance: float, words: str | None) -> None:
        self._chance, self._words = chance, words

    def chance(self, rate: float) -> float:
        return self._chance

    def in_words(self, plan: PrivacyPlan, also: Mapping[str, Any]) -> str:
        return self._words or super().in_words(plan, also)


SCHEMES: dict[str, type[SamplingScheme]] = {FULL: Full, POISSON: Poisson, FIXED: Fixed}


def is_library_scheme(name: object) -> TypeGuard[str]:
    """Whether this names a scheme of the library. All others are the user's own: a plan or an event
    with one keeps its chance, so that it can be read without the user's code."""
    return isinstance(name, str) and name in SCHEMES


def default_sampling(clients: int, cohort: int) -> str:
    """Full if all clients take part, else poisson, whose guarantee also holds against colluders."""
    return FULL if cohort == clients else POISSON


def find_scheme(name: str) -> SamplingScheme:
    """The scheme with this name: one of `SCHEMES`, an entry point of the group `pmtl.sampling`, or
    `package.module:Name`; otherwise an error."""
    if not isinstance(name, str):
        raise PmtlError(
            f"A sampling scheme is named by a text ({', '.join(SCHEMES)} or package.module:Name), "
            f"but {kind_of(name)} was given."
        )
    return _found(name)


@lru_cache(maxsize=64)
def _found(name: str) -> SamplingScheme:
    plugins.refuse_options("sampling scheme", name, "write a subclass that sets them, and name it")
    found = plugins.find("sampling scheme", name, SCHEMES)
    if not (isinstance(found, type) and issubclass(found, SamplingScheme)):
        raise PmtlError(
            f"The sampling scheme {name!r} cannot be used: it is not a subclass of "
            "pmtl.privacy.sampling.SamplingScheme."
        )
    try:
        made = found()
        if not is_library_scheme(name):
            _refuse_own_costs(made, name)
        return made
    except PmtlError:
        raise
    except (Exception, SystemExit) as error:  # It is the user's code: it may raise anything.
        raise PmtlError(
            f"The sampling scheme {name!r} cannot be made without arguments "
            f"({plugins.error_text(error)})."
        ) from error


def _refuse_own_costs(scheme: SamplingScheme, name: str) -> None:
    """A scheme of the user's own is charged by its `chance` alone, also together with others.
    Neither its class nor the object may define other costs, or another adversary."""
    kind = type(scheme)
    own = [
        cost
        for cost in (
            *("epsilon", "delta", "renyi", "charged_as", "checked_chance", "_costs"),
            *("accountant", "holds_against"),
        )
        if getattr(kind, cost) is not getattr(SamplingScheme, cost) or cost in vars(scheme)
    ]
    if own or kind.coins_are_secret or scheme.coins_are_secret:
        raise PmtlError(
            f"The sampling scheme {name!r} cannot be used: its cost follows from chance(rate), so "
            f"it may not define {', '.join([*own, 'coins_are_secret'])}. Derive it from "
            "SamplingScheme itself."
        )
