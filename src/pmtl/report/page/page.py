"""Write the page: one file with its style, scripts and numbers inside."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pmtl import storage as files
from pmtl._version import __version__
from pmtl.errors import PmtlError, require_package
from pmtl.jsontext import to_json
from pmtl.personalize.result import Finetuned, load_result
from pmtl.report.page import charts, privacy
from pmtl.report.page.charts import Chart
from pmtl.report.page.comparison import (
    ComparisonPart,
    compare_parts,
    is_comparison,
    read_comparison,
)
from pmtl.report.page.part import Part, experiment_part
from pmtl.report.page.public_part import public_part
from pmtl.report.tables import score_cells
from pmtl.runs.result import Run
from pmtl.views.progress import progress_bar

_HERE = Path(__file__).parent
#: Draws every chart. `ast` evaluates Vega's expressions without eval, which the page forbids.
_DRAW = """
const options = {ast: true, actions: false, renderer: "svg", defaultStyle: false,
                 tooltip: {disableDefaultStyle: true}};
const specs = JSON.parse(document.getElementById("charts").textContent);
Promise.all(Object.entries(specs).map(([id, spec]) =>
  vegaEmbed(document.getElementById(id), spec, options)
)).then(() => {
  document.documentElement.dataset.drawn = "yes";
});
window.addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details")) part.open = true;
});
"""


@dataclass(frozen=True)
class Report:
    """A page that was written."""

    path: Path
    size: int  #: bytes
    runs: list[str]  #: names of the runs and comparisons on it
    verdicts: list[str]  #: their verdicts, as text


def write_report(
    runs: Sequence[str | Path | Run], out: str | Path = "report.html", *, progress: bool = False
) -> Report:
    """Write one HTML page about runs and comparisons. It fetches nothing when it is opened.

    Args:
        runs: folders of finished runs, fine-tuned results or comparisons, or `Run` objects. Of a
            production run only the public part is read.
        out: the file to write; it is replaced if it exists.
        progress: whether to show a progress bar.
    """
    target = Path(out)
    if target.suffix.lower() not in (".html", ".htm"):
        raise PmtlError(f"{out} does not end in .html: a report is an HTML page.")
    if target.is_dir() or not target.parent.is_dir():
        wrong = f"{out} is a folder" if target.is_dir() else f"There is no folder {target.parent}"
        raise PmtlError(f"{wrong}: choose another place for the report with --out.")
    if not runs:
        raise PmtlError("A report needs at least one run: give the folder of a run.")
    charts.load_altair()
    parts: list[Part] = []
    comparisons: list[ComparisonPart] = []
    with progress_bar("reporting", len(runs) + 1, 0, progress) as bar:
        for given in runs:
            path = None if isinstance(given, Run) else Path(given)
            if path is not None and is_comparison(path):
                comparisons.append(read_comparison(path))
            else:
                parts.append(_part(given))
            bar.advance()
        if len(parts) > 1:
            comparisons.insert(0, compare_parts(parts))
        text = render(parts, comparisons)
        files.write_text(target, text)
        bar.advance()
    return Report(
        path=target,
        size=len(text.encode()),
        runs=[*(part.name for part in parts), *(comparison.title for comparison in comparisons)],
        verdicts=[part.verdict.sentence for part in parts]
        + [comparison.sentences[0] for comparison in comparisons if not parts],
    )


def render(parts: Sequence[Part], comparisons: Sequence[ComparisonPart]) -> str:
    """The text of the page."""
    specs: dict[str, Any] = {}

    def placed(chart: Chart | None) -> dict[str, Any] | None:
        """A chart with its place on the page; its spec is kept for the script."""
        if chart is None:
            return None
        place = f"chart-{len(specs) + 1}"
        specs[place] = chart.spec
        return {"id": place, "chart": chart}

    shown = [
        {
            "part": part,
            "id": f"run-{number}",
            "curves": [placed(chart) for chart in _curves(part)],
            "gains": placed(None if part.gains is None else charts.clients_chart(part.gains)),
            "scores": score_cells(part.scores),
        }
        for number, part in enumerate(parts, 1)
    ]
    compared = [{"about": each, "chart": placed(each.chart)} for each in comparisons]
    script, style = _script(), (_HERE / "style.css").read_text(encoding="utf-8")
    numbers = to_json(specs).replace("<", "\\u003c")  # Nothing in it can end the script element.
    text: str = _template().render(
        title=_title(parts, comparisons),
        runs=shown,
        comparisons=compared,
        several=len(parts) > 1,
        privacy=privacy,
        script=script,
        style=style,
        numbers=numbers,
        policy=_policy(script),
        version=__version__,
    )
    return text


def _part(given: str | Path | Run) -> Part:
    if isinstance(given, Run):
        if not given.facts.production:
            return experiment_part(given)
        if given.path is None or isinstance(given, Finetuned):
            raise PmtlError(_PRIVATE.format("This"))
        given = given.path
    path = Path(given)
    if (part := public_part(path)) is not None:
        return part
    run = load_result(path)
    if run.facts.production:
        raise PmtlError(_PRIVATE.format(path))
    return experiment_part(run)


_PRIVATE = (
    "{} is of a production run and not public: a report shows what the run published. Give the "
    "folder of the run."
)


def _curves(part: Part) -> list[Chart]:
    """The charts against rounds; with an exact algorithm, whose rounds have no loss, its end."""
    unit = "round" if part.has_curve else "release"
    found = []
    if rows := privacy.epsilon_by_round(part.statement):
        found.append(charts.epsilon_chart(rows, unit))
    if part.has_curve or part.production:
        chart = charts.loss_chart(part.lines, unit)
        return [*found, *([] if chart is None else [chart])]
    split = next((name for name in ("validation", "test") if part.scores.get(name)), None)
    if split is not None:
        found.append(charts.views_chart(part.scores[split], split))
    return found


def _title(parts: Sequence[Part], comparisons: Sequence[ComparisonPart]) -> str:
    names = [part.name for part in parts]
    folders = [each.title for each in comparisons if each.folder]
    if len(names) > 1:
        names = [f"{len(names)} runs"]
    elif names:
        names = [f"the run {names[0]}"]
    return f"Report on {' and '.join([*names, *(name[:1].lower() + name[1:] for name in folders)])}"


@cache
def _script() -> str:
    with require_package("A report needs vl-convert-python: pip install 'pmtl[report]'."):
        import vl_convert
    return str(vl_convert.javascript_bundle(_DRAW)).replace("</script", "<\\/script")


def _policy(script: str) -> str:
    """The page's Content-Security-Policy: this one script, and nothing from anywhere else."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


@cache
def _template() -> Any:
    with require_package("A report needs Jinja2: pip install 'pmtl[report]'."):
        from jinja2 import Environment, StrictUndefined
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string((_HERE / "template.html").read_text(encoding="utf-8"))
