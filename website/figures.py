"""The tables and the picture of the site's pages that come from results or formulas.

python website/figures.py            # writes them
python website/figures.py --check    # says what is out of date, with exit status 1
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from pmtl.privacy.request import PrivacyRequest
from pmtl.privacy.statement.meaning import success
from pmtl.privacy.statement.statement import make_statement

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/results/utility"
EPSILONS = ("0.5", "1", "2", "4")
#: The tables that the start page shows beside the one on which sharing does worst.
SHOWN = ("star_teacher", "wage", "math_achieve")
#: Shares of the gap beyond these are drawn at the edge.
LOW, HIGH = -0.4, 1.2
COLOURS = {"500 clients or more": "#00796b", "100 to 499": "#5c6bc0", "fewer than 100": "#c0392b"}


def natural() -> list[dict[str, Any]]:
    """The results on tables of real data (no images, no words), with the most clients first."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.glob("*.json")]
    real = [one for one in found if not one["about"].startswith("synthetic")]
    real = [one for one in real if one["outputs"] < 10]
    return sorted(real, key=lambda one: (-one["clients"], one["name"]))


def share(one: dict[str, Any], epsilon: str) -> float:
    """The share of the gap between training alone and the ceiling that our method closes."""
    return float(one["private"]["ours"][epsilon]["share"])


def start_table() -> str:
    """The table of the start page."""
    results = natural()
    worst = min(results, key=lambda one: share(one, "1"))
    rows = [one for name in SHOWN for one in results if one["name"] == name and one is not worst]
    lines = [
        "| table | clients | rows a client | alone | ε = 1 | ε = 2 | without privacy |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for one in (*rows, worst):
        ours = one["private"]["ours"]
        alone, ceiling = (one["baselines"][name]["score"] for name in ("alone", "ceiling"))
        scores = [alone, ours["1"]["score"], ours["2"]["score"], ceiling]
        about = one["about"].rpartition(" (")[0]
        cells = [f"{about} ({one['score'].replace('_', ' ')})", f"{one['clients']:,}"]
        cells += [f"{one['training_rows']:.0f}", *(f"{score:.4g}" for score in scores)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def attacker_table() -> str:
    """What an ε leaves an attacker, if all of 200 clients take part in every round."""
    lines = [
        "| ε | right at most, as the statement says | what (ε, δ) alone would allow |",
        "|---:|---:|---:|",
    ]
    for epsilon in (0.1, 0.5, 1, 2, 4, 8):
        plan = PrivacyRequest(epsilon=epsilon).resolve(200)
        right = make_statement(plan, shares=True, personal=True).attacker_right
        assert right is not None
        lines.append(f"| {epsilon:g} | {_up(right)} | {_up(success(epsilon, plan.delta))} |")
    return "\n".join(lines)


def _up(chance: float) -> str:
    """A bound on a chance, rounded up."""
    return f"{math.ceil(1000 * chance) / 10:.1f}%"


def _group(one: dict[str, Any]) -> str:
    many, some, few = COLOURS
    return many if one["clients"] >= 500 else some if one["clients"] >= 100 else few


def _x(column: int) -> float:
    return 90 + 170 * column


def _y(value: float) -> float:
    return 60 + 320 * (HIGH - min(max(value, LOW), HIGH)) / (HIGH - LOW)


def _spread(places: list[float], gap: float) -> list[float]:
    """Places moved apart, in the same order, so that labels do not lie on each other."""
    order = sorted(range(len(places)), key=places.__getitem__)
    moved = list(places)
    for above, below in pairwise(order):
        moved[below] = max(moved[below], moved[above] + gap)
    moved[order[-1]] = min(moved[order[-1]], _y(LOW))
    for below, above in pairwise(reversed(order)):
        moved[above] = min(moved[above], moved[below] - gap)
    return moved


def picture() -> str:
    """ε against what sharing is worth, a line for each table of real data."""
    results = natural()
    text = 'font-family="sans-serif" font-size="13" fill="#222"'
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 820 430" role="img">',
        "<title>What sharing is worth against ε, for every table of real data</title>",
        "<desc>0% is training alone, 100% is pooling without privacy. Numbers: utility.md.</desc>",
        '<rect width="820" height="430" rx="8" fill="#fff"/>',
        f'<text x="20" y="28" {text} font-weight="bold">Share of the possible gain that the '
        "default method reaches</text>",
    ]
    for value in (0.0, 0.5, 1.0):
        y, dash = _y(value), "" if value in (0, 1) else ' stroke-dasharray="4 4"'
        parts.append(f'<path d="M90 {y:.1f}H600" stroke="#bbb"{dash}/>')
        parts.append(f'<text x="80" y="{y + 4:.1f}" {text} text-anchor="end">{value:.0%}</text>')
    for column, epsilon in enumerate(EPSILONS):
        parts.append(
            f'<text x="{_x(column)}" y="402" {text} text-anchor="middle">ε = {epsilon}</text>'
        )
    ends = _spread([_y(share(one, EPSILONS[-1])) for one in results], 15)
    for one, end in zip(results, ends, strict=True):
        colour = COLOURS[_group(one)]
        points = [
            f"{_x(column)},{_y(share(one, epsilon)):.1f}" for column, epsilon in enumerate(EPSILONS)
        ]
        line = f'points="{" ".join(points)}" stroke="{colour}" stroke-width="2"'
        parts.append(f'<polyline {line} fill="none"/>')
        label = f"{one['name'].replace('_', ' ')} ({one['clients']:,})"
        parts.append(f'<path d="M602 {_y(share(one, "4")):.1f}L622 {end:.1f}" stroke="{colour}"/>')
        parts.append(f'<text x="626" y="{end + 4:.1f}" {text}>{label}</text>')
    halo = 'paint-order="stroke" stroke="#fff" stroke-width="5"'
    for value, words in ((0, "as good as training alone"), (1, "as good as without privacy")):
        place = f'x="350" y="{_y(value) + 16:.1f}" text-anchor="middle"'
        parts.append(f"<text {place} {text} {halo}>{words}</text>")
    for at, (name, colour) in enumerate(COLOURS.items()):
        x = 90 + 180 * at
        parts.append(f'<path d="M{x} 420h20" stroke="{colour}" stroke-width="3"/>')
        parts.append(f'<text x="{x + 26}" y="424" {text}>{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _filled(page: Path, name: str, table: str) -> str:
    head, _, rest = page.read_text(encoding="utf-8").partition(f"<!-- {name} -->\n")
    assert rest, f"{page} has no place for {name}"
    return (
        f"{head}<!-- {name} -->\n{table}\n<!-- /{name} -->" + rest.partition(f"<!-- /{name} -->")[2]
    )


def made() -> dict[Path, str]:
    """Every file with what it should hold."""
    docs = ROOT / "docs"
    return {
        docs / "index.md": _filled(docs / "index.md", "start", start_table()),
        docs / "how-to/epsilon.md": _filled(
            docs / "how-to/epsilon.md", "attacker", attacker_table()
        ),
        docs / "images/epsilon.svg": picture(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    stale = [
        path
        for path, text in made().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in stale:
        print(f"{path.relative_to(ROOT)} {'is out of date' if check else 'was written'}")
        if not check:
            path.write_text(made()[path], encoding="utf-8")
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main()
