"""The sentences of a privacy statement."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pmtl.errors import how_many
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.statement.meaning import FALSE_ALARMS

if TYPE_CHECKING:
    from pmtl.privacy.statement.statement import Statement

OWN_MODEL = (
    "A client's own personal model is made from that client's data: the guarantee protects the "
    "other clients, not the client itself. Anyone who gets this model or its predictions may "
    "learn about that client."
)
PUBLIC = (
    "Treated as public, even if read from the data: which clients take part, the kind of task, the "
    "classes and their names, the feature columns, and the settings above. A class that only one "
    "client has reveals that client; if that matters, state the classes beforehand (outputs=)."
)
RELATIONS = (
    "{what}, with which clients read averages over some clients instead of one average over all: "
    "treated as public, so chosen without looking at the clients' data. Such an average is over "
    "fewer clients and has more noise than stated above, at the same ε."
)
PUBLIC_FILE = (
    "{what} (file {file}, SHA-256 {sha256}): treated as public. The person who started the run "
    "states that they were made without these clients' data; this was not checked. A run's folder "
    "keeps a copy (start.safetensors), which is public, too."
)
#: What the files of these roles hold.
PUBLIC_FILES = {
    "init": "The weights that training started from",
    "basis": "The directions along which the model was shared",
}
OWN_ALGORITHM = (
    "The algorithm {name} is code of the user's own. The guarantee holds only if its functions are "
    "pure: they remember nothing from one client to the next, and leave their arguments unchanged."
)
SHARED_PART = (
    "Which part of the model is shared ({share}: {numbers}, of {parameters:,} weights "
    "that are trained): treated as public, so chosen without looking at the clients' data. Only "
    "this part was uploaded, clipped and published with noise; nothing else left a client."
)
FLOATS = (
    "Noise is drawn in floating point. Its last bits are not exactly those of a Gaussian and may "
    "reveal something about the sum it was added to; the hardened gate prevents that."
)
TIMING = "How long a round took is not hidden; the times in the ledger show it."
SERVER = "The server is trusted with the clipped uploads; they are not encrypted against it."
HIDDEN = (
    "The server did not see uploads: the {sites} sites added masks that cancel in their sum, and "
    "shares of the noise (secure aggregation). Against those who see only what was published it is "
    "ε = {outsiders:.4g}. Against the server {helpers} it is the ε above; against the server with "
    "all other sites it is ε = {all_other_sites:.4g}. For that, what is published has "
    "{variance:.3g} times the variance of noise that a trusted server would add. The published "
    "bound for sums of discrete Gaussian shares (Kairouz, Liu & Steinke 2021) would give "
    "ε = {discrete_gaussians:.4g} in place of the ε above, which has a proof of its own "
    "(docs/secure-aggregation.md)."
)
ADVERSARY = (
    "a curious or active server together with up to {colluders} of the {sites} sites and all their "
    "clients, who see every published model."
)
ADVERSARY_ALONE = (
    "a curious or active server that no site helps, and all who see only the published models. "
    "A site that helps knows its own share of the noise."
)
NOT_HIDDEN = (
    "Secure aggregation does not protect against more colluding sites than stated, or sites "
    "that send invalid sums: every site is trusted to clip its clients' uploads. It assumes that "
    "X25519, HKDF-SHA256 and ChaCha20 are secure; a quantum computer would break X25519. No "
    "outside party has reviewed this protocol yet."
)
CHOOSING = (
    "Settings that were chosen by looking at results on these clients' data cost privacy that is "
    "not counted here; `pmtl privacy selection` says how much."
)
CHOOSING_MORE = (
    "Settings that were chosen by looking at results on these clients' data in any other way than "
    "the choice above cost privacy that is not counted here."
)
CHOSEN = (
    "How it was chosen: this run is the best of a random number of runs between {candidates} "
    "settings, and the ε above covers the choice; the run by itself is ε = {one_run:.4g}. "
    "{protocol}"
)
FINETUNED = (
    "Fine-tuning and choosing inside a client: free. Every client continued from the published "
    "models with its own rows only, and nothing was sent or published, so the run's guarantee also "
    "holds for the models after it. It does not cover a setting that was chosen for all clients by "
    "looking at the results of all clients."
)
EXPERIMENT = (
    "This was a seeded experiment: its noise can be computed again from the seed, and its metrics "
    "are exact. The guarantee describes the mechanism; it does not hold against anyone who knows "
    "the seed, or sees the metrics or the run's folder. Do not give these files to anyone from "
    "whom the clients must be protected."
)
ONE_SEED = (
    "This takes for granted that the cohorts of all runs are independent. Experiments with one "
    "seed draw their cohorts by the same coins, and together they cost more: give each run a seed "
    "of its own."
)
EXPERIMENT_IN_SHARES = (
    "This was an experiment: its metrics are exact, and the guarantee does not hold against "
    "anyone who sees them or the folder of a site. Do not give these files to anyone from whom "
    "the clients must be protected. The noise came from the operating systems of the sites and was "
    "not kept; the seed does not decide it."
)
PRODUCTION = (
    "This was a production run: cohorts and noise came from the operating system's generator and "
    "were not kept, and every release was written to the clients' ledger before it was made. Exact "
    "metrics were withheld; the metrics that are shown passed the gate. The run's folder has two "
    "parts. All of public/ may be handed out: the shared model (shared.safetensors), the plan and "
    "the public settings (plan.json), this statement (privacy.txt, privacy.json) and the released "
    "metrics (metrics.jsonl, metrics.csv). Nothing of private/ may: the clients' own models, their "
    "scalings, the checkpoint and the record of the run. Only the owner of the run can open it. "
    "Each client gets its own model only."
)


def hidden(report: Mapping[str, Any]) -> str:
    """What the server did not see, and ε against each adversary (`distributed.report`)."""
    count = report["colluders"]
    helpers = {
        0: "alone",
        1: "with 1 colluding site, which knows its own share,",
    }.get(count, f"with {count} colluding sites, which know their own shares,")
    return HIDDEN.format(**report, helpers=helpers)


def in_full(statement: Statement) -> str:
    """The whole statement as text."""
    paragraphs = [
        "PRIVACY STATEMENT",
        headline(statement),
        *formal(statement),
        *_table(statement),
        f"Who is protected: {statement.unit}",
        f"Against whom: {statement.adversary}",
        f"How it was reached: {mechanism(statement)}",
        *([] if statement.hidden is None else [hidden(statement.hidden)]),
        *([] if statement.chosen is None else [statement.chosen]),
        *population(statement),
        *([] if statement.afterwards is None else [statement.afterwards]),
        about_mode(statement),
        "What is not covered:",
    ]
    text = "\n\n".join(part if "\n" in part else textwrap.fill(part, 88) for part in paragraphs)
    items = [
        textwrap.fill(item, 88, initial_indent="- ", subsequent_indent="  ")
        for item in statement.not_covered
    ]
    return text + "\n" + "\n".join(items) + "\n"


def about_mode(statement: Statement) -> str:
    """What kind of run it was, and what may be handed out."""
    if statement.mode != "experiment":
        return PRODUCTION
    return EXPERIMENT if statement.hidden is None else EXPERIMENT_IN_SHARES


def headline(statement: Statement) -> str:
    """The number to quote, and an example of its meaning."""
    if statement.plan is None:
        return "ε = 0: every client trained alone, and no model used the rows of another client."
    if statement.epsilon is None:
        return f"ε was {statement.accountant}."
    if math.isinf(statement.epsilon):
        return "NOT PRIVATE: ε is infinite, because there was no noise or no clipping."
    run = f"ε = {statement.epsilon:.4g} at δ = {statement.delta:.3g}"
    quote = f"{run} for each client with all of its data: this is the number to quote."
    if statement.population_epsilon is not None:
        quote = (
            f"ε = {statement.population_epsilon:.4g} at δ = {statement.delta:.3g} for all runs on "
            "these clients together, for each client with all of its data: this is the number to "
            f"quote. For this run alone, ε = {statement.epsilon:.4g}."
        )
    return f"{quote} {example(statement)}".rstrip()


def example(statement: Statement) -> str:
    """What an attacker can find out at most; empty if that is not known."""
    if statement.attacker_right is None:
        return ""
    return (
        "Example: an attacker knows the data of all other clients, sees everything that "
        "this run published, and holds two data sets. One of them is a certain client's, and both "
        "are equally likely. When the attacker says which one it is, this is right at most "
        f"{percent(statement.attacker_right)} of the time. A blind guess is right 50% of the time."
    )


def formal(statement: Statement) -> list[str]:
    """The guarantee in the terms of differential privacy; empty if nothing is guaranteed."""
    epsilon, delta = statement.epsilon, statement.delta
    if statement.plan is None or epsilon is None or math.isinf(epsilon):
        return []
    return [
        "The formal guarantee: the published models and all personal models together are "
        f"(ε, δ)-billboard private with ε = {epsilon:.4g} and δ = {delta:.3g}. If one client's "
        "data set is replaced by any other, nothing that the adversary below can see becomes more "
        f"than e^ε = {math.exp(min(epsilon, 700.0)):.3g} times as likely. With a probability of at "
        f"most δ this may fail. {_about_delta(statement)}"
    ]


def _about_delta(statement: Statement) -> str:
    """A sentence about δ, because a large δ makes a guarantee meaningless."""
    clients = PrivacyPlan.from_dict(statement.plan or {}).clients
    if statement.delta >= 1 / clients:
        return (
            f"BEWARE OF δ: at 1/{clients} or more, a mechanism that publishes the data of one "
            "random client would satisfy this, too."
        )
    return (
        f"δ is below 1/{clients}: at 1/{clients}, even a mechanism that publishes the data of one "
        "random client would pass."
    )


def _table(statement: Statement) -> list[str]:
    """The guarantees as a table; empty if nothing is guaranteed."""
    guarantees = statement.guarantees
    if statement.attacker_right is None or not guarantees or math.isinf(guarantees[0].epsilon):
        return []
    lines = [
        "         δ   ε, replaced     ε, left out   hits at 1% false alarms",
        *(
            f"{g.delta:10.3g}   {g.epsilon:11.4g}   {g.zero_out:13.4g}   "
            f"{percent(g.attacker_hits):>23}"
            for g in guarantees
        ),
    ]
    meaning = (
        "Each line holds. The last column: an attacker looks for one certain data set, and may be "
        f"wrong in {FALSE_ALARMS:.0%} of the cases in which the client has another one. In at most "
        "this share of the cases in which the client has it, the attacker finds it. By itself, the "
        "first pair (ε, δ) would allow an attacker who has to choose between two data "
        f"sets to be right {percent(guarantees[0].attacker_right)} of the time; all pairs hold at "
        f"once, and together they give the {percent(statement.attacker_right)} above. "
        '"Left out" is the ε for leaving the client\'s data out instead of replacing it.'
    )
    return ["\n".join(lines), meaning]


def percent(chance: float) -> str:
    """A bound on a chance, in words."""
    return f"{math.ceil(1e4 * chance) / 100:.2f}%"  # a bound is rounded up


def mechanism(statement: Statement) -> str:
    """How the guarantee was reached."""
    if statement.plan is None:
        return "every client trained alone."
    plan = PrivacyPlan.from_dict(statement.plan)
    grid = ", in whole steps of a grid and drawn exactly" if statement.hardened else ""
    if statement.hidden is not None:
        grid += ", from the shares of all sites but those that may collude"
    metrics = ""
    if statement.metrics is not None:
        released = PrivacyPlan.from_dict(statement.metrics)
        metrics = (
            f" Average metrics of all clients were released {how_many(released.rounds, 'time')}, "
            f"with noise of standard deviation {released.noise_std:.4g} on an average accuracy "
            "(noise multiplier "
            f"{released.noise_multiplier:.4g}); they are paid for in the ε above."
        )
    rounds = how_many(plan.rounds, "round")
    if statement.releases is not None:
        rounds = f"{plan.rounds} releases of equal price ({statement.releases})"
    return (
        f"{rounds}; {plan.scheme.in_words(plan, statement.also)}; every upload clipped "
        f"to norm {plan.clip_norm:g}; noise of standard deviation {plan.noise_std:.6g} on the "
        f"average over {plan.cohort} (noise multiplier {plan.noise_multiplier:.4g}){grid}.{metrics}"
        f" Adjacency: {statement.adjacency}. Accountant: {statement.accountant}."
    )


def population(statement: Statement) -> list[str]:
    """What all runs on these clients cost together, if a ledger says so."""
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
    plan = None if statement.plan is None else PrivacyPlan.from_dict(statement.plan)
    if statement.mode == "experiment" and plan is not None and plan.rate < 1:
        sentence += f" {ONE_SEED}"
    return [sentence]
