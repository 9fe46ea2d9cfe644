"""Checks of a statement that was read from a file: what its numbers may be, and that they do not
contradict each other. They find mistakes and careless changes. Somebody who changes everything that
belongs together is not found: a file is as trustworthy as the place that it is from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pmtl.errors import PmtlError
from pmtl.jsontext import check_text
from pmtl.privacy.accounting import composition
from pmtl.privacy.accounting.validation import KIND
from pmtl.privacy.ledger.events import TRAINING, Events, GaussianEvent, count_of_kind, from_list
from pmtl.privacy.plan import ADJACENCY, LEAST_DELTA, MOST, PrivacyPlan
from pmtl.privacy.statement.meaning import hits, success

if TYPE_CHECKING:
    from pmtl.privacy.statement.statement import Statement

#: The least and the largest number of each entry of a statement and of a guarantee.
_RANGES = {
    "epsilon": (0, math.inf),
    "population_epsilon": (0, math.inf),
    "population_filter": (0, math.inf),
    "zero_out": (0, math.inf),
    "delta": (LEAST_DELTA, 1 - 2**-53),
    "attacker_right": (0.5, 1),
    "attacker_hits": (0, 1),
    "rounds": (1, MOST["rounds"]),
}
_MODES = ("experiment", "production")
#: With more kinds of releases the cost is not computed again, because that can take seconds.
MOST_KINDS = 16
#: By how much the ε of all runs may be below that of one of them: both are computed on grids.
_GRIDS = 0.01


def check_statement(statement: Statement, slack: float) -> None:
    """Refuse a statement with impossible numbers or entries that contradict each other. Its ε must
    not be below what its releases cost. That is not computed for a run that was chosen among others
    (its ε covers the choice), for more than 16 kinds of releases, or without dp-accounting.

    Args:
        statement: has been read; its plans and releases are valid.
        slack: by how much, relatively, its numbers may be below what is computed here.
    """
    for values in (vars(statement), *map(vars, statement.guarantees)):
        for name, (least, most) in _RANGES.items():
            if values.get(name) is not None and not _within(values[name], least, most):
                raise _refused(name, values[name])
    for name, value in statement.also.items():
        if not (value is None or isinstance(value, str) or _within(value, 0, math.inf)):
            raise _refused(f"also.{name}", value)
    charged = from_list(statement.charged)
    if charged.total() > MOST["rounds"]:
        raise _refused("charged", f"{len(charged)} kinds of releases")
    for name, sound in _relations(statement, charged):
        if not sound:
            raise _refused(name, getattr(statement, name))
    _check_guarantees(statement, slack)
    if statement.chosen is None:
        _check_costs(statement, charged, slack)
    try:
        check_text(asdict(statement))
        str(statement)
    except (ValueError, KeyError, TypeError, OverflowError, AttributeError) as error:
        raise PmtlError(f"It cannot be put into words ({error}): {_AGAIN}") from error


_AGAIN = "use the file that the run wrote."


def _refused(name: str, value: Any) -> PmtlError:
    words = repr(value) if len(repr(value)) < 80 else "the value there"
    return PmtlError(f"The entry {name!r} cannot be {words} beside the other entries: {_AGAIN}")


def _within(value: Any, least: float, most: float) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return least <= float(value) <= most
    except OverflowError:  # A whole number that is too large for a float.
        return False


def _relations(statement: Statement, charged: Events) -> Iterator[tuple[str, bool]]:
    """Entries, and whether they fit the others."""
    yield "mode", statement.mode in _MODES
    yield "adjacency", statement.adjacency == ADJACENCY
    count = Counter({kind: count_of_kind(charged, kind) for kind in (TRAINING, KIND)})
    if statement.plan is None:
        yield "sampling", statement.sampling == "none"
        yield "plan", not count[TRAINING]
    else:
        plan = PrivacyPlan.from_dict(statement.plan)
        yield "sampling", statement.sampling == plan.sampling
        yield "delta", statement.delta == plan.delta
        yield "rounds", statement.rounds == plan.rounds
        yield "rounds", not charged or statement.rounds == max(1, count[TRAINING])
        planned = GaussianEvent.of(plan)
        yield "plan", all(event == planned for event in charged if event.kind == TRAINING)
    if statement.metrics is not None:
        yield "metrics", PrivacyPlan.from_dict(statement.metrics).rounds == count[KIND]
    if (total := statement.population_epsilon) is not None and statement.chosen is None:
        yield "population_epsilon", not total < (statement.epsilon or 0) * (1 - _GRIDS)


def _check_guarantees(statement: Statement, slack: float) -> None:
    """The first guarantee is the statement's own, and each one's bounds follow from its ε."""
    if not statement.guarantees:
        return
    first = statement.guarantees[0]
    for name in ("epsilon", "delta"):
        if getattr(first, name) != getattr(statement, name):
            raise _refused(name, getattr(statement, name))
    for each in statement.guarantees:
        pair = each.epsilon, each.delta
        _at_least("attacker_right", each.attacker_right, success(*pair), slack)
        _at_least("attacker_hits", each.attacker_hits, hits(*pair), slack)
    if statement.chosen is not None and statement.attacker_right is not None:
        least = min(each.attacker_right for each in statement.guarantees)
        _at_least("attacker_right", statement.attacker_right, least, slack)


def _check_costs(statement: Statement, charged: Events, slack: float) -> None:
    """What is stated is not below the cost of what was charged, or else of the plan."""
    if not charged and statement.plan is not None:
        plan = PrivacyPlan.from_dict(statement.plan)
        charged = Counter({GaussianEvent.of(plan): plan.rounds})
    if not charged or len(charged) > MOST_KINDS:
        return
    try:
        if statement.epsilon is not None:
            cost = composition.epsilon(charged, statement.delta)
            _at_least("epsilon", statement.epsilon, cost, slack)
        for each in statement.guarantees:
            _at_least("epsilon", each.epsilon, composition.epsilon(charged, each.delta), slack)
            left_out = composition.epsilon(charged, each.delta, sensitivity=1)
            _at_least("zero_out", each.zero_out, left_out, slack)
        if statement.attacker_right is not None:
            right = (1 + composition.distance(charged)) / 2
            _at_least("attacker_right", statement.attacker_right, right, slack)
    except ImportError:  # The optional dp-accounting is needed for secret coins.
        return


def _at_least(name: str, stated: float, computed: float, slack: float) -> None:
    if stated < computed * (1 - slack):
        raise PmtlError(
            f"The entry {name!r} says {stated:.6g}, but what the statement says of the releases "
            f"makes it {computed:.6g}: {_AGAIN}"
        )
