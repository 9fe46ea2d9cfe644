"""Runs the blocks of a page, one after the other, in the present folder."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pages import Block

NUMBER = re.compile(r"-?\d[\d,]*\.?\d*(?:e-?\d+)?")


class Reader:
    """Does what a page says.

    Args:
        command: runs `pmtl ARGUMENTS` and says how it ended.
        names: what the page's Python code may use without having made it.
        quick: options that make a command quick, by its name.
    """

    def __init__(
        self,
        command: Callable[..., Any],
        names: Mapping[str, Any] | None = None,
        quick: Mapping[str, list[str]] | None = None,
    ) -> None:
        self.command, self.names, self.quick = command, dict(names or {}), dict(quick or {})
        self.printed = ""

    def read(self, block: Block) -> None:
        """Run one block, save it, or compare it with what the last one printed."""
        if block.file:
            Path(block.file).parent.mkdir(parents=True, exist_ok=True)
            Path(block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            self.printed = self._python(compile(block.text, "page", "exec"))
        elif block.language in ("bash", "console"):
            self.printed = "".join(self._shell(command) for command in block.commands)
        elif block.language == "text":
            self._compare(block.text)

    def _python(self, code: Any) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(code, self.names)
        return out.getvalue()

    def _shell(self, line: str) -> str:
        words = shlex.split(line, comments=True)
        if words[0] == "cat":
            return "".join(Path(name).read_text(encoding="utf-8") for name in words[1:])
        if words[0] == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                runpy.run_path(words[1])
            return out.getvalue()
        assert words[0] == "pmtl", f"say why this is not run: {line}"
        done = self.command(*words[1:], *self.quick.get(words[1], []))
        assert done.status == 0, (line, done.err)
        return str(done.out)

    def _compare(self, shown: str) -> None:
        """Every line that the page shows was printed, in that order; numbers within a tenth."""
        printed = [line for line in map(_words, self.printed.splitlines()) if line]
        at = 0
        for line in shown.splitlines():
            if line.strip() in ("", "…"):
                continue
            at = next((k + 1 for k in range(at, len(printed)) if _same(line, printed[k])), 0)
            assert at, f"not printed: {line}\n{self.printed}"


def _words(line: str) -> list[str]:
    return re.sub(r"[│┃|━─┏┓┡┩└┘├┤┬┴┼╇┳]+", " ", line).split()


def _same(shown: str, printed: list[str]) -> bool:
    words = _words(shown)
    if words and words[-1] == "…":
        words, printed = words[:-1], printed[: len(words) - 1]
    return len(words) == len(printed) and all(map(_alike, words, printed))


def _alike(shown: str, printed: str) -> bool:
    """Two words, in which numbers may differ by a tenth."""
    if shown == printed:
        return True
    if NUMBER.sub("#", shown) != NUMBER.sub("#", printed):
        return False
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True)
    close = [
        abs(float(a.replace(",", "")) - float(b.replace(",", "")))
        <= 0.1 * abs(float(b.replace(",", "")))
        for a, b in pairs
    ]
    return all(close)


@contextlib.contextmanager
def modules_of_the_page() -> Any:
    """Modules in the present folder can be imported, and are forgotten afterwards."""
    before, path = set(sys.modules), [*sys.path]
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if file.startswith(here):
                del sys.modules[name]
