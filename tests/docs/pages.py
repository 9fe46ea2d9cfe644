"""The pages of the site and their blocks of code, for the tests of this folder."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
#: Files at the top of the repository that are pages of the site, too.
TOP = ("CHANGELOG", "CODE_OF_CONDUCT", "CONTRIBUTING", "MIGRATION", "RELEASING", "SECURITY")
PAGES = {
    **{path.relative_to(DOCS).as_posix(): path for path in sorted(DOCS.rglob("*.md"))},
    **{f"{name}.md": ROOT / f"{name}.md" for name in TOP},
}
FENCE = re.compile(
    r"(?:^ *<!-- not run: (?P<reason>[^\n]*?) -->\n)?"
    r"^(?P<indent> *)```(?P<language>\w*)(?: title=\"(?P<file>[^\"]+)\")?\n"
    r"(?P<text>.*?)^(?P=indent)```$",
    re.S | re.M,
)


@dataclass(frozen=True)
class Block:
    """A block of code on a page.

    `file` is the name under which it is saved, if it has one. `reason` says why it is not run.
    """

    language: str
    text: str
    file: str | None
    reason: str | None
    line: int

    @property
    def commands(self) -> list[str]:
        """The commands of a block for a shell, each on one line; `$ ` and comments taken off."""
        lines = self.text.replace("\\\n", " ").splitlines()
        if self.language == "console":
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        return [line for line in lines if line.strip() and not line.startswith("#")]


def blocks(page: str) -> list[Block]:
    """The blocks of a page, from top to bottom."""
    text = PAGES[page].read_text(encoding="utf-8")
    return [
        Block(
            found["language"],
            textwrap.dedent(found["text"]),
            found["file"],
            found["reason"],
            text.count("\n", 0, found.start()) + 1,
        )
        for found in FENCE.finditer(text)
    ]


def prose(page: str) -> str:
    """A page without its blocks of code and comments."""
    text = FENCE.sub("", PAGES[page].read_text(encoding="utf-8"))
    return re.sub(r"<!--.*?-->", "", text, flags=re.S)
