"""The model card of an export: `README.md` with YAML front matter, in Hugging Face's layout.

It has only public content, except that the card of a client's model names the client and states
that the model is private to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pmtl import storage as files
from pmtl._version import __version__
from pmtl.errors import PmtlError, how_many
from pmtl.export.usage import Subject, how_to_use, inline
from pmtl.runs.result import Run
from pmtl.views.frames import flat_row

_TITLES = {
    "shared": "The shared model of a private federation",
    "many": "The personal models of {0:,} clients",
    "client": "The personal model of client {1}",
}
_USES = {
    "shared": "A start for clients that took no part, and a baseline for those that did. It was "
    "published by the run, with noise, and it belongs to no client.",
    "many": "Each file is the model of one client and answers best for rows of that client. "
    "`index.json` names the file of every client. Give each client its own file only.",
    "client": "Predictions for rows of this client. It was trained for this client and may be "
    "wrong for any other.",
}
_NOT_FOR = "Not for decisions about people without a person who is responsible for them."


def model_card(run: Run, subject: Subject, licence: str) -> str:
    """The text of the card; its front matter names the licence."""
    parts = (
        _front_matter(run, subject, licence),
        f"# {_TITLES[subject.kind].format(subject.count, inline(subject.client))}",
        _details(run, subject),
        f"## Intended use\n\n{_USES[subject.kind]}\n\n{_NOT_FOR}",
        f"## How to use it\n\n{how_to_use(run, subject)}",
        f"## Training data\n\n{_data(run)}",
        f"## Evaluation\n\n{_evaluation(run)}",
        f"## Privacy\n\n{_privacy(run, subject)}",
        f"## Limits\n\n{_limits(run, subject)}",
    )
    return "\n\n".join(parts) + "\n"


def _front_matter(run: Run, subject: Subject, licence: str) -> str:
    """YAML; every value is written as JSON, which YAML reads."""
    facts = run.facts
    kind = "regression" if facts.task == "regression" else "classification"
    pipeline = "image" if facts.pixels else "text" if facts.text is not None else "tabular"
    values: dict[str, Any] = {
        "license": licence,
        "library_name": "onnx" if subject.format == "onnx" else "pytorch",
        "tags": [
            *("federated-learning", "differential-privacy", "multi-task-learning", "pmtl"),
            *([] if subject.shared else ["personalization"]),
        ],
    }
    if kind == "classification" or pipeline == "tabular":
        values["pipeline_tag"] = f"{pipeline}-{kind}"
    values["metrics"] = ["rmse", "mae"] if kind == "regression" else ["accuracy"]
    lines = (f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in values.items())
    return "\n".join(("---", *lines, "---"))


def _details(run: Run, subject: Subject) -> str:
    facts = run.facts
    rows = {
        "network": f"{inline(facts.model)}, {facts.parameters:,} trained parameters",
        "task": facts.task,
        "trained by": f"pmtl {facts.pmtl}, algorithm {inline(facts.algorithm)}, {facts.mode}",
        "format": f"{subject.format}, exported by pmtl {__version__}",
        "privacy": f"ε = {_number(run.privacy.epsilon)}, δ = {_number(run.privacy.delta)}, "
        f"{run.privacy.adjacency}",
        "reads": f"`rows`: float32, any number of rows of shape {list(facts.input_shape)}"
        if subject.columns is None
        else f"{how_many(len(subject.columns.features), 'column')} of a table, by name; any "
        "number of rows",
        "answers": _answers(run, subject),
    }
    return _table(rows, "---")


def _answers(run: Run, subject: Subject) -> str:
    task, labels = run.facts.task, run.facts.labels
    if task == "regression":
        return "`prediction`: numbers"
    if task == "multilabel":
        return "`prediction`: 0 or 1 for each label; `probabilities` of labels"
    text = "`prediction`: the number of the class; `probabilities` of classes"
    named = labels is not None and subject.format == "onnx"
    return text + ("; `class_name`: its name" if named else "")


def _data(run: Run) -> str:
    facts = run.facts
    kinds = {
        "classification": f"{facts.outputs} classes",
        "multilabel": how_many(facts.outputs, "label"),
        "regression": how_many(facts.outputs, "number"),
    }
    return (
        f"{how_many(len(facts.clients), 'client')} with rows of shape {list(facts.input_shape)}, "
        f"and {kinds[facts.task]} to predict. The rows stayed with the clients, "
        "and this card says nothing about them."
    )


def _evaluation(run: Run) -> str:
    if run.facts.production:
        released = run.released()
        if not released:
            return "No metrics were released: exact ones are private."
        last = {name: value for name, value in released[-1].items() if name != "noise"}
        return (
            "Averages over all clients, which passed the gate and are paid for in ε (noise "
            f"included):\n\n{_table(last)}"
        )
    found = _measured(run)
    if found is None:
        return "Not measured: run `pmtl evaluate` on the run."
    return f"On test rows of all clients together, exact (an experiment):\n\n{_table(found)}"


def _measured(run: Run) -> Mapping[str, Any] | None:
    if run.path is None:
        return None
    try:
        return files.read_json(Path(run.path) / "result.json").get("test")
    except PmtlError:  # It is not there, or not as it was written.
        return None


_EXPERIMENT = (
    " The run was an experiment, whose noise can be computed from the seed: its models are not "
    "private."
)

_PRIVACY = {
    "shared": "Everything in this folder was published by the run or is public knowledge.",
    "client": "**Private to this client.** The model was made from the client's own rows and may "
    "reveal something about them. Give this folder to the client only. The statement protects the "
    "other clients.",
    "many": "**Private to each client.** A model was made from its client's own rows and may "
    "reveal something about them. Give each client its own file only; this folder is for the owner "
    "of the run only. The statement protects the other clients.",
}


def _privacy(run: Run, subject: Subject) -> str:
    more = "" if run.facts.production else _EXPERIMENT
    return f"{_PRIVACY[subject.kind]}{more}\n\n```text\n{str(run.privacy).strip()}\n```"


def _limits(run: Run, subject: Subject) -> str:
    limits = [
        "On a few made-up rows, the file gives the same answers as the run. This says nothing "
        "about how good the answers are on new data.",
        "Rows have the columns that are listed above, in that order; nothing checks it."
        if subject.columns is None
        else "Nothing checks what the columns hold; the run's own predictions do.",
    ]
    if run.not_finite is not None and not run.facts.production:
        limits.append("Training diverged for some clients of this run.")
    if subject.format == "torch":
        limits.append(
            "The archive is read by the version of PyTorch that wrote it, or a later one."
        )
    if subject.format == "safetensors":
        limits.append("The file has weights and no network: the network's code is needed, too.")
    return "\n".join(f"- {limit}" for limit in limits)


def _table(values: Mapping[str, Any], second: str = "---:") -> str:
    flat = flat_row(values, separator=" ").items()
    rows = [f"| {name.replace('_', ' ')} | {_number(value)} |" for name, value in flat]
    return "\n".join(("| | |", f"|---|{second}|", *rows))


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
