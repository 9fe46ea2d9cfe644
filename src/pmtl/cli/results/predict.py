"""`pmtl predict`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pmtl.cli import options as opt

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray


def predict(
    path: opt.RunPath,
    client: Annotated[str, typer.Option(help="The client whose model predicts.")],
    data: Annotated[str, typer.Option(help="Rows: .csv, .parquet, .npz (x) or .npy.")],
    out: Annotated[str, typer.Option(help="Where to write: .csv, .parquet, .npz or .npy.")],
    probabilities: Annotated[
        bool,
        typer.Option(
            "--probabilities", help="Write probabilities: a column for each class or label."
        ),
    ] = False,
    as_json: opt.AsJson = False,
) -> None:
    """Predict new rows with one client's personal model.

    All rows of the file count as this client's; the feature columns are found by name.

        pmtl predict runs/clinics-1 --client h003 --data new.csv --out answers.csv
    """
    from pathlib import Path

    from pmtl.data.load import load_features
    from pmtl.data.readers.text import TextRule
    from pmtl.errors import PmtlError
    from pmtl.personalize.result import load_result

    target = Path(out)
    if not target.name.endswith((".csv", ".parquet", ".npz", ".npy")):
        raise PmtlError(f"{out} has no known ending: use .csv, .parquet, .npz or .npy.")
    run = load_result(path)
    facts = run.facts
    text = None if facts.text is None else TextRule.from_dict(facts.text)
    rows = load_features(data, facts.input_shape, facts.feature_names, text)
    answers = (run.predict_proba if probabilities else run.predict)(client, rows)
    write_answers(target, answers, facts.labels)
    if as_json:
        opt.print_json({"client": client, "rows": len(answers), "out": out})
    else:
        typer.echo(f"{len(answers)} predictions of client {client} are in {out}.")


def write_answers(path: Path, answers: NDArray[np.generic], labels: Sequence[str] | None) -> None:
    """Write predictions; classes are written by their names, if they have names."""
    import io

    import numpy as np

    from pmtl.storage import write_bytes

    if labels is not None and answers.ndim == 1:
        answers = np.array(labels)[answers.astype(np.int64)]
    buffer = io.BytesIO()
    if path.suffix in (".npz", ".npy"):
        if path.suffix == ".npz":
            np.savez(buffer, prediction=answers)
        else:
            np.save(buffer, answers)
    else:
        import pyarrow as pa
        from pyarrow import csv, parquet

        columns = answers.reshape(len(answers), -1)
        names = ["prediction"] if columns.shape[1] == 1 else labels or None
        names = names or [f"prediction_{place}" for place in range(columns.shape[1])]
        table = pa.table(dict(zip(names, columns.T, strict=True)))
        if path.suffix == ".csv":
            csv.write_csv(table, buffer)
        else:
            parquet.write_table(table, buffer)
    write_bytes(path, buffer.getvalue())
