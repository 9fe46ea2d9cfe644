"""A progress bar on standard error, in a notebook as HTML, for anything that may take more than two
seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from importlib import import_module
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
        """Set the total once it is known."""
        if self._display is not None:
            self._display.update(self._task, total=total)


def notebook() -> bool:
    """Whether this is a Jupyter kernel, which shows HTML."""
    if "ipykernel" not in sys.modules:
        return False
    shell: Any = import_module("IPython").get_ipython()
    return "IPKernelApp" in getattr(shell, "config", {})


class _NotebookDisplay:
    """A bar as HTML that replaces itself; it needs no widgets."""

    def __init__(self, what: str, total: int | None, done: int) -> None:
        self._what, self._total, self._done, self._note = what, total, done, ""
        self._drawn = time.monotonic()
        self._library: Any = import_module("IPython.display")
        shown = self._library.HTML(self.text())
        self._handle = self._library.display(shown, display_id=True)

    def update(
        self, _task: Any, advance: int = 0, note: str | None = None, total: int | None = None
    ) -> None:
        """As rich's; it draws at most five times a second."""
        self._done += advance
        self._total = self._total if total is None else total
        self._note = self._note if note is None else note
        if time.monotonic() - self._drawn > 0.2:
            self.draw()

    def draw(self) -> None:
        self._drawn = time.monotonic()
        self._handle.update(self._library.HTML(self.text()))

    def text(self) -> str:
        """The bar as HTML; without a total it only moves."""
        what, note = escape(self._what), escape(self._note)
        far = "" if self._total is None else f' value="{self._done}" max="{self._total}"'
        count = f"{self._done}" if self._total is None else f"{self._done}/{self._total}"
        bar = f'<progress aria-label="{what}"{far}></progress>'
        return f"<div>{what} {bar} {count} {note}</div>"


@contextmanager
def progress_bar(what: str, total: int | None, done: int = 0, show: bool = True) -> Iterator[Bar]:
    """Show a bar for `total` units of `what`, if that is known, of which `done` are done."""
    if not show:
        yield Bar()
        return
    if notebook():
        html = _NotebookDisplay(what, total, done)
        try:
            yield Bar(html)
        finally:
            html.draw()
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
        # A bar without a total never looks complete, so it disappears.
        display.live.transient = display.tasks[0].total is None


@contextmanager
def spinner(what: str) -> Iterator[Callable[[str], None]]:
    """Show that `what` is running, without a total; call the result with each new state."""
    from rich import progress as rich
    from rich.console import Console

    columns = (
        rich.SpinnerColumn(),
        rich.TextColumn("{task.description}"),
        rich.TimeElapsedColumn(),
    )
    with rich.Progress(*columns, console=Console(stderr=True), transient=True) as display:
        task = display.add_task(what, total=None)
        yield lambda note: display.update(task, description=f"{what}: {note}")
