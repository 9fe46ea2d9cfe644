"""What a run guarantees, in words that a person who is protected by it can read.

The statement is made from the plan that ran and from nothing else. It says who is protected,
against whom, how strongly and under which assumptions, and what is *not* covered.
"""

from __future__ import annotations

import math
import textwrap
from dataclasses import asdict, dataclass
from typing import Any

from pmtl.privacy.plan import ADJACENCY, PrivacyPlan, default_delta

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
SERVER = "The server is trusted with the clipped uploads; they are not encrypted against it."
CHOOSING = (
    "Settings that were chosen by looking at results on these clients' data cost privacy that is "
    "not counted here; `pmtl privacy selection` says how much."
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
    "metrics were withheld. The folder still holds every client's own model: give each client its "
    "own, and nobody the others'."
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
    population_epsilon: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The statement as plain values, its text included."""
        return asdict(self) | {"text": str(self)}

    def __str__(self) -> str:
        paragraphs = [
            "PRIVACY STATEMENT",
            _headline(self),
            f"Who is protected: {self.unit}",
            f"Against whom: {self.adversary}",
            f"How it was reached: {_mechanism(self)}",
            *_population(self),
            EXPERIMENT if self.mode == "experiment" else PRODUCTION,
            "What is not covered:",
        ]
        text = "\n\n".join(textwrap.fill(paragraph, 88) for paragraph in paragraphs)
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
    population_epsilon: float | None = None,
) -> Statement:
    """The statement for a plan that was carried out with an algorithm of these kinds.

    `population_epsilon` is the ε of everything in the clients' ledger, this run included.
    """
    report = _account(plan) if shares else _nothing_shared(plan)
    if not shares:
        adversary, items = "everybody: nothing was sent or published.", (OWN_MODEL, PUBLIC)
    else:
        adversary = report.get("holds_against", _OTHERS) + "."
        items = (*((OWN_MODEL,) if personal else ()), PUBLIC, SERVER, CHOOSING)
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
        population_epsilon=population_epsilon,
    )


_OTHERS = "all other clients together, who see every published model"


def _nothing_shared(plan: PrivacyPlan) -> dict[str, Any]:
    return {"epsilon": 0.0, "accountant": "nothing leaves a client", "also": {}}


def _account(plan: PrivacyPlan) -> dict[str, Any]:
    try:
        from pmtl.privacy import accounting

        return accounting.report(plan)
    except ImportError as error:
        missing = error.name
    # Training may run where dp-accounting is not installed. Full participation needs only SciPy.
    if plan.sampling == "full":
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
    return [
        f"All releases in these clients' ledger together, this run's included: "
        f"ε = {statement.population_epsilon:.4g} at the same δ."
    ]


def _headline(statement: Statement) -> str:
    epsilon, delta = statement.epsilon, statement.delta
    if statement.plan is None:
        return "ε = 0: every client trained alone, and no model was made with another's rows."
    if epsilon is None:
        return f"ε was {statement.accountant}."
    if math.isinf(epsilon):
        return "NOT PRIVATE: ε is infinite, because there was no noise or no clipping."
    return (
        f"The published models and all personal models together are (ε, δ)-billboard private with "
        f"ε = {epsilon:.4g} and δ = {delta:.3g}: whatever the adversary below sees of everyone "
        "else is at most e^ε times more likely with one data set of a client than with any "
        f"other, but for a probability of δ. {_about_delta(statement)}"
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
    draws = {
        "full": "everybody took part in every round",
        "poisson": f"each client took part in a round with probability {plan.rate:.4g}, by a coin "
        "of its own",
        "fixed": f"{plan.cohort} of {plan.clients} clients were drawn for each round; colluding "
        "clients can count who was drawn, so the ε above grants them that knowledge"
        + _for_outsiders(statement),
    }
    return (
        f"{plan.rounds} rounds; {draws[plan.sampling]}; every upload clipped to norm "
        f"{plan.clip_norm:g}; noise of standard deviation {plan.noise_std:.6g} on the average over "
        f"{plan.cohort} (noise multiplier {plan.noise_multiplier:.4g}). Adjacency: "
        f"{statement.adjacency}. Accountant: {statement.accountant}."
    )


def _for_outsiders(statement: Statement) -> str:
    outsiders = statement.also.get("outsiders")
    if outsiders is None:
        return ""
    return f" (for outsiders, who see only the models, ε would be {outsiders:.4g})"


def warn_of_delta(plan: PrivacyPlan) -> str | None:
    """A sentence for a δ that makes the guarantee hollow."""
    if plan.delta < 1 / plan.clients or not plan.private:
        return None
    return (
        f"Delta is {plan.delta:.3g}, and with {plan.clients} clients anything from "
        f"{1 / plan.clients:.3g} on would allow publishing one random client's data outright: the "
        f"default is {default_delta(plan.clients):.3g}."
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
        f"has {ratio:.1f} times the norm of anything {plan.clients} clients can say in "
        f"{plan.rounds} rounds at this ε. Use a smaller model, fixed features with a linear head, "
        "more clients, or a larger ε; what remains useful otherwise is the clients' own training."
    )
