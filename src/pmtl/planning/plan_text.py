"""A plan as text and as TOML."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pmtl.errors import how_many
from pmtl.options import declared
from pmtl.planning import sizes
from pmtl.planning.payoff import ALONE, MODERATE, READABLE_VOTE_NOISE, SHARE
from pmtl.privacy.request import PrivacyRequest
from pmtl.views.run_view import epsilon_number

if TYPE_CHECKING:
    from pmtl.planning.advice import Plan

#: With fewer numbers for each row of a client, sharing can hardly improve its model.
_FEW_NUMBERS_PER_ROW = 0.02
_DEFAULT = " The default method ({}) needs neither rounds nor clip."


def recommendation(plan: Plan, method: str | None) -> str:
    """The advice, its reasons, and what would change it; `method` is the model's default one."""
    head = (
        f"With {how_many(plan.privacy.clients, 'client')} and "
        f"{how_many(plan.numbers, 'shared number')} at ε = {epsilon_number(plan.epsilon)}: "
    )
    if math.isinf(plan.epsilon):
        return (
            head
            + "there is no noise and no privacy. Whether sharing pays depends on the clients alone."
        )
    least = f"{plan.noise:.2g}"
    if plan.public_head and plan.share is not None and plan.advice != ALONE:
        shares = f"the default method ({method}) shares all of them. "
        if plan.in_use is not None:
            shares = (
                f"that is too many to share. The default method ({method}) shares a map of the "
                f"public head's answers instead, {plan.in_use:,} numbers; each client keeps its "
                "own weights. "
            )
        return head + shares + "That pays if the public head has the same errors for many clients."
    if plan.advice == SHARE:
        return head + (
            "expect sharing to pay if the clients have something in common. It pays where more "
            f"than {least} of an upload's norm is common to all clients."
            f"{_little(plan)}{'' if method is None else _DEFAULT.format(method)}"
        )
    if plan.advice != ALONE and plan.in_use is not None:
        return head + (
            f"that is far too many to share. The default method ({method}) shares {plan.in_use:,} "
            "of them, the weights of the columns and classes in most use. That pays where clients "
            f"use the same columns for the same classes, as with words. {_change(plan)}"
        )
    if plan.advice != ALONE:
        return head + (
            "sharing pays only if the clients are much alike: more than "
            f"{least} of an upload's norm has to be common to all. Otherwise training alone is as "
            f"good. {_change(plan)}"
        )
    reasons = []
    if plan.noise > 1:
        reasons.append(
            f"The noise is {least} times as long as the longest upload, so it hides even what all "
            "clients have in common."
        )
    if plan.vote is not None and plan.vote > READABLE_VOTE_NOISE:
        reasons.append(
            "There are too few clients to find out privately how strongly to share: the noise on "
            f"a vote is {plan.vote:.2g} times a client's vote, and {READABLE_VOTE_NOISE:.2g} would "
            "be good."
        )
    if plan.share == "intercepts" and not reasons:
        reasons.append(f"The default method ({method}) would share the intercepts only.")
    return " ".join([f"{head}expect training alone to be as good.", *reasons, _change(plan)])


def _little(plan: Plan) -> str:
    """A sentence if a client has too many rows for sharing to improve its model much."""
    if plan.to_win is None or plan.to_win > _FEW_NUMBERS_PER_ROW:
        return ""
    return (
        f" But there is little to win: a client has about {1 / plan.to_win:.0f} rows for each of "
        "its numbers, and does well alone."
    )


def _change(plan: Plan) -> str:
    """What would be needed for sharing to pay."""
    needs = []
    if plan.clients_needed is not None:
        needs.append(f"about {rounded(plan.clients_needed)} clients")
    if plan.epsilon_needed < 100:
        needs.append(f"ε = {plan.epsilon_needed:.2g}")
    fewer = [offer for offer in plan.offers if offer.numbers < plan.numbers]
    good = [offer for offer in fewer if offer.noise <= MODERATE]
    sentence = f"Sharing needs {' or '.join(needs)}." if needs else ""
    noisy_vote = plan.vote is not None and plan.vote > READABLE_VOTE_NOISE
    if good and plan.noise > MODERATE and not noisy_vote:
        names = " or ".join(f"{offer.name} ({offer.numbers:,})" for offer in good)
        sentence += (
            f" Or share fewer numbers: {names}. What clients have in common has to lie in them; "
            "they learn the rest alone, so begin with public weights."
        )
    return sentence.strip()


def full_text(plan: Plan) -> str:
    """All of a plan, for people."""
    privacy = plan.privacy
    lines = [
        plan.recommendation,
        "",
        f"{'the noise of the whole run / clip':<42}{plan.noise:>12.3g}",
        f"{'the noise of one round / clip':<42}{plan.round_noise:>12.3g}",
        f"{'the standard deviation of a coordinate':<42}{privacy.noise_std:>12.3g}",
    ]
    if plan.vote is not None:
        lines.append(f"{'the noise of a vote / a vote':<42}{plan.vote:>12.3g}")
    if plan.to_win is not None:
        lines.append(f"{'shared numbers / rows of a client':<42}{plan.to_win:>12.3g}")
    lines += ["", f"{'common to all clients (ρ)':<30}shared numbers that pay"]
    lines += [f"{agreement:<30g}{rounded(most)}" for agreement, most in plan.pays.items()]
    lines += ["", f"{'what could be shared':<30}{'numbers':>14}   pays where ρ is above"]
    for offer in plan.offers:
        above = f"{offer.noise:.2g}" if offer.noise <= 1 else "never"
        lines.append(f"{offer.name:<30}{offer.numbers:>14,}   {above}")
    return "\n".join(lines)


def toml(plan: Plan, request: PrivacyRequest, model: str | None, method: str | None) -> str:
    """The settings that the advice suggests, for `pmtl train --config`. They name no algorithm: the
    default method has its own rounds and clip. Algorithm 1 is named where settings of its rounds
    were asked for."""
    import tomli_w  # Only this needs it.

    settings: dict[str, Any] = {} if model is None else {"model": model}
    asked = {name: getattr(request, name) for name in declared(PrivacyRequest)}
    asked |= {"epsilon": plan.epsilon, "noise": None}
    if plan.advice == ALONE:
        settings["algorithm"] = "local"
    elif by_rounds(request):
        settings["algorithm"] = "pmtl"
        asked |= {"rounds": plan.privacy.rounds, "clip": plan.privacy.clip_norm}
    smaller = [
        offer.name
        for offer in plan.offers
        if offer.noise <= MODERATE and offer.name not in (sizes.ALL, sizes.MOMENTS)
    ]
    if (
        (by_rounds(request) or method != "pooling")
        and plan.advice not in (SHARE, ALONE)
        and smaller
    ):
        settings["share"] = smaller[0]
    settings["privacy"] = {name: value for name, value in asked.items() if value is not None}
    first_sentence = plan.recommendation.partition(". ")[0].rstrip(".")
    lines = [f"# {first_sentence}."]
    if plan.public_head:
        lines.append("# Add the public weights and what is frozen: init = FILE, frozen = PATTERN.")
    return "\n".join([*lines, tomli_w.dumps(settings)])


def by_rounds(request: PrivacyRequest) -> bool:
    """Whether settings of Algorithm 1's rounds were asked for, so that it is trained."""
    named = (request.rounds, request.clip, request.cohort, request.sampling)
    return any(value is not None for value in named)


def rounded(value: float) -> str:
    """A number that is only known roughly, with three digits."""
    if math.isinf(value):
        return "any number"
    whole = math.floor(value)
    digits = max(0, len(str(whole)) - 3)
    return f"{whole // 10**digits * 10**digits:,}"
