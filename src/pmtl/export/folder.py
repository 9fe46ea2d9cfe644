"""Writes models of a run to a folder. Only models of text need pmtl to be used; none need the run.

    model.onnx             or models/00017-NAME.onnx for each client, and index.json
    model.json             what a model reads and answers, and how it was checked
    README.md              the model card, with the privacy statement
    schema.json, text.json how tables or texts become rows, if they do

The folder is written under another name and renamed, so it is complete or missing.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from pmtl import storage as files
from pmtl._version import __version__
from pmtl.data.schema.schema import Schema
from pmtl.errors import PmtlError
from pmtl.export.card import model_card
from pmtl.export.columns import input_description, input_names
from pmtl.export.formats import Format, find_format
from pmtl.export.predictor import (
    TOLERANCE,
    Answers,
    Predictor,
    difference,
    finite_rows,
    output_names,
    trial_rows,
    with_public_scale,
)
from pmtl.export.usage import Subject
from pmtl.jsontext import to_json
from pmtl.prediction.models import DIVERGED, refuse_diverged
from pmtl.runs.folder import make_private
from pmtl.runs.result import Run
from pmtl.views.progress import Bar, progress_bar

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
        private_to: the client, if the folder is private to one client.
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
        client: the client whose model is exported; with `shared`, whose shared model, if the run
            published several.
        shared: whether to export the shared model. It contains only what was published; its user
            has to scale features without public bounds.
        all_clients: whether to export every client's model, each to a file of its own.
        to: `onnx`, `torch` (torch.export's archive) or `safetensors` (weights only).
        licence: the licence that the model card names, as Hugging Face spells it.
        progress: whether to show a progress bar.
    """
    if all_clients and (shared or client is not None):
        raise PmtlError("--all cannot be combined with --client or --shared: leave one out.")
    if not (client is not None or shared or all_clients):
        raise PmtlError(
            "Say which model to export: --client NAME, --shared, or --all for every client's."
        )
    if not _LICENCE.fullmatch(licence):
        raise PmtlError(
            f"The licence {licence!r} is not a name such as apache-2.0 or cc-by-4.0: give one as "
            "Hugging Face spells it."
        )
    kind, path = find_format(to), Path(out)
    if not files.is_free(path):
        raise PmtlError(f"{path} exists already: choose another --out, or delete it first.")
    if run.flat_model.changed is not None:
        raise PmtlError(run.flat_model.changed)
    private = run.facts.production and not shared
    with files.new_folder(path) as folder:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if private:
            make_private(folder)
        else:
            folder.mkdir()
        export = _Export(run, kind, folder)
        if shared:
            subject = export.shared_model(client)
        elif client is not None:
            subject = export.own_model(client)
        else:
            with progress_bar("models", len(run.clients), show=progress) as bar:
                subject = export.all_models(bar)
        texts = {
            "model": export.about_folder(subject),
            "index": {"models": export.models, "left_out": export.left_out},
            "schema": run.facts.schema,
            "text": run.facts.text,
        }
        for name, content in texts.items():
            if content is not None and (name != "index" or subject.many):
                files.write_text(folder / f"{name}.json", to_json(content, indent=2) + "\n")
        files.write_text(folder / "README.md", model_card(run, subject, licence))
    owner = None if shared else client
    return Exported(path, kind.name, export.models, export.left_out, export.largest, owner)


class _Export:
    """The models that are written to a folder, and how well they answer."""

    def __init__(self, run: Run, kind: type[Format], folder: Path) -> None:
        self._run, self._kind, self._folder = run, kind, folder
        self._writer: Format | None = None  # Made for the first model, and used for all.
        self.models: dict[str, str] = {}
        self.left_out: dict[str, str] = {}
        self.largest, self._rows = 0.0, 0

    def own_model(self, client: str) -> Subject:
        """Write the model of one client."""
        module = self._predictor(self._run.personal(client))
        refuse_diverged(f"The model of client {client!r}", module.finite)
        return self._subject(self._write(module, client), client)

    def all_models(self, bar: Bar) -> Subject:
        """Write the model of every client."""
        (self._folder / "models").mkdir(mode=self._folder.stat().st_mode & 0o777)
        writer = None
        for number, client in enumerate(self._run.clients):
            module = self._predictor(self._run.personal(client))
            if module.finite:
                writer = self._write(module, client, f"models/{number:05d}-{_file_name(client)}")
            else:
                self.left_out[client] = f"Its model {DIVERGED}"
            bar.advance()
        if writer is None:
            raise PmtlError(f"No model can be exported: every client's {DIVERGED}")
        return self._subject(writer)

    def shared_model(self, client: str | None) -> Subject:
        """Write the shared model; if there are several, the one that `client` reads."""
        if client is None and not self._run.billboard.one_for_all:
            raise PmtlError(
                "The clients of this run have different shared models: name a client, too, whose "
                "shared model is to be exported (--shared --client NAME)."
            )
        found = self._run.shared_for(client or self._run.clients[0])
        public, places = with_public_scale(found.cpu().float())
        module = self._predictor(public)
        refuse_diverged("The shared model", module.finite)
        names = self._run.facts.feature_names
        own = tuple(f"feature {place}" if names is None else names[place] for place in places)
        # Features that the user has to scale come after the columns: such a model reads features.
        writer = self._write(module, None, columns=not own)
        return self._subject(writer, scaled_by_the_user=own, shared=True)

    def _predictor(self, module: nn.Module) -> Predictor:
        return Predictor(module.cpu().float(), self._run.facts.task).eval()

    def _subject(self, writer: Format, client: str | None = None, **more: Any) -> Subject:
        first, count = next(iter(self.models.values())), len(self.models)
        state = frozenset(writer.module.state_dict())
        return Subject(writer.name, first, client, state, count, columns=writer.schema, **more)

    def _write(
        self, module: Predictor, client: str | None, name: str = "model", columns: bool = True
    ) -> Format:
        """Write a model, read it again, and compare its answers with the run's answers.
        `columns`: whether its graph may read the columns of a table."""
        facts, traits = self._run.facts, self._run.flat_model.traits
        rows = trial_rows(module, facts.input_shape, facts.pixels, traits.looks_up)
        if self._writer is None:
            known = facts.schema if columns else None
            schema = None if known is None else Schema.from_dict(known)
            self._writer = self._kind(module, rows, facts.labels, schema)
        writer, file = self._writer, f"{name}{self._kind.ending}"
        trial = writer.trial(rows)
        given = trial.rows
        expected = module.answers(given) if client is None else self._predicted(client, given)
        files.write_bytes(self._folder / file, writer.content(module, self._about_model(client)))
        content = (self._folder / file).read_bytes()
        one = int(finite_rows(expected).argmax())
        for some in (slice(None), slice(one, one + 1)):  # A single row is a case of its own.
            wanted = {output: values[some] for output, values in expected.items()}
            apart = difference(wanted, writer.answers(content, trial.part(some)), facts.task)
            if not apart <= TOLERANCE:
                whose = "shared model" if client is None else f"model of client {client!r}"
                raise PmtlError(
                    f"The {whose} answers differently as {writer.name} than in the run (by up to "
                    f"{apart:.2g}): nothing was written. Use --to safetensors."
                )
            self.largest = max(self.largest, apart)
        self.models[client or ""], self._rows = file, len(trial.rows)
        return writer

    def _predicted(self, client: str, rows: Any) -> Answers:
        answers: Answers = {"prediction": self._run.predict(client, rows)}
        if self._run.facts.task != "regression":
            answers["probabilities"] = self._run.predict_proba(client, rows)
        return answers

    def _about_model(self, client: str | None) -> dict[str, Any]:
        """The metadata of one model, for its own file; public for a shared model."""
        facts, privacy = self._run.facts, self._run.privacy
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

    def about_folder(self, subject: Subject) -> dict[str, Any]:
        """The metadata of the folder."""
        facts, table = self._run.facts, subject.columns
        many = {"kind": "personal", "models": len(self.models)} if subject.many else {}
        return {
            **self._about_model(subject.client),
            **many,
            "format": subject.format,
            "file": None if subject.many else subject.file,
            "input": "rows"
            if table is None
            else {name: input_description(each)[1] for name, each in input_names(table).items()},
            "answers": output_names(facts.task),
            "feature_names": facts.feature_names,
            "pixels": facts.pixels,
            "scaled_by_the_user": subject.scaled_by_the_user,
            "checked": {
                "against": "the run's own model" if subject.shared else "the run's predictions",
                "rows": self._rows,
                "largest_difference": self.largest,
            },
        }


def _file_name(client: str) -> str:
    """A client's name as part of a file's name, on any file system."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", client).strip("-")[:60] or "client"
