"""`pmtl.plan`: whether sharing can be expected to pay, before any budget is spent.

It uses only public numbers: clients, shared numbers, ε, δ, rounds, cohort. No row is read. The
arithmetic is in `payoff.py`; so are the two limits that turn it into advice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pmtl.errors import PmtlError
from pmtl.linear_sharing import LinearSizes
from pmtl.options import declared, option, takes_settings
from pmtl.planning import payoff, plan_text, sizes
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.request import PrivacyRequest
from pmtl.runs.config import TrainConfig, privacy_of
from pmtl.spec import explain_wrong_calls

#: The values of ρ for which `pays` has the most shared numbers that pay.
AGREEMENTS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
#: With this many rows a client can choose by itself, without a vote and without any cost.
MANY_ROWS = 100


_MODELS = ", ".join(f"{{{name}}}" for name in declared(TrainConfig)["model"].about.names)


@dataclass(frozen=True)
class Question:
    """What `plan` is asked, beside the number of clients."""

    parameters: int | None = option(
        None, help="d: how many numbers leave a client; or give columns."
    )
    model: str = option(
        TrainConfig.model, help=f"A model of the library ({_MODELS}); its parameters are counted."
    )
    columns: int | None = option(None, help="How many numbers a row has.")
    classes: int = option(1, help="Outputs of the model: classes or labels, 1 for a number.")
    rows: int | None = option(None, help="A public guess at the rows of a typical client.")
    public_head: bool = option(
        False, help="Only the last layer is trained, from public weights (init, frozen)."
    )
    privacy: PrivacyRequest = field(default_factory=PrivacyRequest, metadata={"panel": "Privacy"})


@dataclass(frozen=True)
class Offer:
    """A part of a model that could be shared."""

    name: str  #: all, head, biases, subspace:k=K, or second moments
    numbers: int  #: how many numbers leave a client
    noise: float  #: the norm of their noise over the clip; sharing pays where ρ is above it


@dataclass(frozen=True)
class Plan:
    """What public numbers predict about a run. `str(plan)` is the text of `pmtl plan`."""

    privacy: PrivacyPlan  #: clients, cohort, clip, rounds, δ, and the noise that ε needs
    epsilon: float  #: ε of the whole run
    numbers: int  #: d, how many numbers leave a client
    noise: float  #: the norm of the whole run's noise over the clip: the ρ from which sharing pays
    round_noise: float  #: the norm of one round's noise over the clip
    pays: Mapping[float, float]  #: the most shared numbers that pay, by ρ
    vote: float | None  #: the noise on a vote over the norm of a vote; None if none is needed
    clients_needed: int | None  #: about how many clients make the noise moderate; None: no number
    epsilon_needed: float  #: the ε that makes the noise moderate
    offers: tuple[Offer, ...]  #: what could be shared instead, the largest first
    rows: int | None  #: rows of a typical client, if given
    to_win: float | None  #: d/rows: about the share of the error that few rows cause, if given
    advice: str  #: share, depends (on how much is common to all clients) or alone
    #: What pooling shares: all, answers (of a public head), frequent or intercepts; None: networks
    share: str | None
    in_use: int | None  #: how many numbers `share` has, unless it is all
    public_head: bool  #: whether only the last layer is trained, from public weights
    recommendation: str  #: the advice as text, with its reasons
    toml: str  #: the settings for `pmtl train --config`

    def to_dict(self) -> dict[str, Any]:
        """The plan for JSON."""
        pays = {f"{agreement:g}": most for agreement, most in self.pays.items()}
        return asdict(self) | {"privacy": self.privacy.to_dict(), "pays": pays}

    def __str__(self) -> str:
        return plan_text.full_text(self)


@explain_wrong_calls(privacy=PrivacyRequest)
@takes_settings(Question)
def plan(
    clients: int,
    parameters: int | None = Question.parameters,
    *,
    privacy: PrivacyRequest | Mapping[str, Any] | float | None = None,
    **settings: Any,
) -> Plan:
    """Say whether sharing can be expected to pay, from public numbers alone.

    Args:
        clients: m, how many clients the federation has.
        privacy: the privacy that is asked for, as in `pmtl.train`: an ε, or the fields of
            `PrivacyRequest`.
        **settings: fields of `Question`, which `help(pmtl.plan)` lists.
    """
    asked = Question(parameters, **settings, privacy=privacy_of(privacy))
    model, columns, classes = asked.model, asked.columns, asked.classes
    rows, public_head, request = asked.rows, asked.public_head, asked.privacy
    parts = _parts(parameters, model, columns, classes)
    if public_head:
        if columns is None or classes < 2:
            raise PmtlError(
                "A public head needs --columns and --classes: it has the weights of the model's "
                "last layer, and counts for classes and labels only."
            )
        parts = sizes.Parts(parts.head, parts.head, classes)
    if rows is not None:
        sizes.check_count(rows, "rows")
    resolved = request.resolve(clients)
    epsilon = request.target if request.noise is None else resolved.epsilon()
    votes = rows is None or rows < MANY_ROWS

    noise = payoff.noise_ratio(resolved, parts.all)
    vote = payoff.vote_ratio(resolved, epsilon) if votes else 0.0
    excess = max(noise / payoff.MODERATE, vote / payoff.READABLE_VOTE_NOISE)
    needed = [payoff.epsilon_for(resolved, parts.all, payoff.MODERATE)]
    if votes:
        needed.append(payoff.vote_epsilon(resolved, payoff.READABLE_VOTE_NOISE))
    method = None
    if columns is not None and not (public_head and plan_text.by_rounds(request)):
        method = "pooling" if public_head or sizes.is_linear(model) else "anchored"
    share, in_use, advice = None, None, payoff.advice(noise, vote)
    if method == "pooling":
        strength = payoff.strength(resolved, epsilon)
        linear = LinearSizes(parts.head // classes, classes, classes > 1, public_head)
        share = linear.what_to_share(strength)
        if share == "intercepts":
            advice = payoff.ALONE
        elif vote <= payoff.READABLE_VOTE_NOISE and (public_head or share != "all"):
            shared = linear.numbers(share, strength)
            in_use = shared if share != "all" else None
            noisy = payoff.noise_ratio(resolved, shared) > payoff.MODERATE
            advice = payoff.DEPENDS if noisy else payoff.SHARE
    found = Plan(
        privacy=resolved,
        epsilon=epsilon,
        numbers=parts.all,
        noise=noise,
        round_noise=noise * math.sqrt(resolved.rounds),
        pays={
            agreement: payoff.max_shared_numbers(resolved, agreement) for agreement in AGREEMENTS
        },
        vote=vote if votes else None,
        clients_needed=payoff.clients_for(
            resolved, epsilon, excess, fixed=request.delta is not None
        ),
        epsilon_needed=max(needed),
        offers=_offers(parts, resolved),
        rows=rows,
        to_win=None if rows is None else parts.all / rows,
        advice=advice,
        share=share,
        in_use=in_use,
        public_head=public_head,
        recommendation="",
        toml="",
    )
    found = replace(found, recommendation=plan_text.recommendation(found, method))
    named = None if columns is None else model
    return replace(found, toml=plan_text.toml(found, request, named, method))


def _parts(parameters: int | None, model: str, columns: int | None, classes: int) -> sizes.Parts:
    if parameters is None and columns is None:
        raise PmtlError(
            "How many numbers are shared is missing: give --parameters, or --columns (with --model "
            "and --classes)."
        )
    if parameters is not None and columns is not None:
        raise PmtlError(
            "Both parameters and columns were given, but the columns determine the parameters: "
            "give one of them."
        )
    if columns is not None:
        return sizes.parts_of(model, columns, classes)
    return sizes.Parts(sizes.check_count(parameters, "parameters"), 0, 0)


def _offers(parts: sizes.Parts, privacy: PrivacyPlan) -> tuple[Offer, ...]:
    """All of a model, and its parts, the largest first; a subspace as large as the noise allows."""
    counts = {sizes.ALL: parts.all, sizes.HEAD: parts.head, sizes.BIASES: parts.biases}
    if parts.moments is not None:
        counts[sizes.MOMENTS] = parts.moments
    fits = payoff.max_shared_numbers(privacy, payoff.MODERATE)
    if 1 <= fits < parts.all:
        counts[f"subspace:k={int(fits)}"] = int(fits)
    smaller = {
        name: count
        for name, count in counts.items()
        if name in (sizes.ALL, sizes.MOMENTS) or 0 < count < parts.all
    }
    offers = [Offer(name, n, payoff.noise_ratio(privacy, n)) for name, n in smaller.items()]
    return tuple(sorted(offers, key=lambda offer: -offer.numbers))
