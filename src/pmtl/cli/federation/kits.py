"""The commands `pmtl federation provision, add-site, members` and `renew`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from pmtl.cli import options as opt
from pmtl.errors import PmtlError

Kits = Annotated[
    Path, typer.Argument(metavar="KITS", help="The folder that provision made, with the folder ca.")
]


def provision(
    server: str = typer.Option(
        ...,
        metavar="HOST[:PORT]",
        help="Where sites reach the server. The port is 8002 unless given.",
    ),
    site: list[str] = typer.Option(..., help="A site's name; once for each site."),
    out: Path = typer.Option(..., help="The folder of all kits; it must not exist."),
    as_json: opt.AsJson = False,
) -> None:
    """Make a start-up kit for the server, for each site and for the administrator.

    Send each kit to its owner through a secure channel, and keep OUT/ca secret: it can make further
    certificates. Certificates are valid for 360 days: see pmtl federation renew.

    Example: pmtl federation provision --server fl.example.org --site north --site south --out KITS
    """
    from pmtl.federation.nvflare.kits import provision as make

    made = make(server, site, out)
    opt.answer(
        as_json,
        made,
        f"{out} has a kit for the server, for each site and for the administrator.",
        f"At the server: pmtl federation server {shlex.quote(made['server'])}",
        f"At a site: pmtl federation site {shlex.quote(made[site[0]])} --data FILE "
        "--client-column NAME --target NAME",
        f"Then: pmtl federation run {shlex.quote(made['admin'])} --epsilon 2",
    )


def add_site(
    kits: Kits,
    site: list[str] = typer.Option(..., help="A new site's name; once for each site."),
    as_json: opt.AsJson = False,
) -> None:
    """Make the kit of a further site.

    The other kits stay as they are. The server's owner then lets the site in with pmtl federation
    members.

    Example: pmtl federation add-site KITS --site west
    """
    from pmtl.federation.nvflare.kits import add_sites

    made = add_sites(kits, site)
    send = "send it to its owner through a secure channel."
    named = " ".join(f"--add {shlex.quote(name)}" for name in made)
    opt.answer(
        as_json,
        made,
        *(f"The kit of {name} is in {place}: {send}" for name, place in made.items()),
        f"At the server: pmtl federation members KIT {named}",
    )


def members(
    kit: Path = typer.Argument(..., metavar="KIT", help="The server's kit, KITS/server."),
    add: list[str] | None = opt.optional("Let a site in."),
    remove: list[str] | None = opt.optional("Refuse a site from now on."),
    as_json: opt.AsJson = False,
) -> None:
    """Show which sites the server lets in, and change that.

    It takes effect at once, also while the server runs: messages of a site that is removed are
    refused, and a run counts its uploads as zero. Its models and earlier shared models stay.

    Example: pmtl federation members KITS/server --remove south
    """
    from pmtl.federation.nvflare.kits import check_names
    from pmtl.federation.nvflare.policy import check_role, site_names, write_site_names

    check_role(kit, "server")
    names = list(site_names(kit))
    for name in remove or ():
        if name not in names:
            raise PmtlError(f"--remove {name}: the server knows no such site.")
        names.remove(name)
    names += [name for name in add or () if name not in names]
    if add or remove:
        check_names(names)
        write_site_names(kit, names)
    opt.answer(as_json, {"sites": names}, f"The server lets in: {', '.join(names)}.")


def renew(
    kits: Kits,
    out: Path = typer.Option(..., help="The folder of the new kits; it must not exist."),
    as_json: opt.AsJson = False,
) -> None:
    """Make all kits again, with new keys and certificates that are valid for 360 days more.

    Every owner copies startup from the new kit over the old one and starts again; everything else
    in a kit stays. Old and new certificates work together until the old ones end.

    Example: pmtl federation renew KITS --out KITS-2027
    """
    from pmtl.federation.nvflare.kits import renew as make

    made = make(kits, out)
    opt.answer(
        as_json,
        made,
        f"{out} has new kits. Send each folder startup to the owner of the kit, who copies it over "
        "the old one and starts again.",
    )
