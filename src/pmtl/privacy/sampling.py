"""Sampling schemes: how a cohort is drawn, and what that costs. One class for each scheme.

| name | cohort | what colluding clients know about another client |
|---|---|---|
| `full` | all clients | that it took part; sampling hides nothing |
| `poisson` | each client with probability q/m, independently | nothing |
| `fixed` | exactly q clients, as in the paper | whether it took part: they count their own draws |

The sampler, the accountant, the ledger, the statement and the audit use the same object, so what is
drawn is what is charged. An unknown name is refused; a plan that was read keeps the cost that its
file states, and draws nothing if the name is unknown. To add a scheme, write a subclass with `draw`
and `chance` and name it `package.module:Name`.

This module needs only NumPy: the accountants are imported when a cost is computed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from numbers import Real
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from pmtl import plugins
from pmtl.errors import PmtlError, kind_of

if TYPE_CHECKING:
    from pmtl.privacy.plan import PrivacyPlan
    from pmtl.privacy.sampler import Sampler

FULL, POISSON, FIXED = "full", "poisson", "fixed"

ALL_OTHERS = "all other clients together, who see every published model"


class SamplingScheme:
    """A way of drawing cohorts. Subclasses implement `draw` and `chance`.

    The default costs assume that the adversary knows who took part in which round: a client is in
    N ~ Binomial(T, chance) of T rounds (`accounting/colluders.py`).

    In the methods:
        - clients: m, the number of clients.
        - cohort: q, the expected number of clients in a round.
        - rate: q/m.
        - z: the noise multiplier.
        - rounds: T, the number of releases.
        - epsilon, delta: ε and δ.
        - sensitivity: 2 if a client's data are replaced, 1 if they are left out.
        - plan: the privacy plan.
    """

    #: Whether a round may have more or fewer clients than q.
    size_varies: bool = False
    #: Whether the cohort is always everybody, so that no other q can be asked for.
    takes_everybody: bool = False
    #: Whether each client is drawn independently with probability q/m, by a coin that no other
    #: client learns. Only then is it charged as Poisson sampling (`charged_as`).
    coins_are_secret: bool = False
    #: What `--help` says about a scheme of the library.
    in_help: str = "as its class says"
    #: How ε is computed, in words.
    accountant: str = (
        "exact Gaussian (μ-GDP) over a binomial number of known participations, replace-one"
    )
    #: Against whom the guarantee holds, in words.
    holds_against: str = f"{ALL_OTHERS} and who took part in which round"
    #: What the names of `comparisons` mean, in words.
    labels: Mapping[str, str] = {}

    def check(self, clients: int, cohort: int) -> None:
        """Raise a `PmtlError` if a cohort of this size cannot be drawn."""

    def draw(self, sampler: Sampler, round: int) -> NDArray[np.int64]:
        """The sorted indices of the clients of a round.

        Args:
            sampler: has the `plan`, and `tickets(round)`, 64 random bits for each client.
            round: the number of the round, from 0.
        """
        raise PmtlError(
            f"The sampling scheme {type(self).__name__} does not say how a cohort is drawn: let "
            "its class implement draw(sampler, round)."
        )

    def chance(self, rate: float) -> float:
        """The largest probability that a client takes part in a round, given everything that
        happened in all earlier rounds of all runs. The default costs use it."""
        raise PmtlError(
            f"The sampling scheme {type(self).__name__} does not say what it costs, so nothing can "
            "be charged for it: let its class implement chance(rate)."
        )

    def checked_chance(self, rate: float) -> float:
        """`chance(rate)`, refused if it cannot be true: q of m clients are drawn, so some client's
        chance is at least q/m. A wrong number would make releases too cheap."""
        value: Any = self.chance(rate)
        if isinstance(value, bool) or not isinstance(value, Real):
            value = math.nan
        if not rate * (1 - 1e-9) <= value <= 1 + 1e-9:
            raise PmtlError(
                f"The sampling scheme {type(self).__name__} says that a client takes part with a "
                f"chance of {value}, which cannot be: it must be a number between q/m = {rate:.6g} "
                "and 1."
            )
        return min(1.0, max(rate, float(value)))

    def charged_as(self, rate: float) -> tuple[str, float]:
        """The scheme of the library, `full`, `poisson` or `fixed`, and its rate, as which releases
        are charged in ledgers and wherever several plans are added up. This follows from `chance`
        and `coins_are_secret` alone, even if a class computes the costs of one plan in another way:
        unless coins are secret, the adversary is assumed to know who took part, as with `fixed`.
        """
        chance = self.checked_chance(rate)
        if chance == 1:
            return FULL, 1.0
        return (POISSON if type(self).coins_are_secret else FIXED), chance

    def epsilon(
        self, z: float, rate: float, rounds: int, delta: float, sensitivity: int = 2
    ) -> float:
        """ε at δ of one plan."""
        chance = self.checked_chance(rate)
        return float(self._costs.epsilon(z, chance, rounds, delta, sensitivity))

    def delta(self, z: float, rate: float, rounds: int, epsilon: float) -> float:
        """δ at ε of one plan, replace-one."""
        return float(self._costs.delta(z, self.checked_chance(rate), rounds, epsilon, 2))

    def renyi(self, z: float, rate: float, orders: NDArray[np.float64]) -> NDArray[np.float64]:
        """The Rényi divergences of one release, replace-one.

        Args:
            orders: the orders α > 1.
        """
        from pmtl.privacy.accounting import renyi

        cost = renyi.secret if type(self).coins_are_secret else renyi.known
        return cost(z, self.checked_chance(rate), orders)

    @property
    def _costs(self) -> ModuleType:
        from pmtl.privacy.accounting import colluders, poisson

        return poisson if type(self).coins_are_secret else colluders

    def empty(self, plan: PrivacyPlan) -> float:
        """The probability that a round has no clients."""
        return 0.0

    def comparisons(self, plan: PrivacyPlan) -> dict[str, float]:
        """Other values of ε that are reported for comparison, by name (see `labels`)."""
        return {}

    def in_words(self, plan: PrivacyPlan, also: Mapping[str, Any]) -> str:
        """How cohorts were drawn, as part of a sentence.

        Args:
            also: values of ε by name, the `comparisons` among them.
        """
        return f"{plan.cohort} of {plan.clients} clients took part in a round ({plan.sampling})"


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
