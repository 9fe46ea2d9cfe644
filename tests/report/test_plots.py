"""Pictures of the paper's figures: one colour for a method, and nothing covered."""

import math

import pytest

pytest.importorskip("matplotlib")

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pmtl.report import plots


def value(mean):
    return {"mean": mean, "std": 0.01}


CURVES = [
    {
        "ε": e,
        "PMTL, ε paper's": value(0.6),
        "PMTL, ε ours": value(0.5),
        "global, ε ours": value(0.3),
    }
    for e in (0.1, 2.0, math.inf)
]
BARS = [
    {"ε": 0.8, "start": "MTL", "before": value(0.6), "vanilla": value(0.7), "kl": None},
    {
        "ε": math.inf,
        "start": "Global",
        "before": value(0.8),
        "vanilla": value(0.8),
        "kl": value(0.8),
    },
]
ROUNDS = [
    {"rounds": at, "PMTL": {"mean": at / 10, "std": 0.0}, "global": {"mean": 0.8, "std": 0.0}}
    for at in (1, 4, 6)
]
SWEEP = [{"γ": 1.0, "λ": lam, "σ": s, "test": 0.5} for lam in (0, 1) for s in (0.1, 0.2)]


def drawn(draw, rows):
    figure = Figure(figsize=(8.4, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    draw(axes, rows)
    figure.draw_without_rendering()
    return figure, axes


def test_a_comparison_is_drawn_without_what_diverged(tmp_path, recwarn):
    def line(method, epsilon, mean):
        return {"method": method, "epsilon": epsilon, "test_personal": {"rmse": value(mean)}}

    lines = [
        line("pooling", 1.0, 0.7),
        line("local", None, math.inf),
        line("ditto", 1.0, math.nan),
    ]
    for chosen in (lines, lines[1:]):
        results = {"metric": "rmse", "clients": 9, "chosen": chosen}
        plots.plot_comparison(results, tmp_path / "c.png")
        assert (tmp_path / "c.png").stat().st_size > 0
    assert not [str(w.message) for w in recwarn]


def test_a_method_has_one_colour_however_its_epsilon_is_counted():
    _, axes = drawn(plots.against_epsilon, CURVES)
    handles, labels = axes.get_legend_handles_labels()
    colours = {label: handle[0].get_color() for label, handle in zip(labels, handles, strict=True)}
    styles = {
        label: handle[0].get_linestyle() for label, handle in zip(labels, handles, strict=True)
    }
    assert colours["PMTL, ε paper's"] == colours["PMTL, ε ours"] != colours["global, ε ours"]
    assert styles["PMTL, ε paper's"] == "--" != styles["PMTL, ε ours"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.1", "2", "∞"]


@pytest.mark.parametrize(
    ("draw", "rows"),
    [
        (plots.against_epsilon, CURVES),
        (plots.bars, BARS),
        (plots.sweep, SWEEP),
        (plots.against_rounds, ROUNDS),
    ],
)
def test_the_legend_lies_beside_the_picture(draw, rows):
    figure, axes = drawn(draw, rows)
    (legend,) = figure.legends
    inside, beside = axes.get_window_extent(), legend.get_window_extent()
    assert beside.x0 >= inside.x1
    assert beside.x1 <= figure.bbox.x1
    assert inside.width > figure.bbox.width / 2


@pytest.mark.parametrize("name", ["fig1", "fig3", "table1", "sweep", "longer"])
def test_every_experiment_becomes_a_picture(name, tmp_path):
    rows = {"fig3": CURVES, "sweep": SWEEP, "longer": ROUNDS}.get(name, BARS)
    plots.plot_sheet(name, "A caption.", rows, tmp_path / "it.png")
    assert (tmp_path / "it.png").read_bytes().startswith(b"\x89PNG")


def test_rounds_are_on_the_axis_of_rounds():
    _, axes = drawn(plots.against_rounds, ROUNDS)
    assert {line.get_label(): line.get_xydata().tolist() for line in axes.lines} == {
        "PMTL": [[1, 0.1], [4, 0.4], [6, 0.6]],
        "global": [[1, 0.8], [4, 0.8], [6, 0.8]],
    }


@pytest.mark.parametrize(
    ("means", "start", "end"),
    [
        ((0.1, 0.6), 0.0, 0.63),  # Half of the axis would be left out at most: it starts at 0.
        ((0.861, 0.864), 0.762, 0.962),  # A difference of .003 looks small.
        ((0.99, 1.0), 0.8, 1.0),
        ((0.55, 0.75), 0.53, 0.77),
    ],
)
def test_an_axis_of_accuracies_does_not_exaggerate(means, start, end):
    rows = [{"ε": 1 + at, "PMTL": {"mean": mean, "std": 0.01}} for at, mean in enumerate(means)]
    _, axes = drawn(plots.against_epsilon, rows)
    low, high = axes.get_ylim()
    assert (low, high) == pytest.approx((start, end), abs=0.02)
    assert high - low >= 0.2 - 1e-9
    cut = f"(axis starts at {low:.2g}, not at 0)"
    assert (cut in axes.get_ylabel()) == (low > 0)


def test_an_axis_of_errors_says_where_it_starts():
    _, axes = drawn(lambda axes, rows: axes.plot([1, 2], rows), [5.0, 5.1])
    plots.value_axis(axes, "test rmse", accuracy=False)
    low, high = axes.get_ylim()
    assert high - low == pytest.approx(0.2 * 5.1, rel=0.02)
    assert axes.get_ylabel() == f"test rmse (axis starts at {low:.2g}, not at 0)"


def test_bars_start_at_zero():
    _, axes = drawn(plots.bars, BARS)
    assert axes.get_ylim() == (0, 1)
    assert axes.get_ylabel() == "test accuracy"
    assert {bar.get_y() for bar in axes.patches} == {0}


def test_where_all_runs_failed_there_is_no_legend():
    figure, _ = drawn(plots.bars, [{"ε": 0.8, "before": None}])
    assert figure.legends == []
