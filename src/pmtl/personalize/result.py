"""The result of fine-tuning, and its folder.

A fine-tuned result is a run with other personal models. Its folder, by default `RUN/finetuned/NAME`
(in production `RUN/private/finetuned/NAME`), holds the models, what was done (`finetuned.json`),
the privacy statement and, of an experiment, the metrics. Everything else stays with the run. The
folder is written under another name and renamed, so it is complete or missing. In production only
its owner can open it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pmtl import storage as files
from pmtl.data import FederatedData
from pmtl.errors import PmtlError
from pmtl.models import FlatModel
from pmtl.runs.facts import versions
from pmtl.runs.folder import make_private, save_statement
from pmtl.runs.personal_file import Personal, PersonalFile, write_personal
from pmtl.runs.result import Run, load_run, statement_of
from pmtl.simulation import Metrics, Weights
from pmtl.spec import from_values, take_format

FOLDER = "finetuned"
FACTS_FILE = "finetuned.json"
#: The format of `finetuned.json`. Files of format 1 have no number, and lack unused entries.
FORMAT = 2


@dataclass(frozen=True)
class FinetunedFacts:
    """The content of `finetuned.json`: what was done, and to which run."""

    run: str  #: the identity of the run
    method: str
    start: str | None
    lam: float | None
    local: dict[str, Any]  #: the `LocalTraining`
    seed: int | None  #: None in production
    candidates: tuple[str, ...] | None = None  #: what clients chose from, with the method `select`
    picks: tuple[int, ...] | None = None  #: what each client chose; in production it is private
    run_folder: str = ""  #: the run's folder, relative, so that both can be moved together
    written: dict[str, str] = field(default_factory=dict)  #: digests of the files of the result
    pmtl: str = ""
    python: str = ""
    torch: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str) -> FinetunedFacts:
        """The inverse of `to_dict`, for values from the file `where`, which are checked."""
        values = dict(values)
        format = take_format(values, where, FORMAT)
        about = from_values(cls, values, where, lenient=format == 1)
        if not about.run_folder or not isinstance(about.written.get("personal"), str):
            raise PmtlError(f"{where} does not name its run and its models, so it cannot be used.")
        return about


class Finetuned(Run):
    """A run after fine-tuning; the attribute `run` is the run before."""

    def __init__(
        self,
        run: Run,
        model: FlatModel,
        weights: Weights,
        about: FinetunedFacts,
        path: Path | None = None,
    ) -> None:
        """Made by `finetune` and `load_finetuned`.

        Args:
            run: the run before.
            model: the model, on the device of the fine-tuned weights.
            weights: gives the fine-tuned weights of clients.
            about: what was done, as in `finetuned.json`.
            path: the folder of the result, if it has one.
        """
        facts = replace(run.facts, personal=True)
        device = next(model.module.parameters()).device
        self.run = run
        self.about = about
        self._measured: dict[str, dict[str, Metrics] | None] | None = None
        super().__init__(
            facts,
            model,
            personal_weights=lambda clients: weights(clients).to(device),
            shared_weights=run.shared_weights.to(device),
            privacy=statement_of(facts, finetuned=True),
            metrics=run.metrics,
            data=run._data,
            path=path,
            scaling=run.scaling,
            billboard=run.billboard,
            digest_key=run.digest_key,
        )

    def views(self) -> dict[str, Weights]:
        """The models after fine-tuning, and those before."""
        before = self.run.views()
        if not self.run.facts.personal:
            before = {"shared": before["shared"]}
        device = self.shared_weights.device
        moved: dict[str, Weights] = {
            name: lambda clients, weights=weights: weights(clients).to(device)  # type: ignore[misc]
            for name, weights in before.items()
        }
        return {FOLDER: self.personal_weights, **moved}

    def evaluate(self, metric: str | None = None) -> dict[str, dict[str, Metrics] | None]:
        """Metrics after fine-tuning (`finetuned`) and before, on test and validation rows.

        Args:
            metric: your own metrics, as in `Run.evaluate`.
        """
        if metric is not None:
            return super().evaluate(metric)
        if self._measured is None:
            self._measured = super().evaluate()
        return self._measured

    @property
    def chosen(self) -> dict[str, int]:
        """How many clients chose which candidate, in the order of candidates; for
        `method="select"` in an experiment."""
        names, picks = self.about.candidates, self.about.picks
        if names is None or picks is None:
            raise PmtlError(
                "What clients chose is not known: this is a production run, where it is private, "
                "or nothing was chosen (method='select')."
            )
        counts = np.bincount(np.asarray(picks, dtype=np.int64), minlength=len(names))
        return {name: int(n) for name, n in zip(names, counts, strict=True) if n}


def save_finetuned(tuned: Finetuned, path: str | Path) -> Finetuned:
    """Write the result to a new folder, and return it."""
    path, run = Path(path), tuned.run
    if run.path is None:
        raise PmtlError(
            "This run is in memory only, so the folder of its fine-tuning would have nothing to "
            "refer to: train with out=…, or leave out=… out here."
        )
    refuse_existing(path)
    facts = run.facts
    all_clients = np.arange(len(run.clients), dtype=np.int64)
    about = {"clients": facts.clients, "model": facts.model, "blocks": facts.blocks}
    with files.new_folder(path) as partial:
        secret = facts.production  # It holds every client's own model.
        partial.parent.mkdir(parents=True, exist_ok=True, mode=0o700 if secret else 0o777)
        if secret:
            make_private(partial)
        else:
            partial.mkdir()
        personal = Personal(all_clients, tuned.shared_weights, tuned.personal_weights)
        digest = write_personal(partial / "personal.safetensors", personal, about, run.digest_key)
        save_statement(partial, tuned.privacy)
        if not facts.production:
            files.write_json(partial / "result.json", tuned.evaluate())
        tuned.about = replace(
            tuned.about,
            run_folder=os.path.relpath(run.path.resolve(), path.resolve()),
            written={"personal": digest},
            **versions(),
        )
        files.write_json(partial / FACTS_FILE, tuned.about.to_dict())
    tuned.path = path
    return tuned


def refuse_existing(path: str | Path) -> None:
    """Refuse a `path` that exists, unless it is an empty folder."""
    if not files.is_free(path):
        raise PmtlError(f"{path} exists already: choose another --name, or delete it first.")


def load_finetuned(
    path: str | Path, data: FederatedData | None = None, model: Any = None
) -> Finetuned:
    """Read a fine-tuned result, and the run it belongs to.

    Args:
        path: The folder that `finetune` wrote.
        data: The federation, if the run got it from a Python program.
        model: The factory of modules, if the run got it from a Python program.
    """
    path = Path(path)
    if not (path / FACTS_FILE).exists():
        raise PmtlError(
            f"There is no fine-tuned result at {path}: give a folder that `pmtl finetune` wrote."
        )
    about = FinetunedFacts.from_dict(files.read_json(path / FACTS_FILE), str(path / FACTS_FILE))
    place = path / about.run_folder
    if not place.is_dir():
        raise PmtlError(f"The run that {path} belongs to is not at {place}: put it back there.")
    run = load_run(place, data, model)
    if run.facts.id != about.run:
        raise PmtlError(f"{path} was made from another run than the one at {place}.")
    blocks = np.asarray(run.facts.blocks, dtype=np.int64)
    digest = about.written["personal"]
    weights = PersonalFile(path / "personal.safetensors", blocks, digest, run.digest_key)
    return Finetuned(run, run.flat_model, weights, about, path)


def load_result(path: str | Path) -> Run:
    """The run or fine-tuned result in the folder."""
    return load_finetuned(path) if (Path(path) / FACTS_FILE).exists() else load_run(path)
