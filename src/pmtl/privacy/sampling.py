"""The interface of sampling schemes: how a cohort is drawn, and what that costs.

The sampler, the accountant, the ledger, the statement and the audit use the same object, so what is
drawn is what is charged. The library's schemes are in `schemes.py`. To add one, write a subclass
with `draw` and `chance` and name it `package.module:Name`.

This module needs only NumPy: the accountants are imported when a cost is computed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pmtl.errors import PmtlError

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
