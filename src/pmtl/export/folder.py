"""From a run to a folder with models that need neither the run nor, but for text, pmtl.

    model.onnx             or models/00017-NAME.onnx for each client, and index.json
    model.json             what a model reads and answers, and how it was checked
    README.md              the model card, with the privacy statement
    schema.json, text.json how tables or texts become rows, if they do

The folder is written under another name and renamed, so it is complete or missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from pmtl import storage as files
from pmtl._version import __version__
from pmtl.data.schema.schema import Schema
from pmtl.errors import PmtlError
from pmtl.export.answering import (
    TOLERANCE,
    Answering,
    Answers,
    difference,
    finite_rows,
    output_names,
    probe,
    with_public_scale,
)
from pmtl.export.card import model_card
from pmtl.export.columns import input_names, what_to_give
from pmtl.export.formats import Format, find_format
from pmtl.export.usage import Subject
from pmtl.jsontext import to_json
from pmtl.prediction.models import DIVERGED, refuse_diverged
from pmtl.progress import Bar, progress_bar
from pmtl.runs.folder import make_private
from pmtl.runs.result import Run

#: The names of Hugging Face's licences are made of these.
_LICENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,60}")


@dataclass(frozen=True)
class Exported:
    """What was written.

    Args:
        folder: the new folder.
        format: `onnx`, `torch` or `safetensors`.
        models: the files of models by client, relative to the folder; the shared model is under "".
        left_out: sentences about clients whose model could not be exported, by client.
        largest_difference: the largest difference between the answers of an export and of the run,
            in probabilities or relative to the number that is predicted.
        private_to: the client to whom everything in the folder is private, if it is one client's.
    """

    folder: Path
    format: str
    models: dict[str, str]
    left_out: dict[str, str]
    largest_difference: float
    private_to: str | None

    def to_dict(self) -> dict[str, Any]:
        """The result as plain values."""
        return {**asdict(self), "folder": str(self.folder)}


def export_model(
    run: Run,
    out: str | Path,
    *,
    client: str | None = None,
    shared: bool = False,
    all_clients: bool = False,
    to: str = "onnx",
    licence: str = "unknown",
    progress: bool = False,
) -> Exported:
    """Write models of a run to a new folder, each checked against the run's own predictions.

    Args:
        run: a finished run, or a fine-tuned one.
        out: the new folder.
        client: the client whose model is exported; with `shared`, the one whose shared model is, if
            the run published several.
        shared: whether to export the shared model. It has nothing of any client but what was
            published; features without public bounds are to be scaled by who uses it.
        all_clients: whether to export every client's model, each to a file of its own.
        to: `onnx`, `torch` (torch.export's archive) or `safetensors` (weights only).
        licence: the licence that the model card names, as Hugging Face spells it.
        progress: whether to show a progress bar.
    """
    _refuse_unclear(client, shared, all_clients, licence)
    kind, path = find_format(to), Path(out)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise PmtlError(f"{path} exists already: choose another --out, or delete it first.")
    if run._model.changed is not None:
        raise PmtlError(run._model.changed)
    private = run.facts.production and not shared
    with _new_folder(path, private) as partial:
        if shared:
            subject, done = _export_shared(run, client, kind, partial)
        elif client is not None:
            subject, done = _export_client(run, client, kind, partial)
        else:
            with progress_bar("models", len(run.clients), show=progress) as bar:
                subject, done = _export_all(run, kind, partial, bar)
        about = _about_folder(run, kind, done, subject)
        files.write_text(partial / "model.json", to_json(about, indent=2) + "\n")
        files.write_text(partial / "README.md", model_card(run, subject, licence))
        _write_reading(run, partial)
    return Exported(
        path, kind.name, done.models, done.left_out, done.largest, client if not shared else None
    )


def _refuse_unclear(client: str | None, shared: bool, all_clients: bool, licence: str) -> None:
    if all_clients and (shared or client is not None):
        raise PmtlError("Export all clients' models, or one model: --all stands alone.")
    if not (client is not None or shared or all_clients):
        raise PmtlError(
            "Say which model to export: --client NAME, --shared, or --all for every client's."
        )
    if not _LICENCE.fullmatch(licence):
        raise PmtlError(
            f"The licence {licence!r} is not a name such as apache-2.0 or cc-by-4.0: give one as "
            "Hugging Face spells it."
        )


class _Done:
    """The models that are written, and how well they answer."""

    def __init__(self) -> None:
        self.models: dict[str, str] = {}
        self.left_out: dict[str, str] = {}
        self.largest, self.rows = 0.0, 0


def _export_client(
    run: Run, client: str, kind: type[Format], folder: Path
) -> tuple[Subject, _Done]:
    module, done = _own_model(run, client), _Done()
    refuse_diverged(f"The model of client {client!r}", module.finite)
    writer = _writer(run, kind, module)
    _write(run, writer, module, client, folder, f"model{kind.ending}", done)
    file, state = f"model{kind.ending}", module.state_names
    return Subject(kind.name, file, client, state, columns=writer.schema), done


def _export_all(run: Run, kind: type[Format], folder: Path, bar: Bar) -> tuple[Subject, _Done]:
    done, writer, state = _Done(), None, frozenset[str]()
    (folder / "models").mkdir(mode=folder.stat().st_mode & 0o777)
    for number, client in enumerate(run.clients):
        module = _own_model(run, client)
        if module.finite:
            state = module.state_names
            writer = _writer(run, kind, module) if writer is None else writer
            name = f"models/{number:05d}-{_safe(client)}{kind.ending}"
            _write(run, writer, module, client, folder, name, done)
        else:
            done.left_out[client] = f"Its model {DIVERGED}"
        bar.advance()
    if not done.models:
        raise PmtlError(f"No model can be exported: every client's {DIVERGED}")
    index = {"models": done.models, "left_out": done.left_out}
    files.write_text(folder / "index.json", to_json(index, indent=2) + "\n")
    first, count = next(iter(done.models.values())), len(done.models)
    schema = None if writer is None else writer.schema
    return Subject(kind.name, first, None, state, count=count, columns=schema), done


def _export_shared(
    run: Run, client: str | None, kind: type[Format], folder: Path
) -> tuple[Subject, _Done]:
    facts = run.facts
    if not facts.shares:
        raise PmtlError(
            f"Nothing was shared in this run of {facts.algorithm}: export a client's model with "
            "--client NAME."
        )
    if not facts.shows_model:
        raise PmtlError(
            "What this run published is in each client's own units of the target, and predicts "
            "nothing by itself: export a client's model with --client NAME."
        )
    if client is None and len(set(facts.blocks)) > 1:
        raise PmtlError(
            f"This run published {len(set(facts.blocks))} models, not one: name a client, too, "
            "whose shared model is to be exported (--shared --client NAME)."
        )
    public, places = with_public_scale(run.shared_for(client or run.clients[0]).cpu().float())
    module, done = Answering(public, facts.task).eval(), _Done()
    refuse_diverged("The shared model", module.finite)
    names = facts.feature_names
    own = [f"feature {place}" if names is None else names[place] for place in places]
    # Features that the user has to scale come after the columns: such a model reads features.
    writer = _writer(run, kind, module, columns=not own)
    _write(run, writer, module, None, folder, f"model{kind.ending}", done)
    file, state = f"model{kind.ending}", module.state_names
    return Subject(kind.name, file, None, state, 1, tuple(own), True, writer.schema), done


def _own_model(run: Run, client: str) -> Answering:
    module: nn.Module = run.personal(client).cpu().float()
    return Answering(module, run.facts.task).eval()


def _writer(run: Run, kind: type[Format], module: Answering, columns: bool = True) -> Format:
    known = run.facts.schema
    schema = Schema.from_dict(known) if columns and known is not None else None
    return kind(module, _rows(run, module), run.facts.labels, schema)


def _rows(run: Run, module: Answering) -> NDArray[np.float32]:
    """Rows to try a model with."""
    facts = run.facts
    return probe(module, facts.input_shape, facts.pixels, run._model.traits.looks_up)


def _write(
    run: Run,
    writer: Format,
    module: Answering,
    client: str | None,
    folder: Path,
    name: str,
    done: _Done,
) -> None:
    """Write a model, read it again, and compare its answers with those of the run."""
    trial = writer.trial(_rows(run, module))
    rows = trial.rows
    expected = module.answers(rows) if client is None else _predicted(run, client, rows)
    files.write_bytes(folder / name, writer.content(module, _about_model(run, client)))
    content = (folder / name).read_bytes()
    one = int(finite_rows(expected).argmax())
    for some in (slice(None), slice(one, one + 1)):  # A single row is a case of its own.
        wanted = {output: values[some] for output, values in expected.items()}
        apart = difference(wanted, writer.answers(content, trial.part(some)), run.facts.task)
        if not apart <= TOLERANCE:
            whose = "shared model" if client is None else f"model of client {client!r}"
            raise PmtlError(
                f"The {whose} answers differently as {writer.name} than in the run (by up to "
                f"{apart:.2g}): nothing was written. Use --to safetensors."
            )
        done.largest = max(done.largest, apart)
    done.models[client or ""], done.rows = name, len(rows)


def _predicted(run: Run, client: str, rows: Any) -> Answers:
    answers: Answers = {"prediction": run.predict(client, rows)}
    if "probabilities" in output_names(run.facts.task):
        answers["probabilities"] = run.predict_proba(client, rows)
    return answers


def _about_model(run: Run, client: str | None) -> dict[str, Any]:
    """What is known of one model, for its own file; of a shared one it is public."""
    facts, privacy = run.facts, run.privacy
    return {
        "made_by": f"pmtl {__version__}",
        "run": facts.id,
        "kind": "shared" if client is None else "personal",
        "private_to": client,
        "network": facts.model,
        "task": facts.task,
        "input_shape": facts.input_shape,
        "outputs": facts.outputs,
        "classes": facts.labels,
        "epsilon": privacy.epsilon,
        "delta": privacy.delta,
    }


def _about_folder(run: Run, kind: type[Format], done: _Done, subject: Subject) -> dict[str, Any]:
    facts = run.facts
    about = _about_model(run, subject.client)
    if subject.many:
        about |= {"kind": "personal", "models": len(done.models)}
    return {
        **about,
        "format": kind.name,
        "file": None if subject.many else subject.file,
        "input": "rows"
        if subject.columns is None
        else {name: what_to_give(column) for name, column in input_names(subject.columns).items()},
        "answers": output_names(facts.task),
        "feature_names": facts.feature_names,
        "pixels": facts.pixels,
        "scaled_by_the_user": subject.scaled_by_the_user,
        "checked": {
            "against": "the run's own model" if subject.shared else "the run's predictions",
            "rows": done.rows,
            "largest_difference": done.largest,
        },
    }


def _write_reading(run: Run, folder: Path) -> None:
    """How tables or texts become rows."""
    reading = {"schema": run.facts.schema, "text": run.facts.text}
    for name, rule in reading.items():
        if rule is not None:
            files.write_text(folder / f"{name}.json", to_json(rule, indent=2) + "\n")


def _safe(client: str) -> str:
    """A client's name as part of a file's name, on any file system."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", client).strip("-")[:60] or "client"


@contextmanager
def _new_folder(path: Path, private: bool) -> Iterator[Path]:
    """A folder that gets its name when it is complete; only its owner can open a private one."""
    with files.new_folder(path) as partial:
        partial.parent.mkdir(parents=True, exist_ok=True)
        if private:
            make_private(partial)
        else:
            partial.mkdir()
        yield partial
