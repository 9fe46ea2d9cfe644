"""The charts of a page, as Vega-Lite made with Altair.

Colours are variables of the page's style sheet, so that one chart serves light, dark and paper.
Every chart comes with the rows that it shows, for the table beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pmtl.errors import require_package
from pmtl.report.page.clients import Clients
from pmtl.report.plots import axis_range, axis_title
from pmtl.report.verdict import NAMES, named

Rows = list[dict[str, Any]]

#: Variables of `style.css`.
_COLOURS = [f"var(--line-{number})" for number in range(1, 9)]
_SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "stroke"]
_HEIGHT = 260
#: The ends of what a score varies by.
_ENDS = ("low", "high")
_POINT = {"filled": True, "size": 80, "opacity": 1}
#: The most points of one line.
MOST_POINTS = 300
#: The largest ratio of the largest to the median loss of clients on a linear axis.
_SPREAD = 20.0


@dataclass(frozen=True)
class Chart:
    """A chart, and the same numbers as a table."""

    title: str
    about: str  #: a description, for users who cannot see the chart
    spec: dict[str, Any]
    header: list[str]
    cells: list[list[str]]


def epsilon_chart(rows: Rows, unit: str) -> Chart:
    """ε against rounds; a row has `round` and `epsilon`, and `unit` is what a round is called."""
    alt = load_altair()
    last = rows[-1]
    chart = _lines(alt, [row | {"line": "ε"} for row in rows], "epsilon", unit, "ε", legend=False)
    return Chart(
        title=f"ε against {unit}s",
        about=f"Line chart: ε grows with every {unit} and is {last['epsilon']:.4g} after "
        f"{last['round']}.",
        spec=_finished(chart),
        header=[unit, "ε"],
        cells=[[str(row["round"]), f"{row['epsilon']:.4g}"] for row in rows],
    )


def loss_chart(lines: Rows, unit: str) -> Chart | None:
    """The loss against rounds: on training rows, and of every view on validation rows, from the
    lines of `metrics.jsonl`. `unit` is what a round is called."""
    alt = load_altair()
    rows, thinned = _thinned(loss_rows(lines))
    if not rows:
        return None
    noise = next((line["noise"]["loss_mean"] for line in lines if "noise" in line), None)
    chart = _lines(alt, rows, "loss", unit, "mean loss")
    if noise is not None:
        for row in rows:
            row |= {"low": max(0.0, row["loss"] - noise), "high": row["loss"] + noise}
        bars = alt.Chart(alt.Data(values=rows)).mark_rule(opacity=0.6)
        chart = chart + bars.encode(
            x="round:Q",
            y="low:Q",
            y2="high:Q",
            color=_colour(alt, [row["line"] for row in rows], "line"),
        )
    last = {row["line"]: row["loss"] for row in rows}
    table: dict[int, dict[str, float]] = {}
    for row in sorted(rows, key=lambda row: int(row["round"])):
        table.setdefault(row["round"], {})[row["line"]] = row["loss"]
    ends = [f"{name} {loss:.4g}" for name, loss in last.items()]
    return Chart(
        title=f"Loss against {unit}s"
        + ("" if noise is None else f", ± the noise of the release ({noise:.2g})"),
        about=f"Line chart of the mean loss against {unit}s. At the end: {', '.join(ends)}."
        + (f" It shows {MOST_POINTS} evenly spaced points of each line." if thinned else ""),
        spec=_finished(chart),
        header=[unit, *last],
        cells=[
            [str(round), *(f"{values[n]:.4g}" if n in values else "" for n in last)]
            for round, values in table.items()
        ],
    )


def loss_rows(lines: Rows) -> Rows:
    """The losses in lines of `metrics.jsonl`: `round`, `line` (what was measured) and `loss`."""
    rows = []
    for line in lines:
        found = {"training rows": line.get("train_loss")}
        for view, values in (line.get("validation") or {}).items():
            found[f"validation, {view}"] = values.get("loss", values.get("loss_mean"))
        rows += [
            {"round": line["round"], "line": name, "loss": loss}
            for name, loss in found.items()
            if _finite(loss)
        ]
    return rows


def _thinned(rows: Rows) -> tuple[Rows, bool]:
    """At most `MOST_POINTS` rows of each line, evenly spaced, and whether any were left out."""
    kept: Rows = []
    for name in dict.fromkeys(row["line"] for row in rows):
        line = [row for row in rows if row["line"] == name]
        steps = max(1, min(len(line), MOST_POINTS) - 1)
        places = sorted({round(step * (len(line) - 1) / steps) for step in range(steps + 1)})
        kept += [line[place] for place in places]
    return kept, len(kept) < len(rows)


def _finite(value: Any) -> bool:
    """Whether it is a number; one that is not finite is null or a text in a file."""
    return isinstance(value, (int, float)) and math.isfinite(value)


def views_chart(scores: dict[str, dict[str, float]], split: str) -> Chart:
    """The final loss of each view on the rows of a split, as bars."""
    alt = load_altair()
    rows: Rows = [
        {"view": NAMES.get(view, view), "loss": values["loss"]}
        for view, values in scores.items()
        if _finite(values["loss"])
    ]
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("loss:Q", title=f"mean loss on {split} rows", scale=alt.Scale(zero=True)),
        y=alt.Y("view:N", title=None, sort=None, axis=alt.Axis(labelLimit=240)),
        tooltip=["view:N", alt.Tooltip("loss:Q", format=".4f")],
    )
    values = ", ".join(f"{row['view']} {row['loss']:.4g}" for row in rows)
    return Chart(
        title=f"Loss on {split} rows at the end",
        about=f"Bar chart of the mean loss on {split} rows: {values}.",
        spec=_finished(base.mark_bar(color=_COLOURS[0]), height=44 * len(rows)),
        header=["models", "loss"],
        cells=[[row["view"], f"{row['loss']:.4g}"] for row in rows],
    )


def clients_chart(clients: Clients) -> Chart:
    """Every client as a point: its loss with the one model against that with the other."""
    alt = load_altair()
    values = sorted(value for row in clients.points for value in (row["ours"], row["other"]))
    low, high = values[0], values[-1]
    log = low > 0 and high > _SPREAD * values[len(values) // 2]
    domain = [low * 0.9, high * 1.1] if log else [min(0.0, low), high * 1.05 or 1.0]
    scale = alt.Scale(domain=domain, type="log" if log else "linear", nice=False)
    ours, other = named(clients.ours), named(clients.other)
    groups = ["other clients", "worst tenth"]
    diagonal = alt.Chart(alt.Data(values=[{"a": value} for value in domain]))
    points = alt.Chart(alt.Data(values=clients.points)).mark_point(filled=True, opacity=0.75)
    chart = diagonal.mark_line(color="var(--faint)", strokeDash=[4, 4]).encode(
        x=alt.X("a:Q", scale=scale), y=alt.Y("a:Q", scale=scale)
    ) + points.encode(
        x=alt.X("other:Q", title=f"loss with {other}", scale=scale),
        y=alt.Y("ours:Q", title=f"loss with {ours}", scale=scale),
        color=alt.Color("group:N", title=None, scale=alt.Scale(domain=groups, range=_COLOURS[:2])),
        shape=alt.Shape(
            "group:N", title=None, scale=alt.Scale(domain=groups, range=["circle", "triangle-up"])
        ),
        tooltip=["client:N", "ours:Q", "other:Q", "gain:Q"],
    )
    return Chart(
        title=f"Each client: {ours} against {other}",
        about=f"Scatter plot, one point for each client; below the dashed diagonal {ours} are "
        f"better. {' '.join(clients.sentences())}",
        spec=_finished(chart, height=340),
        header=["client", f"loss, {clients.ours}", f"loss, {clients.other}", "gain", "group"],
        cells=[
            [row["client"], str(row["ours"]), str(row["other"]), str(row["gain"]), row["group"]]
            for row in clients.points
        ],
    )


def score_chart(rows: Rows, score: str, title: str) -> Chart:
    """Scores against ε, a line for each method; dashed for methods without ε. A row has `method`,
    `epsilon` (None if nothing is shared), `score`, and `low` and `high` where scores vary over
    seeds."""
    alt = load_altair()
    methods = list(dict.fromkeys(row["method"] for row in rows))
    colour = _colour(alt, methods)
    with_epsilon = [row for row in rows if row["epsilon"] is not None]
    epsilons = {row["epsilon"] for row in with_epsilon}
    shown = ["method:N", "epsilon:Q", alt.Tooltip("score:Q", format=".4f")]
    ends = [float(row[end] if end in row else row["score"]) for row in rows for end in _ENDS]
    margin = 0.05 * (max(ends) - min(ends))
    low, high = axis_range(min(ends) - margin, max(ends) + margin, "accuracy" in score)
    scale = alt.Scale(domain=[low, high], nice=False, zero=False)
    value = {"title": axis_title(score, low), "scale": scale}
    if len(epsilons) < 2:  # No axis of ε: one place for each method.
        place = alt.Y("method:N", title=None, sort=None, axis=alt.Axis(labelLimit=180))
        base = alt.Chart(alt.Data(values=rows)).encode(y=place, color=colour.legend(None))
        chart = base.mark_point(**_POINT).encode(x=alt.X("score:Q", **value), tooltip=shown)
        if any("low" in row for row in rows):
            chart = chart + base.mark_rule().encode(x=alt.X("low:Q", **value), x2="high:Q")
        height = 60 + 32 * len(methods)
    else:
        x = alt.X("epsilon:Q", title="ε (smaller is more private)")
        if min(epsilons) > 0:
            x = x.scale(type="log", nice=False, padding=16)
        y = alt.Y("score:Q", **value)
        base = alt.Chart(alt.Data(values=with_epsilon)).encode(x=x, color=colour)
        shape = alt.Shape("method:N", title=None, scale=alt.Scale(domain=methods, range=_SHAPES))
        points = base.mark_point(**_POINT).encode(y=y, shape=shape, tooltip=shown)
        chart = base.mark_line().encode(y=y) + points
        if any("low" in row for row in with_epsilon):
            chart = chart + base.mark_rule().encode(y=alt.Y("low:Q"), y2="high:Q")
        alone = alt.Data(values=[row for row in rows if row["epsilon"] is None])
        dashed = alt.Chart(alone).mark_rule(strokeDash=[6, 4], strokeWidth=2)
        chart = chart + dashed.encode(y=y, color=colour, tooltip=shown)
        height = 320
    values = [f"{row['method']} at ε = {_epsilon(row)}: {row['score']:.3f}" for row in rows]
    return Chart(
        title=title,
        about=f"Chart of {score} against ε. {'; '.join(values[:12])}{'; …' * (len(values) > 12)}.",
        spec=_finished(chart, height),
        header=["method", "ε", score, "±"],
        cells=[
            [
                row["method"],
                _epsilon(row),
                f"{row['score']:.4f}",
                f"{row['high'] - row['score']:.4f}" if "high" in row else "",
            ]
            for row in rows
        ],
    )


def _epsilon(row: dict[str, Any]) -> str:
    return "0 (nothing is shared)" if row["epsilon"] is None else f"{row['epsilon']:.4g}"


def load_altair() -> Any:
    with require_package("A report needs altair: pip install 'pmtl[report]'."):
        import altair
    return altair


def _lines(alt: Any, rows: Rows, field: str, unit: str, title: str, legend: bool = True) -> Any:
    names = [row["line"] for row in rows]
    colour = _colour(alt, names, "line") if legend else alt.value(_COLOURS[0])
    shown = ["round:Q", alt.Tooltip(f"{field}:Q", format=".4f")]
    return (
        alt.Chart(alt.Data(values=rows))
        .mark_line(point=len(rows) < 200)
        .encode(
            x=alt.X("round:Q", title=unit, axis=alt.Axis(tickMinStep=1, format="d")),
            y=alt.Y(f"{field}:Q", title=title, scale=alt.Scale(zero=True)),
            color=colour,
            tooltip=["line:N", *shown] if legend else shown,
        )
    )


def _colour(alt: Any, names: Sequence[str], field: str = "method") -> Any:
    domain = list(dict.fromkeys(names))
    scale = alt.Scale(domain=domain, range=_COLOURS)
    return alt.Color(f"{field}:N", title=None, scale=scale)


def _finished(chart: Any, height: int = _HEIGHT) -> dict[str, Any]:
    ink, faint, font = "var(--ink)", "var(--faint)", "system-ui, sans-serif"
    axis = {"labelColor": ink, "titleColor": ink, "tickColor": faint, "domainColor": faint}
    legend = {"orient": "bottom", "labelColor": ink, "titleColor": ink, "labelLimit": 260}
    made = (
        chart.properties(width="container", height=height)
        .configure(background="transparent", font=font, aria=False)
        .configure_axis(**axis, gridColor="var(--grid)", labelFontSize=12, titleFontSize=13)
        .configure_legend(**legend, columns=2, labelFontSize=12, symbolSize=90)
        .configure_view(stroke=None)
    )
    found: dict[str, Any] = made.to_dict()
    found["autosize"] = {"type": "fit-x", "contains": "padding"}
    return found
