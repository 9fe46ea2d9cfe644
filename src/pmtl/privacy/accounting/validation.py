"""Released metrics and their share of the budget.

Average metrics are functions of all clients' validation rows, so they pass the gate like models. A
client uploads a vector of c values, each bounded by a public number and shifted to [−½, ½]; its
norm is at most √c/2, and replacing one client moves the average over all m by at most √c/m. All
clients take part, and each release is charged (as a `GaussianEvent` of the kind "validation").

μ² adds up over Gaussian releases: metrics get a share of it (a tenth by default) and training gets
the rest, so that the ε of a run covers both.
"""

from __future__ import annotations

import math
from dataclasses import replace

from pmtl.errors import PmtlError
from pmtl.privacy.ledger.events import GaussianEvent
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.request import PrivacyRequest
from pmtl.privacy.sampling import FULL

KIND = "validation"


def evaluations(rounds: int, every: int) -> int:
    """How often a run is evaluated: every `every` rounds and at the end; `every` = 0 is never."""
    return 0 if every == 0 else -(-rounds // every)


def with_metrics(
    request: PrivacyRequest, clients: int, releases: int, values: int
) -> tuple[PrivacyPlan, PrivacyPlan | None]:
    """The plan for training, and the plan for `releases` of `values` metrics or None.

    A requested ε holds for both together. If the noise of training was given instead, the metrics
    get the same share of the whole.
    """
    share = 0.0 if request.metrics is None else request.metrics
    plan = request.resolve(clients)
    if not (share and releases and plan.private):
        return plan, None
    from pmtl.privacy.accounting import accountant, gaussian

    if request.noise is None:
        mu = gaussian.mu_for(request.target, plan.delta)
        whole = mu * mu
    else:
        cost = accountant.epsilon(plan)
        if math.isinf(cost):
            raise PmtlError(
                f"With noise of {request.noise:g}, epsilon is too large to be computed: use more "
                "noise, or 0 for no privacy."
            )
        mu = gaussian.mu_for(cost, plan.delta)
        whole = mu * mu / (1 - share)
    metrics = metrics_plan(clients, releases, values, share * whole, plan.delta)
    if request.noise is None:
        besides = {GaussianEvent.of(metrics, KIND): releases}
        noise = accountant.noise_for(plan, request.target, besides)
        plan = replace(plan, noise_std=noise)
    return plan, metrics


def metrics_plan(
    clients: int, releases: int, values: int, squared_mu: float, delta: float
) -> PrivacyPlan:
    """The plan for `releases` releases of `values` metrics that cost μ² in all (inf: no noise)."""
    clip_norm = math.sqrt(values) / 2
    if squared_mu < 1e-200:
        raise PmtlError(
            "The budget is so small that no metric could be released from it: use a larger epsilon "
            "or delta, or --metrics 0."
        )
    noise_multiplier = 2 * math.sqrt(releases / squared_mu)
    noise = noise_multiplier * clip_norm / clients
    return PrivacyPlan(clients, clients, FULL, clip_norm, noise, releases, delta)
