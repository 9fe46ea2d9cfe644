"""`pmtl privacy`: what a plan costs, before anything is trained.

Three commands find the ε, the noise or the rounds of a plan from the other two; a fourth finds the
cost of several runs of which the best is kept. They need neither data nor a model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import typer

from pmtl.cli import options as opt
from pmtl.errors import PmtlError, how_many
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.request import PrivacyRequest
from pmtl.views.run_view import epsilon_number

app = typer.Typer(
    help="What a plan costs in privacy: its ε, the noise for an ε, the rounds an ε leaves, and "
    "choosing between runs.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_ROUNDS = "T: the number of published noisy averages (pmtl privacy rounds finds it for an ε)."
_NOISE = "σ: the noise's standard deviation on the average (pmtl privacy noise finds it for an ε)."
Rounds = Annotated[int, typer.Option(help=_ROUNDS)]
Noise = Annotated[float, typer.Option(help=_NOISE)]
Epsilon = Annotated[
    float, typer.Option(help="The ε to keep (pmtl privacy epsilon finds that of a plan).")
]
#: Settings of a request that no command needs, or that are declared here.
_OTHER = ("epsilon", "rounds", "hardened", "metrics", "loss_bound")


@app.command()
@opt.with_settings(*_OTHER, "noise", kind=PrivacyRequest)
def epsilon(
    clients: opt.Clients, noise: Noise, rounds: Rounds, as_json: opt.AsJson = False, **plan: Any
) -> None:
    """Which ε does this plan guarantee?

    ε is for replacing one client's whole data by any other, against all other clients together.

    Example: pmtl privacy epsilon --clients 205 --cohort 100 --noise 0.05 --rounds 100
    """
    _show({}, _plan(clients, rounds, plan | {"noise": noise}), as_json)


@app.command()
@opt.with_settings(*_OTHER, "noise", kind=PrivacyRequest)
def noise(
    clients: opt.Clients, epsilon: Epsilon, rounds: Rounds, as_json: opt.AsJson = False, **plan: Any
) -> None:
    """How much noise does this ε need?

    The smallest standard deviation on the average over q clients, rounded up by at most 0.1%.

    Example: pmtl privacy noise --epsilon 2 --clients 205 --rounds 50
    """
    found = _plan(clients, rounds, plan | {"epsilon": epsilon})
    _show({"noise": found.noise_std}, found, as_json)


@app.command()
@opt.with_settings(*_OTHER, "noise", kind=PrivacyRequest)
def rounds(
    clients: opt.Clients, epsilon: Epsilon, noise: Noise, as_json: opt.AsJson = False, **plan: Any
) -> None:
    """How many rounds does this ε allow?

    The largest number, up to a million, whose total cost does not exceed it.

    Example: pmtl privacy rounds --epsilon 2 --noise 0.05 --clients 205 --cohort 100
    """
    from pmtl.privacy.accounting import accountant

    once = _plan(clients, 1, plan | {"noise": noise})
    if math.isinf(epsilon):
        raise PmtlError(
            "An infinite epsilon allows any number of rounds: give a finite --epsilon instead."
        )
    found = accountant.rounds_for(once, epsilon)
    if found == 0:
        raise PmtlError(
            f"Not even one round fits: with noise {once.noise_std:g} a single round costs epsilon "
            f"{once.epsilon():.4g}, and {epsilon:g} was allowed. Add noise, or allow a larger "
            "epsilon."
        )
    _show({"rounds": found}, replace(once, rounds=found), as_json)


@app.command()
@opt.with_settings(*_OTHER, kind=PrivacyRequest)
def selection(
    clients: opt.Clients,
    rounds: Rounds,
    candidates: int = typer.Option(..., help="The number of settings; seeds do not count."),
    epsilon: float | None = opt.optional("The ε of one run; instead of --noise."),
    as_json: opt.AsJson = False,
    **plan: Any,
) -> None:
    """What does it cost to run several settings and keep the best?

    Each run is this plan and one noisy release of its validation score.

    Example: pmtl privacy selection --candidates 10 --epsilon 2 --clients 205 --rounds 50
    """
    from pmtl.privacy.accounting import selection as choosing

    if epsilon is None and plan["noise"] is None:
        raise PmtlError("The option --noise is missing: give a value of it, or of --epsilon.")
    each = _plan(clients, rounds, plan | {"epsilon": epsilon})
    report = choosing.report({each: candidates})
    if as_json:
        opt.print_json(report | _values(each))
        return
    rows = {
        "one run, with a setting that was fixed before": report["one_run"],
        "one run and its validation score": report["one_run_with_score"],
    }
    if candidates == 1:
        _print(each, "published", rows, ["With one candidate there is no choice and no score."])
        return
    best = f"the best of {candidates} runs on average, if the others stay secret"
    rows |= {best: report["publish_best"], f"all {candidates} runs": report["publish_all"]}
    _print(each, "published", rows, [report["protocol"] if each.private else _no_guarantee(each)])


def _plan(clients: int, rounds: int, plan: Mapping[str, Any]) -> PrivacyPlan:
    return PrivacyRequest(**opt.given(plan), rounds=rounds).resolve(clients)


def _values(plan: PrivacyPlan) -> dict[str, Any]:
    values = {"clients": plan.clients, "cohort": plan.cohort, "clip": plan.clip_norm}
    return values | {"noise": plan.noise_std, "rounds": plan.rounds}


_LABELS = {
    "zero_out": "a client left out instead of replaced",
    "authors": "the authors' code (Rényi, Poisson, add or remove)",
    "full_participation": "all clients in every round, same noise",
    "paper_theorem_1": "the paper's Theorem 1, all clients in every round",
}


def _show(answer: dict[str, Any], plan: PrivacyPlan, as_json: bool) -> None:
    """Print the `answer` to the question, the plan's ε, and other numbers for comparison."""
    from pmtl.privacy.accounting import accountant

    report = accountant.report(plan)
    if as_json:
        opt.print_json(answer | report | _values(plan))
        return
    also, labels = report["also"], plan.scheme.labels
    for name, value in answer.items():
        print(f"{name}: {value:.6g}" if isinstance(value, float) else f"{name}: {value}")
    rows = {"this plan (the number that holds)": report["epsilon"]}
    reason = also.pop("paper_theorem_1_reason", None)
    rows |= {labels.get(key, key): value for key, value in also.items() if key not in _LABELS}
    rows |= {label: also[key] for key, label in _LABELS.items()}
    sentences = [_meaning(plan, report["epsilon"], report["holds_against"])]
    if reason is not None:
        sentences.insert(0, f"The paper's Theorem 1 does not apply here: {reason}.")
    _print(plan, "counted as", rows, sentences)


def _print(
    plan: PrivacyPlan, what: str, rows: Mapping[str, float | None], sentences: list[str]
) -> None:
    cells = [
        (label, "–" if value is None else epsilon_number(value)) for label, value in rows.items()
    ]
    opt.print_table(f"ε at δ = {plan.delta:.4g}", (what, "ε"), cells)
    for sentence in sentences:
        opt.console().print(sentence)


def _meaning(plan: PrivacyPlan, epsilon: float, holds_against: str) -> str:
    if math.isinf(epsilon):
        return _no_guarantee(plan)
    factor = f"{math.exp(epsilon):.3g}" if epsilon < 20 else f"e^{epsilon:.0f}, almost no guarantee"
    return (
        "Replacing one client's whole data by any other changes the odds of anything that can be "
        f"concluded from {how_many(plan.rounds, 'published model')} by a factor of at most "
        f"{factor}, except with probability {plan.delta:.3g}. This holds against {holds_against}."
    )


def _no_guarantee(plan: PrivacyPlan) -> str:
    missing = "noise" if math.isfinite(plan.clip_norm) else "clipping"
    return f"Without {missing} nothing is guaranteed: ε is infinite."
