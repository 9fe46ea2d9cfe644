"""The page in a real browser: drawn, silent, readable in light and dark, by keyboard, on paper."""

from __future__ import annotations

import shutil
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from pmtl.report.page.page import write_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
if CHROMIUM is None:
    pytest.skip("there is no chromium here", allow_module_level=True)

DESKTOP, PHONE = {"width": 1200, "height": 900}, {"width": 360, "height": 740}


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        made = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture(scope="module")
def file(made, tmp_path_factory):
    path = tmp_path_factory.mktemp("browser") / "report.html"
    write_report([made.experiment, made.pooled, made.production, made.comparison], path)
    return path


@pytest.fixture
def opened(browser, file):
    """Open the page; at the end nothing may have been said, asked for or refused."""
    contexts, said, asked = [], [], []

    def open_page(scheme="light", size=DESKTOP, **more):
        context = browser.new_context(color_scheme=scheme, viewport=size, **more)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-drawn=yes]", timeout=30_000)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == []
    assert [url for url in asked if url != file.as_uri() and not url.startswith("data:")] == []


def contrast(page, one: str, other: str) -> float:
    """The contrast of two CSS colours, by WCAG's formula."""
    found = page.evaluate(
        """pair => pair.map(name => {
             const probe = document.createElement("span");
             probe.style.color = name; document.body.append(probe);
             const found = getComputedStyle(probe).color.match(/[0-9.]+/g).slice(0, 3);
             probe.remove(); return found.map(Number);
           })""",
        [one, other],
    )

    def luminance(rgb):
        parts = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in rgb]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    low, high = sorted(map(luminance, found))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(("scheme", "size"), [("light", DESKTOP), ("dark", PHONE)])
def test_the_page_is_drawn_and_accessible(opened, scheme, size):
    from axe_playwright_python.sync_playwright import Axe

    page = opened(scheme, size)
    charts = page.locator(".chart")
    assert charts.count() == page.locator(".chart svg").count() == 10
    for number in range(charts.count()):
        drawn = charts.nth(number).locator(".role-mark path, .role-mark line")
        assert drawn.count() > 0, number
        assert len(charts.nth(number).get_attribute("aria-label")) > 40
    points = page.locator("#chart-3 .mark-symbol.role-mark path")
    assert points.count() == 24, "a point for each client with validation rows"
    for variable in [f"var(--line-{number})" for number in range(1, 9)]:
        assert contrast(page, variable, "var(--paper)") >= 3, variable
    for text in ("var(--ink)", "var(--faint)", "var(--link)"):
        assert contrast(page, text, "var(--paper)") >= 4.5, text
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= size["width"], "nothing scrolls sideways but tables inside their frames"
    faults = Axe().run(page).response["violations"]
    assert [(fault["id"], fault["nodes"][0]["html"][:120]) for fault in faults] == []


def test_the_colours_follow_the_system_without_drawing_again(opened):
    page = opened("light")
    line = page.locator("#chart-1 .mark-line path, #chart-1 .mark-symbol path").first
    colour = "element => getComputedStyle(element).stroke + getComputedStyle(element).fill"
    before, paper = line.evaluate(colour), page.evaluate("getComputedStyle(document.body).color")
    page.emulate_media(color_scheme="dark")
    assert line.evaluate(colour) != before
    assert page.evaluate("getComputedStyle(document.body).color") != paper


def test_the_keyboard_reaches_everything_that_reacts(opened):
    page = opened()
    wanted = page.evaluate(
        """[...document.querySelectorAll("a, summary, [tabindex='0']")]
             .filter(element => element.checkVisibility()).length"""
    )
    reached = set()
    for _ in range(wanted + 5):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                """[...document.querySelectorAll("a, summary, [tabindex='0']")]
                     .indexOf(document.activeElement)"""
            )
        )
    assert len(reached - {-1}) == wanted > 20
    page.locator("summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("details").first.evaluate("element => element.open")


def test_paper_gets_every_table_in_dark_ink(opened):
    page = opened("dark")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.locator("details:not([open])").count() == 0
    assert contrast(page, "var(--ink)", "#ffffff") >= 7
    assert len(page.pdf()) > 20_000


@pytest.fixture
def listener():
    """A server that writes down what it is asked for."""
    heard = []

    class Listener(BaseHTTPRequestHandler):
        def do_GET(self):
            heard.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *words):
            return None

    server = HTTPServer(("127.0.0.1", 0), Listener)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", heard
    server.shutdown()
    thread.join()
    server.server_close()


TRY = """async place => {
  const seen = [], note = event => seen.push(event.effectiveDirective);
  document.addEventListener("securitypolicyviolation", note);
  const image = new Image(); image.src = place + "/image";
  const style = document.createElement("style");
  style.textContent = `body { background: url(${place}/style) }`; document.body.append(style);
  const script = document.createElement("script");
  script.textContent = "window.ran = true"; document.body.append(script);
  try { await fetch(place + "/fetch"); } catch (error) { seen.push("fetch"); }
  await new Promise(done => setTimeout(done, 200));
  return [window.ran === undefined, seen];
}"""


def test_nothing_can_be_fetched_even_by_a_script_that_tries(browser, file, listener):
    place, heard = listener
    context = browser.new_context()
    page = context.new_page()
    page.goto(place)
    assert "/" in heard, "the server hears what is asked for"
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-drawn=yes]", timeout=30_000)
    heard.clear()
    refused, seen = page.evaluate(TRY, place)
    assert refused
    assert {"img-src", "connect-src", "script-src-elem", "fetch"} <= set(seen)
    assert heard == []
    context.close()


def test_without_scripts_the_tables_have_the_numbers(browser, file):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(file.as_uri())
    assert page.locator("noscript").is_visible()
    page.locator("summary").first.click()
    assert page.locator("details[open] table").first.is_visible()
    context.close()
