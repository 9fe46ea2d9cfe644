"""All federations of the suite by name.

>>> federation = load("wage")
>>> federation.m, federation.x.shape, federation.task
(545, (4360, 27), 'regression')
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import drawn
import natural
import shared
from federation import Absent, Federation

NATURAL = (
    natural.math_achieve,
    natural.star_teacher,
    natural.star_school,
    natural.bdf,
    natural.wage,
    natural.flights,
    natural.math_above_13,
    natural.immunization,
    natural.verbal_aggression,
    natural.union,
    natural.obesity,
    natural.contraception,
)
LARGE = (shared.femnist_hog, shared.femnist_pixels, shared.commit_tags)
#: Federations that `make utility` leaves out, because one run takes minutes; `--only` names them.
SLOW = ("femnist_pixels", "commit_tags")

LOADERS: dict[str, Callable[[], Federation]] = {
    **{loader.__name__: loader for loader in NATURAL},
    **{name: partial(drawn.draw, name) for name in drawn.FAMILIES},
    **{loader.__name__: loader for loader in LARGE},
}


def load(name: str) -> Federation:
    """The federation with this name; `Absent` says why it is not here."""
    if name not in LOADERS:
        raise Absent(f"There is no federation {name!r}: use one of {', '.join(LOADERS)}.")
    return LOADERS[name]()


__all__ = ["LARGE", "LOADERS", "NATURAL", "SLOW", "Absent", "Federation", "load"]
