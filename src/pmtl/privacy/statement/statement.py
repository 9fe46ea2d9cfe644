"""The privacy statement of a run, made only from what was charged. Its sentences are in `text`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from pmtl.errors import PmtlError, errors_naming
from pmtl.privacy.accounting import accountant, composition, distributed
from pmtl.privacy.accounting.validation import KIND
from pmtl.privacy.ledger.events import TRAINING, GaussianEvent, count_of_kind, from_list, to_list
from pmtl.privacy.plan import ADJACENCY, PrivacyPlan
from pmtl.privacy.sampling import ALL_OTHERS
from pmtl.privacy.statement import text
from pmtl.privacy.statement.check import check_statement
from pmtl.privacy.statement.meaning import Guarantee, stated_deltas
from pmtl.spec import from_values, take_format

#: The format of `privacy.json`. Files without a number may have further entries.
FORMAT = 2
#: By format, by how much a number may be below what is computed here for the same releases: other
#: versions of pmtl and of the accounting library may use other grids.
_SLACK = {1: 0.01, 2: 1e-4}


@dataclass(frozen=True)
class Statement:
    """The guarantee of a run. `str(statement)` is the text of `privacy.txt`."""

    #: ε; inf without privacy, and None if it could not be computed (without dp-accounting).
    epsilon: float | None
    delta: float  #: δ of the guarantee
    adjacency: str  #: in what neighbouring federations differ: `replace-one`
    unit: str  #: who is protected, as a sentence
    adversary: str  #: against whom the guarantee holds, as a sentence
    sampling: str  #: the sampling scheme; `none` if nothing left a client
    rounds: int  #: T, how many rounds the plan has
    accountant: str  #: how ε was computed, in words
    also: dict[str, Any]  #: other values of ε, for comparison
    plan: dict[str, Any] | None  #: the `PrivacyPlan`; None if nothing left a client
    mode: str  #: `experiment` or `production`
    not_covered: tuple[str, ...]  #: what the guarantee does not cover, as sentences
    hardened: bool = False  #: whether noise was drawn exactly, on a grid of whole numbers
    metrics: dict[str, Any] | None = None  #: the plan of the average metrics, if any were released
    charged: tuple[dict[str, Any], ...] = ()  #: every kind of release with its `count`
    guarantees: tuple[Guarantee, ...] = ()  #: ε at several δ, and bounds on an attacker
    attacker_right: float | None = None  #: the bound that follows from all δ together
    population_epsilon: float | None = None  #: of the largest account of these clients
    population_filter: float | None = None  #: the same, however the settings were chosen
    afterwards: str | None = None  #: about fine-tuning after the run
    releases: str | None = None  #: what the rounds released, if it was not one model after another
    hidden: dict[str, Any] | None = None  #: with secure aggregation: `distributed.report`
    chosen: str | None = None  #: how this run was chosen among others, if that is paid for

    def to_dict(self) -> dict[str, Any]:
        """The statement as plain values, its text included."""
        values = {"format": FORMAT, **asdict(self), "text": str(self)}
        for name in ("afterwards", "releases", "hidden", "chosen"):
            if values[name] is None:
                del values[name]
        return values

    @classmethod
    def from_dict(
        cls, values: Mapping[str, Any], where: str = "the privacy statement"
    ) -> Statement:
        """The statement that `to_dict` wrote, checked: one that contradicts itself is refused
        (`check_statement` says what is compared).

        Args:
            values: what `to_dict` returned, also after JSON, which has no infinity.
            where: the file that the values are from, for the message of an error.
        """
        given: dict[str, Any] = _numbers(values)
        format = take_format(given, where, FORMAT)
        given.pop("text", None)
        with errors_naming(where):
            try:
                given["guarantees"] = [
                    from_values(Guarantee, each, "a guarantee") for each in given["guarantees"]
                ]
                from_list(given["charged"])
                for name in ("plan", "metrics"):
                    if given[name] is not None:
                        PrivacyPlan.from_dict(given[name])
            except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
                raise PmtlError(
                    f"It is not a privacy statement of this version of pmtl ({error})."
                ) from error
        read = from_values(cls, given, where, lenient=format == 1)
        with errors_naming(where):
            check_statement(read, _SLACK[format])
        return read

    def __str__(self) -> str:
        return text.in_full(self)


def make_statement(
    plan: PrivacyPlan,
    *,
    shares: bool,
    personal: bool,
    mode: str = "experiment",
    hardened: bool = False,
    metrics: PrivacyPlan | None = None,
    charged: Mapping[GaussianEvent, int] | None = None,
    population_epsilon: float | None = None,
    population_filter: float | None = None,
    finetuned: bool = False,
    disclosed: tuple[str, ...] = (),
    relations: str | None = None,
    releases: str | None = None,
    choice: Mapping[str, Any] | None = None,
    sites: tuple[int, ...] | None = None,
) -> Statement:
    """The statement of a run. Arguments that are not fields of `Statement` are:

    Args:
        shares: whether anything leaves a client.
        personal: whether clients get personal models.
        finetuned: whether clients were fine-tuned after the run.
        disclosed: sentences about what reading the data revealed about all clients.
        relations: what defines which clients are related, if anything does.
        choice: what choosing this run among others cost: pairs of δ and ε under `costs`, which
            replace the run's pairs, and the `protocol` in words.
        sites: with secure aggregation, how many sites there were, and how many may collude.
    """
    if charged is None:
        charged = {GaussianEvent.of(plan): plan.rounds} if shares else {}
        if metrics is not None:
            charged |= {GaussianEvent.of(metrics, KIND): metrics.rounds}
    plan = replace(plan, rounds=max(1, count_of_kind(charged, TRAINING) if shares else plan.rounds))
    guarantees = _guarantees(charged, plan.delta) if charged else ()
    attacker_right = (1 + composition.distance(charged)) / 2 if guarantees else None
    if choice is not None:
        guarantees = tuple(Guarantee.at(epsilon, delta) for delta, epsilon in choice["costs"])
        attacker_right = min(guarantee.attacker_right for guarantee in guarantees)
    if shares:
        report = _account(plan)
        hidden = None if sites is None else distributed.report(plan, *sites)
        adversary = report.get("holds_against", ALL_OTHERS) + "."
        if hidden is not None:
            alone = hidden["colluders"] == 0
            adversary = (text.ADVERSARY_ALONE if alone else text.ADVERSARY).format(**hidden)
        items = [
            text.OWN_MODEL if personal else None,
            *disclosed,
            text.RELATIONS.format(what=relations) if relations is not None else None,
            *(text.PUBLIC, text.SERVER if hidden is None else text.NOT_HIDDEN),
            text.CHOOSING if choice is None else text.CHOOSING_MORE,
            None if hardened else text.FLOATS,
            text.TIMING,
        ]
    else:
        report = {"epsilon": 0.0, "accountant": "nothing leaves a client", "also": {}}
        adversary, hidden = "everybody: nothing was sent or published.", None
        items = [text.OWN_MODEL, *disclosed, text.PUBLIC]
    if guarantees:
        report["epsilon"] = guarantees[0].epsilon
    released = count_of_kind(charged, KIND)
    everybody = "the one client" if plan.clients == 1 else f"each of the {plan.clients} clients"
    return Statement(
        epsilon=report["epsilon"],
        delta=plan.delta,
        adjacency=ADJACENCY,
        unit=f"{everybody}, with the whole of its data set. Neighbouring "
        "federations differ in one client's data set, replaced by any other.",
        adversary=adversary,
        sampling=plan.sampling if shares else "none",
        rounds=plan.rounds,
        accountant=report["accountant"],
        also=report["also"],
        plan=plan.to_dict() if shares else None,
        mode=mode,
        not_covered=tuple(item for item in items if item is not None),
        hardened=hardened,
        metrics=replace(metrics, rounds=released).to_dict() if metrics and released else None,
        charged=tuple(to_list(charged)),
        guarantees=guarantees,
        attacker_right=attacker_right,
        population_epsilon=population_epsilon,
        population_filter=population_filter,
        afterwards=text.FINETUNED if finetuned else None,
        releases=releases if shares else None,
        hidden=hidden,
        chosen=None if choice is None else text.CHOSEN.format(**choice),
    )


def _numbers(value: Any) -> Any:
    """A value from JSON, which has no infinity."""
    if isinstance(value, Mapping):
        return {name: _numbers(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_numbers(entry) for entry in value]
    return math.inf if value == "inf" else value


def _guarantees(charged: Mapping[GaussianEvent, int], delta: float) -> tuple[Guarantee, ...]:
    """ε(δ) at the plan's own δ and at smaller ones; empty if it cannot be computed."""
    try:
        return tuple(Guarantee.of(charged, each) for each in stated_deltas(delta))
    except ImportError:
        return ()


def _account(plan: PrivacyPlan) -> dict[str, Any]:
    """The accountant's report, or a shorter one if dp-accounting is not installed."""
    try:
        return accountant.report(plan)
    except ImportError as error:
        missing = error.name
    try:  # Only secret coins need dp-accounting; SciPy is enough for the others.
        epsilon, how = accountant.epsilon(plan), accountant.accountant_of(plan)
        return {"epsilon": epsilon, "accountant": how, "also": {}}
    except ImportError:
        how = (
            f"not computed here ({missing} is not installed); run `pmtl privacy epsilon` with the "
            "plan's numbers where it is"
        )
        return {"epsilon": None, "accountant": how, "also": {}}
