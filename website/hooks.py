"""What MkDocs does beside its own work when it builds the site (mkdocs.yml names this file).

Pages that are made from other files: the command line's reference, the notebook with its results,
and the files at the top of the repository. Links that lead out of docs/ become names.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import command_line
import notebook
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
#: Files at the top of the repository, and their pages.
TOP = {
    "CHANGELOG.md": "project/changelog.md",
    "CODE_OF_CONDUCT.md": "project/conduct.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "MIGRATION.md": "project/migration.md",
    "README.md": "index.md",
    "RELEASING.md": "project/releasing.md",
    "SECURITY.md": "project/security.md",
}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]*)(#[^)\s]*)?(?:\s+\"([^\"]*)\")?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from other files."""
    made = {
        "reference/command-line.md": command_line.page(),
        "tutorials/notebook.md": notebook.page(ROOT / "docs/tutorials/notebook.ipynb"),
    }
    for name, page in TOP.items():
        if name != "README.md":
            made[page] = (ROOT / name).read_text(encoding="utf-8")
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links to files of the repository into links to their pages, or into names."""
    uri = page.file.src_uri
    source = next((name for name, made in TOP.items() if made == uri and name != "README.md"), None)
    place = ROOT / source if source else ROOT / "docs" / uri
    return "".join(
        part if fenced else LINK.sub(lambda found: _link(found, place, uri), part)
        for fenced, part in _parts(markdown)
    )


def _parts(markdown: str) -> list[tuple[bool, str]]:
    """The text in pieces, and whether each is a block of code."""
    pieces = re.split(r"(^```.*?^```[^\n]*\n?)", markdown, flags=re.S | re.M)
    return [(piece.startswith("```"), piece) for piece in pieces]


def _link(found: re.Match[str], place: Path, uri: str) -> str:
    """One link: as it is inside docs/, to the page of a file at the top, or a name."""
    mark, words, target, anchor, title = found.groups()
    if not target or "://" in target or target.startswith("mailto:"):
        return found[0]
    path = (place.parent / target).resolve()
    if not path.is_relative_to(ROOT):
        return found[0]
    name = path.relative_to(ROOT).as_posix()
    if name.startswith("docs/") and not path.is_dir():
        inside = name.removeprefix("docs/")
    elif name in TOP:
        inside = TOP[name]
    else:
        about = f"{name}: {title}" if title else name
        return f'<span title="{about}">{words}</span>'
    up = "../" * uri.count("/")
    return f"{mark}[{words}]({up}{inside}{anchor or ''})"
