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
from pmtl.errors import PmtlError
from pmtl.planning.plan_text import epsilon_text
from pmtl.privacy.plan import PrivacyPlan, PrivacyRequest

app = typer.Typer(
    help="What a plan costs in privacy: its ε, the noise for an ε, the rounds an ε leaves, and "
    "choosing between runs.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Rounds = Annotated[int | None, typer.Option(help="T: the number of published noisy averages.")]
Epsilon = Annotated[float | None, typer.Option(help="The ε to keep.")]

#: How to find the value of an option that a command needs.
_HINTS = {
    "candidates": "how many settings compete",
    "clients": "how many clients the federation has",
    "epsilon": "pmtl privacy epsilon finds it for a plan",
    "noise": "pmtl privacy noise finds it for an ε",
    "rounds": "pmtl privacy rounds finds how many an ε leaves",
}
#: Settings of a request that no command needs, or that are declared here.
_OTHER = ("epsilon", "rounds", "hardened", "metrics", "loss_bound")


@app.command()
@opt.with_settings(*_OTHER, kind=PrivacyRequest)
def epsilon(
    clients: opt.Clients = None, rounds: Rounds = None, as_json: opt.AsJson = False, **plan: Any
) -> None:
    """Which ε does this plan guarantee?

    ε is for replacing one client's whole data by any other, against all other clients together.

    Example: pmtl privacy epsilon --clients 205 --cohort 100 --noise 0.05 --rounds 100
    """
    _require(noise=plan["noise"])
    _show({}, _plan(clients, rounds, plan), as_json)


@app.command()
@opt.with_settings(*_OTHER, "noise", kind=PrivacyRequest)
def noise(
    clients: opt.Clients = None,
    epsilon: Epsilon = None,
    rounds: Rounds = None,
    as_json: opt.AsJson = False,
    **plan: Any,
) -> None:
    """How much noise does this ε need?

    The smallest standard deviation on the average over q clients, rounded up by at most 0.1%.

    Example: pmtl privacy noise --epsilon 2 --clients 205 --rounds 50
    """
    _require(epsilon=epsilon)
    found = _plan(clients, rounds, plan | {"epsilon": epsilon})
    _show({"noise": found.noise_std}, found, as_json)


@app.command()
@opt.with_settings(*_OTHER, kind=PrivacyRequest)
def rounds(
    clients: opt.Clients = None, epsilon: Epsilon = None, as_json: opt.AsJson = False, **plan: Any
) -> None:
    """How many rounds does this ε allow?

    The largest number, up to a million, whose total cost does not exceed it.

    Example: pmtl privacy rounds --epsilon 2 --noise 0.05 --clients 205 --cohort 100
    """
    from pmtl.privacy.accounting import accountant

    _require(epsilon=epsilon, noise=plan["noise"])
    once = _plan(clients, 1, plan)
    target = float(epsilon or 0.0)
    if math.isinf(target):
        raise PmtlError(
            "An infinite epsilon allows any number of rounds: give a finite --epsilon instead."
        )
    found = accountant.rounds_for(once, target)
    if found == 0:
        raise PmtlError(
            f"Not even one round fits: with noise {once.noise_std:g} a single round costs epsilon "
            f"{once.epsilon():.4g}, and {target:g} was allowed. Add noise, or allow a larger "
            "epsilon."
        )
    _show({"rounds": found}, replace(once, rounds=found), as_json)


@app.command()
@opt.with_settings(*_OTHER, kind=PrivacyRequest)
def selection(
    candidates: int | None = opt.optional("The number of settings; seeds do not count."),
    clients: opt.Clients = None,
    epsilon: float | None = opt.optional("The ε of one run; instead of --noise."),
    rounds: Rounds = None,
    as_json: opt.AsJson = False,
    **plan: Any,
) -> None:
    """What does it cost to run several settings and keep the best?

    Each run is this plan and one noisy release of its validation score.

    Example: pmtl privacy selection --candidates 10 --epsilon 2 --clients 205 --rounds 50
    """
    from pmtl.privacy.accounting import selection as choosing

    _require(candidates=candidates, noise=plan["noise"] if epsilon is None else epsilon)
    each = _plan(clients, rounds, plan | {"epsilon": epsilon})
    report = choosing.report(each, int(candidates or 0))
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


def _require(**options: Any) -> None:
    """Refuse a command if one of these options is not given."""
    for name, value in options.items():
        if value is None:
            raise PmtlError(f"The option --{name} is missing: give it a value ({_HINTS[name]}).")


def _plan(clients: int | None, rounds: int | None, plan: Mapping[str, Any]) -> PrivacyPlan:
    _require(clients=clients, rounds=rounds)
    request = PrivacyRequest(**opt.given(plan), rounds=int(rounds or 0))
    return request.resolve(int(clients or 0))


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
        (label, "–" if value is None else epsilon_text(value)) for label, value in rows.items()
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
        f"concluded from {plan.rounds} published models by a factor of at most {factor}, except "
        f"with probability {plan.delta:.3g}. This holds against {holds_against}."
    )


def _no_guarantee(plan: PrivacyPlan) -> str:
    missing = "noise" if math.isfinite(plan.clip_norm) else "clipping"
    return f"Without {missing} nothing is guaranteed: ε is infinite."
