"""A progress bar on standard error, for anything that may take more than two seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Bar(Protocol):
    """What a long job tells of itself."""

    def advance(self, note: str | None = None) -> None:
        """One unit is done; `note` says how it stands."""


class _Silent:
    def advance(self, note: str | None = None) -> None:
        return None


@contextmanager
def progress_bar(what: str, total: int, done: int = 0, show: bool = True) -> Iterator[Bar]:
    """Show a bar for `total` units of `what`, of which `done` are behind us."""
    if not show:
        yield _Silent()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as display:
        task = display.add_task(what, total=total, completed=done, note="")

        class Shown:
            def advance(self, note: str | None = None) -> None:
                display.advance(task)
                if note is not None:
                    display.update(task, note=note)

        yield Shown()
