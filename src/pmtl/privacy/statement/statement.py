"""What a run guarantees, in words that a person who is protected by it can read.

The statement is made from what was charged (in the clients' ledger, where there is one) and from
nothing else. It says who is protected, against whom, how strongly and under which assumptions, what
that leaves an attacker, and what is *not* covered.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from pmtl.privacy.accounting import composition
from pmtl.privacy.accounting.validation import KIND
from pmtl.privacy.ledger.events import TRAINING, GaussianEvent
from pmtl.privacy.plan import ADJACENCY, PrivacyPlan, default_delta
from pmtl.privacy.statement.meaning import FALSE_ALARMS, Guarantee

#: Besides the plan's own δ.
_DELTAS = (1e-5, 1e-6)
#: The share of empty rounds, and the noise on an average accuracy, from which a warning is given.
_MANY_EMPTY, _NOISY_METRICS = 0.05, 0.1

OWN_MODEL = (
    "A client's own personal model is made from that client's data: it protects the others, not "
    "the client itself. Whoever gets hold of it, or of answers it gives, may learn about that "
    "client."
)
PUBLIC = (
    "Treated as public, though some of it may have been read from the data: which clients take "
    "part, the kind of task, the classes and their names, the feature columns, and the settings "
    "above. A class that only one client has betrays that client; state the classes beforehand "
    "where that matters (outputs=)."
)
RELATIONS = (
    "{what} by which clients read averages with one another, instead of one average of everybody: "
    "treated as public, so chosen without looking at the clients' data. Such an average is over "
    "fewer clients and has more noise than is said above, at the same ε."
)
FLOATS = (
    "Noise is drawn in floating point, whose last bits are not quite those of a Gaussian and may "
    "betray something about what it was added to; the hardened gate closes that."
)
TIMING = "How long a round took is not hidden; the times in the ledger tell it."
SERVER = "The server is trusted with the clipped uploads; they are not encrypted against it."
CHOOSING = (
    "Settings that were chosen by looking at results on these clients' data cost privacy that is "
    "not counted here; `pmtl privacy selection` says how much."
)

FINETUNED = (
    "Fine-tuning and choosing inside a client: free. Every client went on from what was published, "
    "with its own rows and by itself, and nothing of it was sent or published: the run's guarantee "
    "is that of the models after it, too. It does not cover a setting that was picked for all by "
    "looking at everybody's results."
)

EXPERIMENT = (
    "This was a seeded experiment: its noise can be computed again from the seed, and its metrics "
    "are exact. The guarantee describes the mechanism; for whoever knows the seed, or sees the "
    "metrics or the run's folder, it does not hold. Do not hand these files to the people the "
    "clients are to be protected from."
)


PRODUCTION = (
    "This was a production run: cohorts and noise came from the operating system's generator, were "
    "kept nowhere, and every release was put down in the clients' ledger before it was made. Exact "
    "metrics were withheld; what is shown of them passed the gate. The run's folder has two parts. "
    "All of public/ may be handed out: the shared model (shared.safetensors), the plan and the "
    "public settings (plan.json), this statement (privacy.txt, privacy.json) and the released "
    "metrics (metrics.jsonl). Nothing of private/ may: the clients' own models, their scalings, "
    "the checkpoint and the record of the run. Only the owner of the run can open it. Each client "
    "gets its own model and nobody else's."
)


@dataclass(frozen=True)
class Statement:
    """The guarantee of a run. `epsilon` is inf without privacy, and None where it could not be
    computed (dp-accounting is not installed)."""

    epsilon: float | None
    delta: float
    adjacency: str
    unit: str
    adversary: str
    sampling: str
    rounds: int
    accountant: str
    also: dict[str, Any]
    plan: dict[str, Any] | None
    mode: str
    not_covered: tuple[str, ...]
    hardened: bool = False
    metrics: dict[str, Any] | None = None  #: the plan of the average metrics, if any were released
    charged: tuple[dict[str, Any], ...] = ()  #: every kind of release with its `count`
    guarantees: tuple[Guarantee, ...] = ()  #: ε at several δ, and what it leaves an attacker
    attacker_right: float | None = None  #: the bound that follows from all δ together
    population_epsilon: float | None = None  #: of the largest account of these clients
    population_filter: float | None = None  #: the same, however the settings were chosen
    afterwards: str | None = None  #: what clients did for themselves when the run was over

    def to_dict(self) -> dict[str, Any]:
        """The statement as plain values, its text included."""
        values = asdict(self) | {"text": str(self)}
        if self.afterwards is None:
            del values["afterwards"]
        return values

    def __str__(self) -> str:
        paragraphs = [
            "PRIVACY STATEMENT",
            _headline(self),
            *_table(self),
            f"Who is protected: {self.unit}",
            f"Against whom: {self.adversary}",
            f"How it was reached: {_mechanism(self)}",
            *_population(self),
            *([] if self.afterwards is None else [self.afterwards]),
            EXPERIMENT if self.mode == "experiment" else PRODUCTION,
            "What is not covered:",
        ]
        text = "\n\n".join(part if "\n" in part else textwrap.fill(part, 88) for part in paragraphs)
        items = [
            textwrap.fill(item, 88, initial_indent="- ", subsequent_indent="  ")
            for item in self.not_covered
        ]
        return text + "\n" + "\n".join(items) + "\n"


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
) -> Statement:
    """The statement of a run with an algorithm of these kinds.

    `charged` is what the ledger holds of this run; without a ledger it is the plans as they are.
    `population_epsilon` is the ε of the largest account that one of these clients has in the
    ledger, this run included; `population_filter` is the smallest cap that admits it.
    `finetuned` says that clients worked on for themselves afterwards.
    `disclosed` are sentences on what reading the data took from all clients, past the gate.
    `relations` names what decides who reads an average with whom, if not everybody does.
    """
    if charged is None:
        charged = {GaussianEvent.of(plan): plan.rounds} if shares else {}
        if metrics is not None:
            charged |= {GaussianEvent.of(metrics, KIND): metrics.rounds}
    plan = replace(plan, rounds=max(1, _count(charged, TRAINING) if shares else plan.rounds))
    report = _account(plan) if shares else _nothing_shared(plan)
    guarantees = _guarantees(charged, plan.delta) if charged else ()
    if guarantees:
        report["epsilon"] = guarantees[0].epsilon
    if not shares:
        adversary = "everybody: nothing was sent or published."
        items: tuple[str, ...] = (OWN_MODEL, *disclosed, PUBLIC)
    else:
        adversary = report.get("holds_against", _OTHERS) + "."
        own = (OWN_MODEL,) if personal else ()
        items = (
            *own,
            *disclosed,
            *(() if relations is None else (RELATIONS.format(what=relations),)),
            PUBLIC,
            SERVER,
            CHOOSING,
            *(() if hardened else (FLOATS,)),
            TIMING,
        )
    released = _count(charged, KIND)
    return Statement(
        epsilon=report["epsilon"],
        delta=plan.delta,
        adjacency=ADJACENCY,
        unit=f"each of the {plan.clients} clients, with the whole of its data set. Neighbouring "
        "federations differ in one client's data set, replaced by any other.",
        adversary=adversary,
        sampling=plan.sampling if shares else "none",
        rounds=plan.rounds,
        accountant=report["accountant"],
        also=report["also"],
        plan=plan.to_dict() if shares else None,
        mode=mode,
        not_covered=items,
        hardened=hardened,
        metrics=replace(metrics, rounds=released).to_dict() if metrics and released else None,
        charged=tuple(event.to_dict() | {"count": count} for event, count in charged.items()),
        guarantees=guarantees,
        attacker_right=(1 + composition.distance(charged)) / 2 if guarantees else None,
        population_epsilon=population_epsilon,
        population_filter=population_filter,
        afterwards=FINETUNED if finetuned else None,
    )


def _count(charged: Mapping[GaussianEvent, int], kind: str) -> int:
    return sum(count for event, count in charged.items() if event.kind == kind)


def _guarantees(charged: Mapping[GaussianEvent, int], delta: float) -> tuple[Guarantee, ...]:
    """ε(δ) at the plan's own δ and at smaller ones; empty where it cannot be computed."""
    deltas = (delta, *(other for other in _DELTAS if other < delta))
    try:
        return tuple(Guarantee.of(charged, each) for each in deltas)
    except ImportError:
        return ()


def _table(statement: Statement) -> list[str]:
    """The guarantees as a table; where nothing is promised, none."""
    guarantees = statement.guarantees
    if statement.attacker_right is None or not guarantees or math.isinf(guarantees[0].epsilon):
        return []
    lines = [
        "         δ   ε, replaced   ε, struck out   hits at 1% false alarms",
        *(
            f"{g.delta:10.3g}   {g.epsilon:11.4g}   {g.zero_out:13.4g}   "
            f"{_percent(g.attacker_hits):>23}"
            for g in guarantees
        ),
    ]
    meaning = (
        "Each line holds. An attacker who may raise a false alarm in "
        f"{FALSE_ALARMS:.0%} of cases recognises the client's data set in at most so many cases as "
        "the last column says. By itself, the first pair (ε, δ) would allow an attacker who has to "
        f"choose between two data sets to be right {_percent(guarantees[0].attacker_right)} of the "
        f"time; all pairs hold at once, and together they give the "
        f"{_percent(statement.attacker_right)} above. "
        '"Struck out" is the ε for leaving the client\'s data out instead of replacing it.'
    )
    return ["\n".join(lines), meaning]


def _percent(chance: float) -> str:
    return f"{math.ceil(1e4 * chance) / 100:.2f}%"  # a bound is rounded up


_OTHERS = "all other clients together, who see every published model"


def _nothing_shared(plan: PrivacyPlan) -> dict[str, Any]:
    return {"epsilon": 0.0, "accountant": "nothing leaves a client", "also": {}}


def _account(plan: PrivacyPlan) -> dict[str, Any]:
    try:
        from pmtl.privacy.accounting import accountant

        return accountant.report(plan)
    except ImportError as error:
        missing = error.name
    # Training may run where dp-accounting is not installed. Full participation needs only SciPy.
    if plan.rate == 1:
        report = {"epsilon": plan.epsilon(), "accountant": "exact Gaussian (μ-GDP), replace-one"}
        return report | {"also": {}}
    return {
        "epsilon": None,
        "accountant": f"not computed here ({missing} is not installed); run `pmtl privacy "
        "epsilon` with the plan's numbers where it is",
        "also": {},
    }


def _population(statement: Statement) -> list[str]:
    if statement.population_epsilon is None:
        return []
    sentence = (
        "The largest account of one of these clients in their ledger, this run included: "
        f"ε = {statement.population_epsilon:.4g} at the same δ, if the settings of all runs were "
        "fixed beforehand."
    )
    if statement.population_filter is not None:
        sentence += (
            f" However they were chosen, a cap of ε = {statement.population_filter:.4g} would have "
            "admitted all of it, and such a cap holds at 1.01·δ."
        )
    return [sentence]


def _headline(statement: Statement) -> str:
    epsilon, delta = statement.epsilon, statement.delta
    if statement.plan is None:
        return "ε = 0: every client trained alone, and no model was made with another's rows."
    if epsilon is None:
        return f"ε was {statement.accountant}."
    if math.isinf(epsilon):
        return "NOT PRIVATE: ε is infinite, because there was no noise or no clipping."
    return (
        f"{_chance(statement)}The published models and all personal models together are "
        f"(ε, δ)-billboard private with ε = {epsilon:.4g} and δ = {delta:.3g}: whatever the "
        "adversary below sees of everyone else is at most e^ε times more likely with one data set "
        "of a client than with any other; with a probability of at most δ this may fail. "
        f"{_about_delta(statement)}"
    )


def _chance(statement: Statement) -> str:
    """What the guarantee means to an attacker: the bound from all pairs (ε, δ) together."""
    if statement.attacker_right is None:
        return ""
    return (
        "An attacker who has to say which of two data sets a client has, both equally likely "
        f"before, is right at most {_percent(statement.attacker_right)} of the time; guessing is "
        "right half of the time. This follows from the formal guarantee. "
    )


def _about_delta(statement: Statement) -> str:
    """δ is where a guarantee can hide a failure, so it is judged in words."""
    plan = PrivacyPlan.from_dict(statement.plan or {})
    if statement.delta >= 1 / plan.clients:
        return (
            f"BEWARE OF δ: at 1/{plan.clients} or more, a mechanism that publishes one random "
            "client's data outright would satisfy this too."
        )
    return f"(δ is below 1/{plan.clients}, at which publishing one random client would be allowed.)"


def _mechanism(statement: Statement) -> str:
    if statement.plan is None:
        return "every client trained alone."
    plan = PrivacyPlan.from_dict(statement.plan)
    drawn = plan.scheme.in_words(plan, statement.also)
    grid = ", in whole steps of a grid and drawn exactly" if statement.hardened else ""
    return (
        f"{plan.rounds} rounds; {drawn}; every upload clipped to norm "
        f"{plan.clip_norm:g}; noise of standard deviation {plan.noise_std:.6g} on the average over "
        f"{plan.cohort} (noise multiplier {plan.noise_multiplier:.4g}){grid}.{_metrics(statement)} "
        f"Adjacency: {statement.adjacency}. Accountant: {statement.accountant}."
    )


def _metrics(statement: Statement) -> str:
    if statement.metrics is None:
        return ""
    plan = PrivacyPlan.from_dict(statement.metrics)
    return (
        f" Average metrics of everybody were released {plan.rounds} times, with noise of standard "
        f"deviation {plan.noise_std:.4g} on an average accuracy (noise multiplier "
        f"{plan.noise_multiplier:.4g}); they are paid for in the ε above."
    )


def warn_of_delta(plan: PrivacyPlan) -> str | None:
    """A sentence for a δ that makes the guarantee hollow."""
    if plan.delta < 1 / plan.clients or not plan.private:
        return None
    return (
        f"Delta is {plan.delta:.3g}, and with {plan.clients} clients anything from "
        f"{1 / plan.clients:.3g} on would allow publishing one random client's data outright: the "
        f"default is {default_delta(plan.clients):.3g}."
    )


def warn_of_empty_cohorts(plan: PrivacyPlan) -> str | None:
    """A sentence for coins that often choose nobody."""
    empty = plan.scheme.empty(plan)
    if empty < _MANY_EMPTY:
        return None
    return (
        f"About {empty:.0%} of the rounds draw no client at all: they publish noise alone and are "
        f"charged all the same. Use a larger cohort than {plan.cohort}."
    )


def warn_of_noisy_metrics(metrics: PrivacyPlan | None) -> str | None:
    """A sentence for released metrics that say next to nothing."""
    if metrics is None or metrics.noise_std < _NOISY_METRICS:
        return None
    return (
        f"The released metrics will say little: the noise on an average accuracy has a standard "
        f"deviation of {metrics.noise_std:.2g}. Evaluate less often (--evaluate-every), give "
        "metrics a larger share (--metrics), or have more clients."
    )


def warn_if_drowned(plan: PrivacyPlan, parameters: int, smallest_block: float = 1.0) -> str | None:
    """A sentence for plans whose noise no learning can outshout, to be said before it is spent.

    If every client pushed in the same direction in every round, the sum over T rounds would have
    norm Tγ; the noise in it has norm about σ√(dT). A block of the billboard that only a part of
    the clients writes to (`smallest_block`, as a share) has so much more noise on its average.
    """
    if not plan.private:
        return None
    ratio = plan.noise_std * math.sqrt(parameters / plan.rounds) / plan.clip_norm / smallest_block
    if ratio < 2:
        return None
    return (
        f"The noise is likely to drown the shared model: with {parameters:,} shared parameters it "
        f"has {ratio:.3g} times the norm of anything {plan.clients} clients can say in "
        f"{plan.rounds} rounds at this ε. Use a smaller model, fixed features with a linear head, "
        "more clients, or a larger ε; what remains useful otherwise is the clients' own training."
    )
