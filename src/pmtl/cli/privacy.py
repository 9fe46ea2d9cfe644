"""`pmtl privacy`: what a mechanism costs, before anything is trained.

Three questions about the same plan, each leaving out what it asks for: which ε, how much noise, how
many rounds; and a fourth, what it costs to run it several times and keep the best. Nothing here
touches data or a model, and the accountants are imported only when a command runs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from pmtl.cli.privacy_text import print_choice, print_plan
from pmtl.errors import PmtlError
from pmtl.jsontext import to_json

if TYPE_CHECKING:
    from pmtl.privacy.plan import PrivacyPlan

T = TypeVar("T")

app = typer.Typer(
    help="What a plan costs in privacy: its ε, the noise for an ε, the rounds an ε leaves, and "
    "choosing between runs.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Clients = Annotated[int | None, typer.Option(help="m: how many clients the federation has.")]
Cohort = Annotated[
    int | None, typer.Option(help="q: clients per round, and the divisor. [default: everybody]")
]
Sampling = Annotated[
    str | None,
    typer.Option(
        help="full, poisson (a coin per client), fixed (exactly q, as in the paper) or a scheme of "
        "your own (package.module:Name). "
        "[default: full if the cohort is everybody, else poisson]"
    ),
]
Clip = Annotated[
    float | None,
    typer.Option(
        help="γ: the largest norm of one client's upload, or inf. [default: 0.5, as in training]"
    ),
]
Noise = Annotated[
    float | None,
    typer.Option(help="σ: the noise's standard deviation on the average over q clients."),
]
Rounds = Annotated[int | None, typer.Option(help="T: how many noisy averages are published.")]
Delta = Annotated[float | None, typer.Option(help="δ. [default: 1/(10m)]")]
Epsilon = Annotated[float | None, typer.Option(help="The ε to keep.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


@app.command()
def epsilon(
    clients: Clients = None,
    cohort: Cohort = None,
    sampling: Sampling = None,
    clip: Clip = None,
    noise: Noise = None,
    rounds: Rounds = None,
    delta: Delta = None,
    as_json: Json = False,
) -> None:
    """Which ε does this plan guarantee?

    Replacing one client's whole data set by any other, against all other clients together.

    Example: pmtl privacy epsilon --clients 205 --cohort 100 --noise 0.05 --rounds 100
    """
    noise = _needed(noise, "--noise", "pmtl privacy noise finds it for an ε")
    plan = _plan(clients, cohort, sampling, clip, noise, rounds, delta)
    _show({}, plan, as_json)


@app.command()
def noise(
    clients: Clients = None,
    epsilon: Epsilon = None,
    cohort: Cohort = None,
    sampling: Sampling = None,
    clip: Clip = None,
    rounds: Rounds = None,
    delta: Delta = None,
    as_json: Json = False,
) -> None:
    """How much noise keeps this ε?

    The smallest standard deviation on the average over q clients, to 0.1%, on the safe side.

    Example: pmtl privacy noise --epsilon 2 --clients 205 --rounds 50
    """
    from dataclasses import replace

    from pmtl.privacy.accounting import accountant

    target = _needed(epsilon, "--epsilon", "pmtl privacy epsilon finds it for a noise")
    plan = _plan(clients, cohort, sampling, clip, 0.0, rounds, delta)
    found = accountant.noise_for(plan, target)
    _show({"noise": found}, replace(plan, noise_std=found), as_json)


@app.command()
def rounds(
    clients: Clients = None,
    epsilon: Epsilon = None,
    cohort: Cohort = None,
    sampling: Sampling = None,
    clip: Clip = None,
    noise: Noise = None,
    delta: Delta = None,
    as_json: Json = False,
) -> None:
    """How many rounds does this ε leave?

    The largest number (up to a million) whose total stays within it.

    Example: pmtl privacy rounds --epsilon 2 --noise 0.05 --clients 205 --cohort 100
    """
    from dataclasses import replace

    from pmtl.privacy.accounting import accountant

    target = _needed(epsilon, "--epsilon", "pmtl privacy epsilon finds it for given rounds")
    noise = _needed(noise, "--noise", "pmtl privacy noise finds it for an ε")
    plan = _plan(clients, cohort, sampling, clip, noise, 1, delta)
    if math.isinf(target):
        raise PmtlError(
            "An infinite epsilon allows any number of rounds: give a finite --epsilon instead."
        )
    found = accountant.rounds_for(plan, target)
    if found == 0:
        once = accountant.epsilon(plan)
        raise PmtlError(
            f"Not even one round fits: with noise {plan.noise_std:g} a single round costs epsilon "
            f"{once:.4g}, and {target:g} was allowed. Add noise, or allow a larger epsilon."
        )
    _show({"rounds": found}, replace(plan, rounds=found), as_json)


@app.command()
def selection(
    candidates: Annotated[
        int | None, typer.Option(help="How many settings compete; seeds are no settings.")
    ] = None,
    clients: Clients = None,
    epsilon: Annotated[
        float | None, typer.Option(help="The ε of one run; instead of --noise.")
    ] = None,
    cohort: Cohort = None,
    sampling: Sampling = None,
    clip: Clip = None,
    noise: Noise = None,
    rounds: Rounds = None,
    delta: Delta = None,
    as_json: Json = False,
) -> None:
    """What does it cost to run several settings and keep the best?

    Each run is this plan and one noisy release of its validation score.

    Example: pmtl privacy selection --candidates 10 --epsilon 2 --clients 205 --rounds 50
    """
    from pmtl.privacy.accounting import selection as choosing

    count = _needed(candidates, "--candidates", "how many settings compete")
    if epsilon is None:
        noise = _needed(noise, "--noise", "or --epsilon, for the noise that one run's ε needs")
    plan = _plan(clients, cohort, sampling, clip, noise, rounds, delta, epsilon)
    report = choosing.report(plan, count)
    if as_json:
        print(to_json(report | _values(plan)))
        return
    print_choice(plan, report)


def _needed(value: T | None, option: str, hint: str) -> T:
    if value is None:
        raise PmtlError(f"The option {option} is missing: give it a value ({hint}).")
    return value


def _plan(
    clients: int | None,
    cohort: int | None,
    sampling: str | None,
    clip: float | None,
    noise: float | None,
    rounds: int | None,
    delta: float | None,
    epsilon: float | None = None,
) -> PrivacyPlan:
    from pmtl.privacy.plan import DEFAULT_CLIP, PrivacyRequest

    clients = _needed(clients, "--clients", "how many clients the federation has")
    rounds = _needed(rounds, "--rounds", "pmtl privacy rounds finds how many an ε leaves")
    return PrivacyRequest(
        epsilon=epsilon,
        noise=noise,
        delta=delta,
        clip=DEFAULT_CLIP if clip is None else clip,
        sampling=sampling,
        cohort=cohort,
        rounds=rounds,
    ).resolve(clients)


def _values(plan: PrivacyPlan) -> dict[str, Any]:
    """The plan in the words of the options."""
    values = {"clients": plan.clients, "cohort": plan.cohort, "clip": plan.clip_norm}
    return values | {"noise": plan.noise_std, "rounds": plan.rounds}


def _show(answer: dict[str, Any], plan: PrivacyPlan, as_json: bool) -> None:
    """`answer` (what was searched for) and the whole report of the plan that it leads to."""
    from pmtl.privacy.accounting import accountant

    report = accountant.report(plan)
    if as_json:
        print(to_json(answer | report | _values(plan)))
        return
    print_plan(answer, plan, report)
