"""Sites of one attempt, for tests."""

from __future__ import annotations

from certificates import Authority

from pmtl.privacy.grid import Grid
from pmtl.privacy.noise import seeded_source
from pmtl.privacy.plan import PrivacyPlan
from pmtl.secure_aggregation.identity import SignedKey
from pmtl.secure_aggregation.protocol import Cohort, SiteMasking

SITES = ("a", "b", "c")
GRID = Grid.of(PrivacyPlan(6, 6, "full", 0.5, 0.2, 3, 0.01))


def words_of(site):
    """The words of a site's shares, by round."""
    return lambda round: seeded_source(5, f"{site} {round}")(round)


def makers(authority: Authority, sites=SITES, seeded=False) -> dict[str, SiteMasking]:
    """The parts of these sites; their noise is `seeded`, or the operating system's."""
    return {
        site: SiteMasking(authority.identity(site), *([words_of(site)] if seeded else []))
        for site in sites
    }


def keys_of(parts: dict[str, SiteMasking], attempt="x", round=0) -> dict[str, SignedKey]:
    """Fresh keys of all sites for an attempt."""
    return {site: part.key("r", round, attempt) for site, part in parts.items()}


def checked(part: SiteMasking, keys, colluders=1, grid=GRID, **other) -> Cohort:
    """The cohort that a site makes of these keys."""
    given = {"run": "r", "round": 0, "attempt": "x", "sites": frozenset(SITES), **other}
    sent = [key.to_dict() for key in keys.values()]
    return part.check(keys=sent, grid=grid, colluders=colluders, **given)


def attempt(parts, totals, name="x", colluders=1, grid=GRID, round=0):
    """A whole attempt: what each site sends."""
    keys = keys_of(parts, name, round)
    other = {"round": round, "attempt": name, "sites": frozenset(parts)}
    return {
        site: part.masked(checked(part, keys, colluders, grid, **other), totals[site])
        for site, part in parts.items()
    }
