"""A progress bar on standard error, for anything that may take more than two seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Bar:
    """The progress of a long task; without a `display` it shows nothing."""

    def __init__(self, display: Any = None, task: Any = None) -> None:
        self._display, self._task = display, task

    def advance(self, note: str | None = None) -> None:
        """One more unit is done; `note` is shown beside the bar."""
        if self._display is not None:
            more = {} if note is None else {"note": note}
            self._display.update(self._task, advance=1, **more)

    def expect(self, total: int) -> None:
        """There are so many units, which was not known before."""
        if self._display is not None:
            self._display.update(self._task, total=total)


@contextmanager
def progress_bar(what: str, total: int | None, done: int = 0, show: bool = True) -> Iterator[Bar]:
    """Show a bar for `total` units of `what`, of which `done` are done already. None: `expect` says
    how many there are."""
    if not show:
        yield Bar()
        return
    from rich import progress as rich
    from rich.console import Console

    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TimeRemainingColumn(),
        rich.TextColumn("{task.fields[note]}"),
    )
    with rich.Progress(*columns, console=Console(stderr=True)) as display:
        yield Bar(display, display.add_task(what, total=total, completed=done, note=""))
