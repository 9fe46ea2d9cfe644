"""The commands `pmtl federation server, site, run, check, status` and `stop`; `kits.py` and
`demo.py` have the others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pmtl.cli import options as opt
from pmtl.cli.federation.demo import demo
from pmtl.cli.federation.kits import add_site, members, provision, renew
from pmtl.cli.federation.settings import LEFT_OUT, FederationConfig, job_of
from pmtl.errors import PmtlError
from pmtl.federation.transport import ROUND_SECONDS
from pmtl.options import declared
from pmtl.runs.config import Reading, in_spec

if TYPE_CHECKING:
    from pmtl.federation.nvflare.admin import Administrator

app = typer.Typer(
    help="Train between organisations: each keeps its rows and models, a server the shared one.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

app.command()(demo)
app.command()(provision)
app.command("add-site")(add_site)
app.command()(members)
app.command()(renew)

ServerKit = Annotated[Path, typer.Argument(metavar="KIT", help="The server's kit, KITS/server.")]
SiteKit = Annotated[Path, typer.Argument(metavar="KIT", help="This site's kit, KITS/NAME.")]
AdminKit = Annotated[Path, typer.Argument(metavar="KIT", help="The administrator's kit.")]


@app.command()
def server(kit: ServerKit) -> None:
    """Run the server, until Ctrl-C.

    It listens on one port, keeps the ledger and the runs in KIT/federation, and writes KIT/log.txt.
    A run that is under way is stopped after its round, and can be resumed.

    Example: pmtl federation server KITS/server
    """
    from pmtl.federation.nvflare.policy import check_role

    check_role(kit, "server")
    _supervise(kit, "server")


@app.command()
@opt.with_settings(kind=Reading)
def site(
    kit: SiteKit,
    data: str | None = opt.optional("This site's rows, as in pmtl train.", metavar="SPEC"),
    limits: Path | None = opt.optional(
        "What this site agrees to: TOML, with a section limits.", metavar="FILE"
    ),
    models: Path | None = opt.optional(
        "Where models are kept (default KIT/models).", metavar="FOLDER"
    ),
    one_client: bool = opt.flag("--one-client", "All rows belong to one client, the site."),
    **reading: Any,
) -> None:
    """Run a site, until Ctrl-C.

    The site answers the server's messages within its limits: it refuses runs that ask for more. It
    needs no open port. What is given here is kept in KIT/local/pmtl-site.toml; without --data that
    file is used as it is.

    Example: pmtl federation site KITS/north --data visits.csv --client-column ward --target outcome
    """
    from pmtl.cli.federation.site_file import write_site_file
    from pmtl.federation.nvflare.policy import check_role, server_address

    check_role(kit, "site")
    reading = {in_spec(name): value for name, value in reading.items()}
    write_site_file(kit, data, reading, limits, models, one_client)
    host, port = server_address(kit)
    _supervise(kit, "site", f" and connects to {host}:{port} when the server is there")


def _supervise(kit: Path, role: str, connects: str = "") -> None:
    """Run the process of a kit until Ctrl-C."""
    from pmtl.federation.nvflare.process import supervise

    log = f"Its log is {kit / 'log.txt'}."
    typer.echo(f"The {role} of {kit} starts{connects}; Ctrl-C ends it. {log}", err=True)
    supervise(kit, opt.warn)
    typer.echo(f"The {role} has ended.", err=True)


@app.command()
@opt.with_settings(*LEFT_OUT, *declared(Reading), kind=FederationConfig)
def run(
    kit: AdminKit,
    name: str = typer.Option("run", help="The name of the run."),
    summed: bool = opt.flag("--summed", "Sites send the sum of their clients' uploads."),
    only: list[str] | None = typer.Option(
        None, "--site", help="A site that takes part (default all)."
    ),
    round_seconds: float = typer.Option(
        ROUND_SECONDS, help="How long the server waits for a site's answer."
    ),
    resume: bool = opt.flag("--resume", "Continue a run that was stopped."),
    wait: bool = typer.Option(True, "--wait/--no-wait", help="Whether to wait for the end."),
    config: opt.Config = None,
    as_json: opt.AsJson = False,
    **settings: Any,
) -> None:
    """Ask the server for a run, and show its progress.

    The run goes on if this command ends: see pmtl federation status and stop. The shared model is
    then in the server's kit, federation/runs/NAME/public, and each site's personal models in its
    own kit, models/NAME.

    Example: pmtl federation run KITS/admin --epsilon 2 --name first
    """
    from pmtl.federation.messages import check_run_name
    from pmtl.federation.nvflare.admin import administrator

    check_run_name(name)
    if not round_seconds > 0:
        raise PmtlError(f"--round-seconds must be a positive number, not {round_seconds:g}.")
    asked = opt.make_config(config, settings, FederationConfig)
    assert isinstance(asked, FederationConfig)
    job = job_of(name, asked) | {"sites": only or [], "summed": summed}
    job["round_seconds"] = round_seconds
    end = f"The server has the result in federation/runs/{name}."
    with administrator(kit) as admin:
        number = admin.submit({"name": name, "resume": resume, "job": job})
        follow(admin, number, wait, as_json, end)


@app.command()
def check(
    kit: AdminKit,
    size: int = typer.Option(4_000_000, "--bytes", help="Bytes to each site and back."),
    rounds: int = typer.Option(3, help="How many times."),
    as_json: opt.AsJson = False,
) -> None:
    """Send bytes to all sites and back: do all sites answer, and how quickly?

    No site's rows are read, and nothing is spent.

    Example: pmtl federation check KITS/admin
    """
    import secrets

    from pmtl.federation.nvflare.admin import administrator

    echo = {"bytes": size, "rounds": rounds, "deadline": 60.0}
    with administrator(kit) as admin:
        number = admin.submit({"name": f"check-{secrets.token_hex(4)}", "echo": echo})
        follow(admin, number, True, as_json, "")


@app.command()
def status(kit: AdminKit, as_json: opt.AsJson = False) -> None:
    """Show which sites are connected, and the jobs.

    Example: pmtl federation status KITS/admin
    """
    from pmtl.federation.nvflare.admin import administrator

    with administrator(kit) as admin:
        connected, jobs = admin.status()
    if as_json:
        opt.print_json({"connected": connected, "jobs": [job.to_dict() for job in jobs]})
        return
    typer.echo(f"Connected sites: {', '.join(connected) or 'none'}.")
    rows = [(job.job, job.state, job.submitted[:19], job.sentence) for job in jobs]
    opt.print_table("Jobs, newest first", ("job", "state", "submitted", "last"), rows)


@app.command()
def stop(
    kit: AdminKit,
    job: str | None = opt.optional("The job (default the one that runs)."),
    now: bool = opt.flag("--now", "Do not wait for the end of the round."),
    as_json: opt.AsJson = False,
) -> None:
    """Stop a run after its round; what was published stays, and it can be resumed.

    Example: pmtl federation stop KITS/admin
    """
    from pmtl.federation.nvflare.admin import administrator

    with administrator(kit) as admin:
        going_on = [found.job for found in admin.status()[1] if not found.ended]
        number = job or (going_on[-1] if going_on else None)
        if number is None or number not in going_on:
            raise PmtlError(
                "No job is under way." if job is None else f"Job {job} is not under way."
            )
        admin.stop(number, now)
        follow(admin, number, True, as_json, "")


def follow(admin: Administrator, number: str, wait: bool, as_json: bool, end: str) -> None:
    """Show a job's progress until it has ended, if `wait`; a job that failed is an error. `end` is
    a sentence for a job that finished."""
    from pmtl.federation.nvflare.admin import JobState
    from pmtl.views.progress import spinner

    state = JobState(number, "waiting")
    if wait:
        with spinner(f"Job {number[:8]}") as note:
            for state in admin.wait(number):
                note(f"{state.state}. {state.sentence}")
    lines = {
        "finished": f"{state.sentence} {end}".strip(),
        "stopped": state.sentence or "The job is stopped.",
    }
    failed = state.ended and state.state not in lines
    if as_json or not failed:
        submitted = f"Job {number} is submitted."
        opt.answer(as_json, state.to_dict(), lines.get(state.state, submitted))
    if failed:
        raise PmtlError(state.sentence or "The run failed; the server's log says why.")
