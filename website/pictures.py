"""The pictures of docs/report.md: the report on runs on the demo's federation, in a real browser.

    make pictures

It trains the default method and a comparison with one seed, writes their report, and keeps what a
browser shows of it as PNG files in docs/images. It needs chromium and the extras of `dev`.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import pmtl
from pmtl.experiments.compare import Grid
from pmtl.report.page.page import write_report
from pmtl.runs.config import TrainConfig

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
DESKTOP, PHONE = {"width": 960, "height": 700}, {"width": 380, "height": 760}
#: Name, page, colours, size, and the element at the top of the picture.
PICTURES = (
    ("report-verdict", "run", "light", DESKTOP, "body"),
    ("report-privacy", "run", "light", DESKTOP, "#run-1-privacy"),
    ("report-clients", "run", "dark", DESKTOP, "#run-1-clients"),
    ("report-phone", "run", "dark", PHONE, "#run-1-rounds"),
    ("report-comparison", "comparison", "light", DESKTOP, "main figure"),
)


def demo() -> str:
    """The federation of `make demo`."""
    found = re.search(r"^DEMO := (\S+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert found is not None
    return found[1]


def write_pages(folder: Path) -> None:
    """Train, and write run.html and comparison.html."""
    data = demo()
    pmtl.train(data, privacy=2.0, out=folder / "visits", progress=True)
    write_report([folder / "visits"], folder / "run.html")
    grid = Grid(
        algorithms=("pooling", "pmtl:lam=0.3", "ditto:lam=0.3", "fedavg", "local"),
        seeds=(0,),
        base=TrainConfig(data=data),
    )
    pmtl.compare(grid, folder / "methods", progress=True)
    write_report([folder / "methods"], folder / "comparison.html")


def take(folder: Path) -> None:
    """Open the pages, and keep the pictures."""
    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for name, page_name, scheme, size, top in PICTURES:
            context = browser.new_context(
                color_scheme=scheme, viewport=size, reduced_motion="reduce"
            )
            page = context.new_page()
            page.goto((folder / f"{page_name}.html").as_uri())
            page.wait_for_selector("html[data-drawn=yes]")
            page.locator(top).evaluate("element => element.scrollIntoView()")
            page.screenshot(path=IMAGES / f"{name}.png")
            context.close()
        browser.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        write_pages(Path(place))
        take(Path(place))
