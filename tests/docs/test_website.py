"""The site: it builds without a warning, needs nothing from elsewhere, and its parts are there."""

from __future__ import annotations

import html
import importlib.util
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from pages import DOCS, PAGES, ROOT

pytest.importorskip("mkdocs", reason="the site is an extra: pip install 'pmtl[docs]'")

PICTURES = sorted((DOCS / "images").glob("*.svg"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, as `make docs` builds it. Building runs the notebook."""
    folder = tmp_path_factory.mktemp("site")
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "NO_MKDOCS_2_WARNING": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING -" not in done.stderr
    return folder


def test_every_page_is_there(site):
    made = (
        "reference/command-line",
        "tutorials/notebook",
        "project/changelog",
        "search/search_index",
    )
    for name in ("index.html", *(f"{one}.html" for one in made[:3]), f"{made[3]}.json"):
        assert (site / name).is_file(), name
    for page in PAGES:
        if (DOCS / page).exists():
            assert (site / page).with_suffix(".html").is_file(), page


def test_nothing_is_fetched_from_elsewhere(site):
    """Links may lead away; scripts, styles, fonts and pictures may not."""
    fetched = re.compile(
        r"<(?:script|img|iframe)[^>]*\ssrc=\"(?:https?:)?//[^\"]*|<link[^>]*>|url\(//"
    )
    for file in site.rglob("*.html"):
        for found in fetched.findall(file.read_text(encoding="utf-8")):
            assert found.startswith("<link"), (file.name, found)
            assert "http" not in found or 'rel="canonical"' in found, (file.name, found)


def test_pictures_have_words_for_those_who_do_not_see_them(site):
    for file in site.rglob("*.html"):
        for picture in re.findall(r"<img[^>]*>", file.read_text(encoding="utf-8")):
            assert re.search(r"alt=\"[^\"]{15,}\"", picture), (file.name, picture)


def test_the_reference_has_every_command_and_every_public_name(site):
    import pmtl

    commands = (site / "reference/command-line.html").read_text(encoding="utf-8")
    for command in ("train", "predict", "federation run", "ledger cap", "privacy selection"):
        assert f'id="pmtl-{command.replace(" ", "-")}"' in commands
    for option in ("--client-column", "--epsilon", "--secure-aggregation"):
        assert option in commands
    python = (site / "reference/python.html").read_text(encoding="utf-8")
    for name in pmtl.__all__:
        if name != "__version__":
            assert re.search(rf'id="pmtl\.[\w.]*\b{name}"', python), name
    text = html.unescape(re.sub(r"<[^>]*>", "", python))
    assert "checkpoint_seconds: float = 10.0" in text, "the signature of train"
    assert "Seconds between checkpoints, which a crash may cost; 0: every round." in text


def test_the_notebook_shows_its_results(site):
    page = (site / "tutorials/notebook.html").read_text(encoding="utf-8")
    assert "Verdict: share" in page
    assert "attacker right at most 63%" in page


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_a_drawing_is_whole_and_described(picture):
    tree = ET.parse(picture)
    texts = {child.tag.rpartition("}")[2]: child.text for child in tree.getroot()}
    assert len(texts["title"]) > 10
    assert len(texts["desc"]) > 30
    assert not list(tree.iter("{http://www.w3.org/2000/svg}image"))


def test_figures_are_those_of_the_results():
    spec = importlib.util.spec_from_file_location("figures", ROOT / "website/figures.py")
    figures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(figures)
    for path, text in figures.made().items():
        assert path.read_text(encoding="utf-8") == text, f"run python website/figures.py: {path}"
    assert len(figures.natural()) >= 12


def test_every_page_is_in_the_navigation():
    """`omitted_files: warn` says the same; this names the page."""
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    assert [page for page in PAGES if (DOCS / page).exists() and f" {page}\n" not in nav] == []


def test_formats_are_those_of_the_code():
    from pmtl.data.schema.schema import VERSION
    from pmtl.privacy.ledger import file as ledger
    from pmtl.runs import facts

    text = (DOCS / "reference/files.md").read_text(encoding="utf-8")
    table = text.split("<!-- formats -->")[1].split("<!-- /formats -->")[0]
    numbers = [int(row.split("|")[2]) for row in table.strip().splitlines()[2:]]
    assert numbers == [facts.FORMAT, ledger.FORMAT, VERSION]


def test_citation_has_the_version():
    from pmtl import __version__

    text = Path(ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (\S+)$", text, re.M)[1] == __version__
