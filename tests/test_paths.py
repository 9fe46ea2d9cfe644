"""A file that a page, a docstring or a comment names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
NAMED = re.compile(r"`((?:[\w.-]+/)*\w+\.py)`")
#: Where a name may begin.
ROOMS = [ROOT, ROOT / "src", ROOT / "src" / "pmtl"]


def missing(file: Path) -> list[str]:
    """The names in a file that lead nowhere: not from the top, and not from beside the file."""
    rooms = [*ROOMS, *file.parents]
    here = {path.name for path in SOURCES} | {path.name for path in ROOT.glob("benchmarks/**/*.py")}
    names = NAMED.findall(file.read_text(encoding="utf-8"))
    return [
        name
        for name in dict.fromkeys(names)
        if not any((room / name).exists() for room in rooms)
        and not (file.suffix == ".md" and "/" not in name and name in here)
    ]


@pytest.mark.parametrize("file", [*PAGES, *SOURCES], ids=lambda file: str(file.relative_to(ROOT)))
def test_every_file_that_is_named_is_there(file):
    assert missing(file) == []
