"""The result of training: the personal models, the shared model, and what they cost."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pmtl import storage as files
from pmtl.billboard import Billboard
from pmtl.data import Bounds, FederatedData, Scaling, Schema, Split, load
from pmtl.data.readers.text import TextRule
from pmtl.data.schema.inputs import Inputs
from pmtl.errors import PmtlError, PmtlWarning, how_many
from pmtl.models import FlatModel
from pmtl.prediction.models import Models
from pmtl.prediction.predicting import Predicting
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.statement import text
from pmtl.privacy.statement.statement import Statement, make_statement
from pmtl.runs.config import IN_MEMORY
from pmtl.runs.facts import RunFacts, as_trained, check_data, check_own_code, rebuild_model
from pmtl.runs.folder import RunFolder
from pmtl.runs.metrics_file import released
from pmtl.runs.personal_file import PersonalFile
from pmtl.sharing import build_share
from pmtl.simulation import Metrics, RowTensors, Weights, evaluate
from pmtl.simulation.custom_metrics import find_metrics
from pmtl.simulation.evaluation import Evaluator
from pmtl.spec import explain_wrong_calls, from_values, parse_spec
from pmtl.views.run_view import RunView


class Run(Predicting, RunView):
    """A finished run, in memory or read from its folder.

    Attributes:
        facts: the content of `run.json`.
        clients: the names of all clients.
        privacy: the privacy statement.
        metrics: the lines of `metrics.jsonl`, one for each round.
        path: the run's folder, if it has one.
        flat_model: the module, as a function of one vector.
        personal_weights: gives the weights of clients' personal models.
        shared_weights: the published weights, a row for each shared model.
        billboard: which client reads which of these rows; by default the blocks in `facts`.
        scaling: what each client does to its features, if anything.
        digest_key: the key of the digests in `facts`; empty in an experiment.
    """

    def __init__(
        self,
        facts: RunFacts,
        flat_model: FlatModel,
        personal_weights: Weights | None,
        shared_weights: Tensor,
        privacy: Statement,
        metrics: list[dict[str, Any]],
        data: FederatedData | None = None,
        path: Path | None = None,
        scaling: Scaling | None = None,
        billboard: Billboard | None = None,
        digest_key: bytes = b"",
        alone: Weights | None = None,
    ) -> None:
        """Made by `train`, `resume` and `load_run`, with the attributes above.

        Args:
            personal_weights: None if clients have no models of their own.
            data: the federation; by default it is read from where the run found it.
            alone: gives the weights that clients have without the others, if known.
        """
        self.facts = facts
        self.clients: tuple[str, ...] = facts.clients
        self.privacy = privacy
        self.metrics = metrics
        self.path = path
        self.flat_model = flat_model
        self.personal_weights = personal_weights or self._published
        self.shared_weights = shared_weights
        self.billboard = billboard or Billboard(np.asarray(facts.blocks, dtype=np.int64))
        self._data = data
        self.scaling = scaling
        self.digest_key = digest_key
        self._alone = alone

    def personal(self, client: str) -> nn.Module:
        """The personal model of a client, a module in evaluation mode.

        It reads rows of floats (pixels between 0 and 1), and includes the client's scaling.

        Args:
            client: the name of the client.
        """
        return self._models.own_module(client)

    @property
    def shared(self) -> nn.Module:
        """The shared model; if there are several, see `shared_for`."""
        self._models.refuse_shared()
        if not self.billboard.one_for_all:
            raise PmtlError(
                "The clients of this run have different shared models: use shared_for(client)."
            )
        if self.scaling is not None and not self.scaling.same_for_all:
            raise PmtlError(
                "The shared model of this run needs rows that a client has scaled or filled: use "
                "shared_for(client)."
            )
        return self._models.module(self.shared_weights[0], None)

    def shared_for(self, client: str) -> nn.Module:
        """The shared model that a client reads.

        Args:
            client: the name of the client.
        """
        return self._models.shared_module(client)

    @property
    def not_finite(self) -> str | None:
        """A sentence if some weights are infinite or NaN; else None."""
        return self.facts.not_finite

    def evaluate(self, metric: str | None = None) -> dict[str, dict[str, Metrics] | None]:
        """Metrics of the personal and the shared models on test and validation rows.

        Args:
            metric: further measures (`auc+f1`, or `all`) and metrics of your own
                (`package.module:function`), joined by `+`. By default the run's measures.
        """
        self._refuse_exact()
        splits: tuple[Split, ...] = ("test", "validation")
        own, tensors = find_metrics(metric or self.facts.metric), self._tensors()
        return {
            split: evaluate(tensors, self.flat_model, self.views(), split, custom=own)
            for split in splits
        }

    def client_losses(self, split: Split) -> dict[str, NDArray[np.float64]]:
        """Each client's mean loss on its rows, for every view; NaN for clients without rows.

        Args:
            split: train, validation or test.
        """
        self._refuse_exact()
        measuring = Evaluator(self._tensors(), self.flat_model, split)
        all_clients = np.arange(len(self.clients), dtype=np.int64)
        there = measuring.rows.counts > 0
        losses = {}
        for view, weights in self.views().items():
            found = measuring.client_metrics(weights, all_clients)
            losses[view] = np.where(there, found.get("loss", np.nan), np.nan)
        return losses

    def per_client(self, metric: str | None = None, split: Split = "test") -> dict[str, Any]:
        """Measures of every client, as columns (`pandas.DataFrame(run.per_client())`): `client`,
        `rows`, `model` (personal, shared, alone) and the measures. NaN: a client has no rows or no
        value, such as an AUC with one class.

        Args:
            metric: measures (`accuracy+auc`, `all`) and metrics of your own
                (`package.module:function`), joined by `+`; by default all of the task.
            split: train, validation or test.
        """
        self._refuse_exact()
        chosen = find_metrics(metric or "+".join(filter(None, ("all", self.facts.metric))))
        return Evaluator(self._tensors(), self.flat_model, split).client_table(self.views(), chosen)

    def views(self) -> dict[str, Weights]:
        """Functions that give the weights of any clients' personal models and, if the run has them,
        of the shared ones and of those that clients would have alone."""
        views = {"personal": self.personal_weights}
        if self.facts.shares and self.facts.shows_model:
            views["shared"] = self._published
        if self._alone is not None:
            views["alone"] = self._alone
        return views

    def released(self) -> list[dict[str, Any]]:
        """The average metrics that passed the gate, one entry for each evaluation, with the
        standard deviation of its noise; empty without released metrics."""
        return released(self.metrics)

    @property
    def data(self) -> FederatedData:
        """The federation that the run was trained on, read again if necessary, and checked."""
        if self._data is None:
            spec = self.facts.data
            if spec == IN_MEMORY:
                raise PmtlError(
                    f"The run at {self.path} was trained on data from a Python program: give it "
                    "again, with pmtl.load_run(path, data=…)."
                )
            schema = self.facts.schema
            self._data = load(spec, production=self.facts.production, schema=schema)
        self._data = as_trained(self._data, self.facts)
        check_data(self._data, self.facts, self.digest_key)
        return self._data

    def _tensors(self) -> RowTensors:
        return RowTensors(self.data, self.shared_weights.device, self.shared_weights.dtype)

    def _refuse_exact(self) -> None:
        # A site of a federation may measure its own models on its own rows.
        if self.facts.production and not self.facts.at_site:
            raise PmtlError(
                "Exact metrics are private, and this is a production run: it withholds them."
            )

    @cached_property
    def _models(self) -> Models:
        facts = self.facts
        text = None if facts.text is None else from_values(TextRule, facts.text, "run.json")
        schema = None if facts.schema is None else Schema.from_dict(facts.schema)
        return Models(
            model=self.flat_model,
            personal=self.personal_weights,
            published=self._published,
            shared=self.shared_weights,
            scaling=self.scaling,
            bounds=None if facts.bounds is None else Bounds.from_dict(facts.bounds),
            clients=self.clients,
            task=facts.task,
            outputs=facts.outputs,
            labels=facts.labels,
            inputs=Inputs(facts.input_shape, facts.feature_names, text, facts.pixels, schema),
            client_column=parse_spec(facts.data)[1].get("client")
            if schema is None
            else schema.named("client"),
            unshared=None if facts.shares else facts.algorithm,
            shows_model=facts.shows_model,
            one_for_all=self.billboard.one_for_all,
            spans=facts.target_spans,
        )

    def _published(self, clients: NDArray[np.int64]) -> Tensor:
        return self.billboard.read(self.shared_weights, clients)


@explain_wrong_calls()
def load_run(path: str | Path, data: FederatedData | None = None, model: Any = None) -> Run:
    """Read a finished run.

    Args:
        path: its folder.
        data: the federation, if the run got it from a Python program.
        model: the factory of modules, if the run got it from a Python program.
    """
    folder = RunFolder.open(path)
    facts = folder.facts()
    check_own_code(facts, path)
    if facts.production and not folder.divided:
        warnings.warn(PmtlWarning(_UNDIVIDED.format(path)), stacklevel=2)
    if not facts.complete:
        raise PmtlError(
            f"The run at {path} is not finished: continue it with `pmtl resume {quote(str(path))}`."
        )
    written = facts.written
    published, _ = files.read_tensors(folder.shared_file, written["shared"])
    shared = published["weights"]
    if not all(0 <= block < len(shared) for block in facts.blocks):
        raise PmtlError(f"In {folder.facts_file}: the entry 'blocks' is damaged.")
    blocks = np.asarray(facts.blocks, dtype=np.int64)
    personal = None
    if facts.personal:
        personal = PersonalFile(folder.personal_file, blocks, written["personal"], folder.key)
    alone = None
    if "alone" in written:
        alone = PersonalFile(folder.alone_file, blocks, written["alone"], folder.key)
    public, cpu = folder.load_public(facts), torch.device("cpu")
    flat = rebuild_model(facts, model, public)
    if facts.share is not None:  # The file has only the shared part.
        shared = build_share(facts.share, flat, public.rows).to(cpu, shared.dtype).published(shared)
    if shared.shape[-1] != flat.size:
        raise PmtlError(
            f"The run at {path} has models of {shared.shape[-1]:,} weights, but the model that its "
            f"run.json describes has {flat.size:,}: one of the files is damaged."
        )
    return Run(
        facts,
        flat.to(cpu, shared.dtype),
        personal_weights=personal,
        shared_weights=shared,
        privacy=statement_of(facts),
        metrics=folder.metrics.lines(written["metrics"]),
        data=data,
        path=folder.path,
        scaling=folder.load_scaling(written),
        billboard=Billboard.from_tensors(blocks, published),
        digest_key=folder.key,
        alone=alone,
    )


#: The warning for a production run that version 0.1 wrote.
_UNDIVIDED = (
    "The run at {} was written by an earlier version of pmtl, which did not separate private "
    "files: run.json discloses something about clients' rows. Publish none of its files except "
    "shared.safetensors, privacy.txt, privacy.json and metrics.jsonl."
)


def statement_of(facts: RunFacts, finetuned: bool = False) -> Statement:
    """The statement of a finished run; with a ledger, of all that was charged."""
    return make_statement(
        PrivacyPlan.from_dict(facts.plan.to_dict()),  # As it is read later, without its code.
        shares=facts.shares,
        personal=facts.personal,
        mode=facts.mode,
        hardened=facts.hardened,
        metrics=facts.metrics_plan,
        charged=facts.charged,
        population_epsilon=facts.population_epsilon,
        population_filter=facts.population_filter,
        finetuned=finetuned,
        disclosed=(*facts.disclosed, *_public_parts(facts)),
        relations=facts.relations,
        releases=facts.releases,
        choice=facts.choice,
        sites=facts.secure,
    )


def _public_parts(facts: RunFacts) -> Iterator[str]:
    """What the statement says about public files, a user's algorithm and the shared part."""
    if facts.shares and ":" in parse_spec(facts.algorithm)[0]:
        yield text.OWN_ALGORITHM.format(name=parse_spec(facts.algorithm)[0])
    for role, what in text.PUBLIC_FILES.items():
        if file := facts.public_files.get(role):
            yield text.PUBLIC_FILE.format(what=what, file=file["file"], sha256=file["sha256"])
    if facts.share is not None and facts.shares:
        numbers = how_many(facts.shared_numbers or 0, "number")
        yield text.SHARED_PART.format(
            share=facts.share, numbers=numbers, parameters=facts.parameters
        )
