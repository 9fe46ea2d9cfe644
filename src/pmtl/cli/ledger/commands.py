"""`pmtl ledger`: what all runs together have spent on each client.

Only reading the names of clients (`create`, `clients`) and a run's folder (`charge`) import torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from shlex import quote
from typing import Annotated

import typer

from pmtl.cli import options as opt
from pmtl.cli.ledger.text import accounts_of, print_summary, summary_of
from pmtl.errors import PmtlError, how_many
from pmtl.options import declared
from pmtl.privacy.request import PrivacyRequest
from pmtl.views.run_view import epsilon_number

app = typer.Typer(
    help="What all runs on the same clients have spent together, and how much they may spend.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Path = Annotated[str, typer.Argument(metavar="PATH", help="The ledger, a file.")]
Delta = Annotated[float | None, opt.typer_option(declared(PrivacyRequest)["delta"])]
Data = Annotated[
    str, typer.Option(metavar="SPEC", help="The federation of its clients, as in pmtl train.")
]


@app.command()
def create(
    path: Path,
    data: Data,
    client_column: opt.ClientColumn = None,
    target: opt.Target = None,
    schema: opt.SchemaFile = None,
    as_json: opt.AsJson = False,
) -> None:
    """Make a ledger for the clients in the data.

    It keeps the names of the clients, which are public, and an account for each. Clients may join
    and leave later: a run charges the clients it could sample. All runs on the same clients must
    share one ledger: two ledgers would each have only a part of what was spent.

    Two more files are PATH.head (the newest entry, so that restoring an old copy is noticed) and
    PATH.lock. Keep and move PATH and PATH.head together.

    Example: pmtl ledger create clinics.ledger --data clinics.csv:client=site,target=y
    """
    from pmtl.privacy.ledger.ledger import Ledger

    with Ledger.create(path, _names(data, client_column, target, schema)) as ledger:
        for sentence in ledger.notices():
            opt.warn(sentence)
        opt.answer(
            as_json,
            {"ledger": str(ledger.path), "clients": ledger.clients},
            f"{ledger.path} is the ledger of {how_many(ledger.clients, 'client')}. Nothing is "
            f"spent yet; set a limit with: pmtl ledger cap {quote(str(path))} --epsilon 2",
        )


@app.command()
def clients(
    path: Path,
    data: Data,
    client_column: opt.ClientColumn = None,
    target: opt.Target = None,
    as_json: opt.AsJson = False,
) -> None:
    """Make the clients in the data the present clients of a ledger.

    A run does this itself with its first charge. A ledger of pmtl 0.1 has only a digest of the
    names: give the data it was made for, once, and it can then be used for other clients, too.
    Accounts do not change.

    Example: pmtl ledger clients clinics.ledger --data clinics.csv:client=site,target=y
    """
    from pmtl.privacy.ledger.ledger import Ledger

    with Ledger.open(path, _names(data, client_column, target)) as ledger:
        joined, left = ledger.changes()
        for sentence in ledger.notices():
            opt.warn(sentence)
        ledger.name_clients()
        known = {"ledger": str(ledger.path), "clients": ledger.clients}
        now = f"{ledger.path} now has {how_many(ledger.clients, 'client')}"
        changed = f"{joined} joined, {left} left."
        opt.answer(as_json, known | {"joined": joined, "left": left}, f"{now}: {changed}")


@app.command()
def charge(
    path: Path,
    run: str = typer.Option(..., metavar="FOLDER", help="The folder of the run."),
    as_json: opt.AsJson = False,
) -> None:
    """Charge what a run published and the ledger lacks.

    A ledger that was lost, made again or restored from an old copy lacks charges, and runs with it
    are refused. This charges every published round and every released metric that is missing,
    marked as charged afterwards, and makes this ledger the run's own, so that the run can be
    resumed. The statement of a finished run is written again. Caps do not stop it, because what was
    published is spent.

    Example: pmtl ledger charge clinics.ledger --run runs/clinics-1
    """
    from pmtl.runs.missing_charges import charge_missing

    done = charge_missing(path, run)
    if as_json:
        opt.print_json(done)
        return
    models, metrics = done["charged"].get("training", 0), done["charged"].get("validation", 0)
    typer.echo(
        f"Charged {how_many(models, 'model')} and {how_many(metrics, 'metric')} of {run} "
        f"afterwards; {path} is its ledger now."
    )
    for cap in done["passed"]:
        opt.warn(
            f"{cap['clients']} clients exceed the cap of ε = {cap['epsilon']:g} at "
            f"δ = {cap['delta']:.3g}: {epsilon_number(cap['spent'])} is spent."
        )
    again = f"To continue it: pmtl resume {quote(str(run))}"
    typer.echo("Its statement was written again." if done["complete"] else again)


@app.command()
def show(
    path: Path,
    delta: float | None = opt.optional("Only this δ (default: 1/(10 · clients), 1e-5 and 1e-6)."),
    each: bool = opt.flag("--clients", "Also what was spent on each client."),
    as_json: opt.AsJson = False,
) -> None:
    """Show what has been spent, by which runs, and what is left.

    ε is for replacing one client's whole data by any other, over all releases that were charged to
    that client; the largest account is shown. It depends on δ, the probability with which the
    guarantee may fail, so several are shown.

    There are two numbers. "Settings fixed" is valid if the settings of all runs were fixed before
    the first. "Any settings" is the smallest cap that admits all releases; caps are checked with
    it, and such a cap holds at 1.01 · δ however the settings were chosen.

    Example: pmtl ledger show clinics.ledger
    """
    from pmtl.privacy.ledger.ledger import Ledger

    with Ledger.open(path, write=False) as ledger:
        summary = summary_of(ledger, delta)
        if each:
            summary["accounts"] = accounts_of(ledger, summary["epsilon"][0]["delta"])
    if as_json:
        opt.print_json(summary)
    else:
        print_summary(summary)


@app.command()
def verify(path: Path, as_json: opt.AsJson = False) -> None:
    """Check that no entry was edited, removed or reordered, and that none is missing at the end.

    Every entry has the hash of the one before it, and PATH.head has the hash of the newest. This
    cannot detect that all hashes were recomputed, or that an old PATH was restored together with
    its old PATH.head: compare the printed hash with one that you noted elsewhere.

    The exit status is 0 if the ledger is intact and 2 if not.

    Example: pmtl ledger verify clinics.ledger
    """
    from pmtl.privacy.ledger.ledger import Ledger

    try:
        with Ledger.open(path, write=False) as ledger:
            last = ledger.last
    except PmtlError as error:
        if as_json:
            opt.print_json({"verified": False, "reason": str(error)})
        raise
    opt.answer(
        as_json,
        {"verified": True, "entries": last.sequence + 1, "hash": last.hash},
        f"{path} is intact: {last.sequence + 1} entries, the newest is {last.hash}.",
    )


@app.command()
def cap(
    path: Path,
    epsilon: float = typer.Option(..., help="The largest ε that any client may reach."),
    delta: Delta = None,
    force: bool = opt.flag("--force", "Raise a cap (inf removes it); this is recorded."),
    as_json: opt.AsJson = False,
) -> None:
    """Set the largest ε for any client.

    It holds however the settings of runs are chosen, at 1.01 · δ; see `pmtl ledger show`. A round
    that would exceed it is refused before anything is drawn, and the last model remains. There may
    be caps at several δ. Lowering a cap is always possible, even below what is spent.

    Example: pmtl ledger cap clinics.ledger --epsilon 4
    """
    from pmtl.privacy.ledger.ledger import Ledger
    from pmtl.privacy.plan import default_delta

    with Ledger.open(path) as ledger:
        delta = default_delta(ledger.clients) if delta is None else delta
        ledger.cap(epsilon, delta, force=force)
        limit, spent = ledger.caps().get(delta, math.inf), ledger.filtered(delta).epsilon
    cap = None if math.isinf(limit) else limit
    text = "removed" if cap is None else f"now ε = {cap:g}"
    opt.answer(
        as_json,
        {"ledger": path, "delta": delta, "cap": cap, "spent": spent},
        f"The cap at δ = {delta:.3g} is {text}; {epsilon_number(spent)} is spent.",
    )


def _names(
    data: str, client_column: str | None, target: str | None, schema: str | None = None
) -> Sequence[str]:
    from pmtl.data import load

    return load(data, production=True, client=client_column, target=target, schema=schema).clients
