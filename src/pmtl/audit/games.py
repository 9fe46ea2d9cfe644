"""The games, and playing them.

| game | attacks | reads |
|---|---|---|
| `one-round` | the gate, by the worst pair of uploads | one release |
| `canaries` | a training run, by clients that send the worst | the published models |
| `billboard` | a training run, by one client's data | all other clients' models |
| `default` | a run of a default method, by one client's data | every release |
| `metrics` | the metrics' gate, by the worst pair of values | released averages |
| `sampler` | the draw of cohorts | all other clients' participation |
| `server` | secure aggregation | all masked uploads, and what a colluding site knows |

A game plays a list of scenarios, the worst cases we know. Its bound is the worst of all scenarios
and holds with the stated confidence for all together: a correct implementation is refuted with
probability at most 0.001 per game. An attack that fails proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec

from pmtl.audit.billboard import billboard
from pmtl.audit.canaries import canaries
from pmtl.audit.default_method import default_method
from pmtl.audit.gate import one_round
from pmtl.audit.metrics import metrics
from pmtl.audit.result import AuditResult
from pmtl.audit.sampler import sampler
from pmtl.audit.setup import AuditSetup
from pmtl.errors import require_package
from pmtl.spec import unknown


def server(setup: AuditSetup) -> AuditResult:
    """The game of secure aggregation, which needs the package cryptography."""
    with require_package("The game 'server' needs cryptography: pip install 'pmtl[federation]'."):
        from pmtl.audit.server import server as play
    return play(setup)


GAMES: dict[str, Callable[[AuditSetup], AuditResult]] = {
    "one-round": one_round,
    "canaries": canaries,
    "billboard": billboard,
    "default": default_method,
    "metrics": metrics,
    "sampler": sampler,
    "server": server,
}

ALL_GAMES = "all"
_HAS_CRYPTOGRAPHY = find_spec("cryptography") is not None


def chosen(game: str) -> tuple[str, ...]:
    """The games of this name: one, or all."""
    if game == ALL_GAMES:
        return tuple(game for game in GAMES if game != "server" or _HAS_CRYPTOGRAPHY)
    if game not in GAMES:
        raise unknown("game", game, [*GAMES, ALL_GAMES])
    return (game,)


def audit(
    setup: AuditSetup | None = None, games: Iterable[str] | str = ALL_GAMES
) -> Iterator[AuditResult]:
    """Play games one after another, and yield each verdict when it is known.

    Args:
        setup: What is claimed, and how many trials attack it; the defaults unless given.
        games: Names from `GAMES`, or "all".
    """
    setup = AuditSetup() if setup is None else setup
    for name in chosen(games) if isinstance(games, str) else games:
        yield GAMES[name](setup)
