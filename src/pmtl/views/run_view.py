"""The views of a run: a line of text, HTML, a data frame.

The line and the HTML come from the run's facts and `metrics.jsonl`. Nothing is computed for them,
and in production they show only what is public.
"""

from __future__ import annotations

import math
from typing import Any

from pmtl.errors import PmtlError, how_many
from pmtl.views import html
from pmtl.views.frames import columns_of, flat_row, make_frame


class RunView:
    """The base class of `Run` with its views."""

    def to_frame(self, what: str = "rounds", split: str = "test") -> Any:
        """A table: a pandas DataFrame or, where pandas is not installed, a pyarrow Table.

        Args:
            what: "rounds", the metrics of each round, or "clients", the number of rows and the mean
                loss of each client, which an experiment has.
            split: with "clients", the rows that are measured: train, validation or test.
        """
        run: Any = self
        if what == "rounds":
            return make_frame(columns_of(flat_row(line) for line in run.metrics))
        if what != "clients":
            raise PmtlError(f"There is no table of {what!r}: use 'rounds' or 'clients'.")
        if split not in ("train", "validation", "test"):
            raise PmtlError(f"There are no {split!r} rows: use train, validation or test.")
        losses = run.client_losses(split)
        counts = run.data.rows(split).counts
        columns = {f"loss_{view}": values for view, values in losses.items()}
        return make_frame({"client": list(run.clients), "rows": counts, **columns})

    def __repr__(self) -> str:
        run: Any = self
        place = "in memory" if run.path is None else f"in {run.path}"
        cost = epsilon_text(run.privacy.epsilon, run.privacy.delta)
        clients = how_many(len(run.clients), "client")
        return f"<{_title(run)}, {clients}, {cost}, {place}>"

    def _repr_html_(self) -> str:
        run: Any = self
        facts = run.facts
        about = [
            ("privacy", epsilon_text(run.privacy.epsilon, run.privacy.delta)),
            ("clients", f"{len(run.clients):,}"),
            ("model", f"{facts.model}, {facts.parameters:,} parameters"),
            ("rounds", f"{len(run.metrics):,}"),
            ("mode", facts.mode),
            ("folder", "in memory" if run.path is None else str(run.path)),
        ]
        parts = [html.table((), about), *_last_metrics(run.metrics)]
        if facts.not_finite is not None:
            parts.append(html.paragraph(facts.not_finite))
        return html.block(_title(run), *parts)


def _title(run: Any) -> str:
    return f"{type(run).__name__} of {run.facts.algorithm}"


def _last_metrics(lines: list[dict[str, Any]]) -> list[str]:
    """A table of the last metrics, if there are any."""
    last = next((line for line in reversed(lines) if line.get("validation")), None)
    if last is None:
        return []
    names = list(dict.fromkeys(name for view in last["validation"].values() for name in view))
    rows = [
        [view, *(_number(values.get(name)) for name in names)]
        for view, values in last["validation"].items()
    ]
    kind = "averages with noise" if "noise" in last else "exact"
    heading = f"validation rows after round {last['round']} ({kind})"
    return [html.table([heading, *names], rows)]


def _number(value: Any) -> str:
    """A metric; one that is not finite is null or a text in a file."""
    return f"{value:.4g}" if isinstance(value, (int, float)) else str(value or "")


def epsilon_number(epsilon: float) -> str:
    """An ε as text."""
    return "∞" if math.isinf(epsilon) else f"{epsilon:.4g}"


def epsilon_text(epsilon: float | None, delta: float) -> str:
    """ε and δ in a few characters; ε is None if it is not known."""
    if epsilon is None:
        return "ε unknown"
    if math.isinf(epsilon):
        return "not private (ε = ∞)"
    return "ε = 0" if epsilon == 0 else f"ε = {epsilon:.4g} at δ = {delta:.3g}"
