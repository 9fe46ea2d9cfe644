"""The model card of an export: `README.md` with YAML front matter, in Hugging Face's layout.

It says only what is public, except that a client's card names the client: its own model is private
to it, and the card says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pmtl import storage as files
from pmtl._version import __version__
from pmtl.errors import PmtlError
from pmtl.export.answering import output_names
from pmtl.runs.config import IN_MEMORY
from pmtl.runs.result import Run

#: How many names of features or classes a card lists.
_MOST_NAMES = 20


@dataclass(frozen=True)
class Subject:
    """What a card is about."""

    format: str
    file: str  #: the model's file, or one of them
    client: str | None  #: the client whose model it is
    state: frozenset[str]  #: the names of weights and of the values of the scaling
    count: int = 0  #: how many models there are; 0 for one client's
    scaled_by_the_user: tuple[str, ...] = ()  #: features that the user of a shared model scales
    shared: bool = False

    @property
    def scaled(self) -> bool:
        """Whether rows are scaled or filled in front of the network."""
        return "scale.mean" in self.state

    @property
    def many(self) -> bool:
        """Whether the folder has the models of many clients."""
        return self.client is None and not self.shared


def model_card(run: Run, subject: Subject, licence: str) -> str:
    """The text of the card.

    Args:
        run: the run.
        subject: which of its models were exported.
        licence: the licence that the front matter names.
    """
    parts = (
        _front_matter(run, subject, licence),
        f"# {_title(subject)}",
        _details(run, subject),
        f"## Intended use\n\n{_use(run, subject)}",
        f"## How to use it\n\n{_how(run, subject)}",
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
    if (pipeline, kind) != ("image", "regression") and (pipeline, kind) != ("text", "regression"):
        values["pipeline_tag"] = f"{pipeline}-{kind}"
    values["metrics"] = ["rmse", "mae"] if kind == "regression" else ["accuracy"]
    lines = (f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in values.items())
    return "\n".join(("---", *lines, "---"))


def _title(subject: Subject) -> str:
    if subject.shared:
        return "The shared model of a private federation"
    if subject.many:
        return f"The personal models of {subject.count:,} clients"
    return f"The personal model of client {_inline(subject.client)}"


def _details(run: Run, subject: Subject) -> str:
    facts = run.facts
    rows = {
        "network": f"{_inline(facts.model)}, {facts.parameters:,} trained parameters",
        "task": facts.task,
        "trained by": f"pmtl {facts.pmtl}, algorithm {_inline(facts.algorithm)}, {facts.mode}",
        "format": f"{subject.format}, exported by pmtl {__version__}",
        "privacy": f"ε = {_number(run.privacy.epsilon)}, δ = {_number(run.privacy.delta)}, "
        f"{run.privacy.adjacency}",
        "reads": f"`rows`: float32, any number of rows of shape {list(facts.input_shape)}",
        "answers": _answers(run, subject),
    }
    table = [f"| {name} | {value} |" for name, value in rows.items()]
    return "\n".join(("| | |", "|---|---|", *table))


def _answers(run: Run, subject: Subject) -> str:
    task, labels = run.facts.task, run.facts.labels
    if task == "regression":
        return "`prediction`: numbers"
    if task == "multilabel":
        return "`prediction`: 0 or 1 for each label; `probabilities` of labels"
    text = "`prediction`: the number of the class; `probabilities` of classes"
    named = labels is not None and subject.format == "onnx"
    return text + ("; `class_name`: its name" if named else "")


def _use(run: Run, subject: Subject) -> str:
    if subject.shared:
        text = (
            "A start for clients that took no part, and a baseline for those that did. It was "
            "published by the run, with noise, and it belongs to no client."
        )
    elif subject.many:
        text = (
            "Each file is the model of one client and answers best for rows of that client. "
            "`index.json` names the file of every client. Give each client its own file only."
        )
    else:
        text = (
            "Predictions for rows of this client. It was trained for this client and may be wrong "
            "for any other."
        )
    return f"{text}\n\nNot for decisions about people without somebody who answers for them."


_HOW = {
    "onnx": """\
```python
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("{file}")
rows = np.zeros({shape}, dtype=np.float32)
answers = session.run(None, {{"rows": rows}})
print(dict(zip([output.name for output in session.get_outputs()], answers)))
```""",
    "torch": """\
```python
import torch

model = torch.export.load("{file}").module()
print(model(torch.zeros{shape}))  # {answers}
```""",
    "safetensors": """\
The file has the weights by name: `model.…` of the network{scale}. Its metadata says what they are
for.

```python
{imports}

weights = load_file("{file}")
part = {{name[6:]: value for name, value in weights.items() if name.startswith("model.")}}
{rebuild}
```""",
}


_OWN_NETWORK = """\
# The network is the owner's own module: module.load_state_dict(part)
print({name: tuple(value.shape) for name, value in part.items()})"""

_SCALE = """\
scale = {name[6:]: value.numpy() for name, value in weights.items() if name.startswith("scale.")}
rows = Standardise(**scale)(rows)
"""


def _imports(own: bool, scaled: bool) -> Iterator[str]:
    if not own:
        yield "import torch"
    yield "from safetensors.torch import load_file"
    if not own:
        yield "\nfrom pmtl.models import build_model"
        if scaled:
            yield "from pmtl.models.library import Standardise"


def _rebuilt(run: Run, subject: Subject) -> str:
    facts = run.facts
    sizes = (facts.model, facts.input_shape, facts.outputs, facts.task)
    return (
        f"network = build_model{(*sizes, 0)!r}.module.eval()\n"
        f"network.load_state_dict(part)\nrows = torch.zeros{(2, *facts.input_shape)!r}\n"
        f"{_SCALE if subject.scaled else ''}"
        f"print(network(rows))  # {'numbers' if facts.task == 'regression' else 'logits'}"
    )


def _how(run: Run, subject: Subject) -> str:
    facts = run.facts
    own = facts.model == IN_MEMORY or ":" in facts.model
    scaled = "; `scale.…` of the scaling in front of it" if subject.scaled else ""
    text = _HOW[subject.format].format(
        file=subject.file,
        shape=(2, *facts.input_shape),
        answers=", ".join(output_names(facts.task)),
        scale=scaled,
        imports="\n".join(_imports(own, subject.scaled)),
        rebuild=_OWN_NETWORK if own else _rebuilt(run, subject),
    )
    notes = []
    if facts.feature_names is not None:
        notes.append(f"The columns of a row, in this order: {_names(facts.feature_names)}.")
    if facts.labels is not None:
        notes.append(f"The classes, from 0: {_names(facts.labels)}.")
    if facts.pixels:
        notes.append("Pixels are numbers between 0 and 1.")
    if facts.text is not None:
        notes.append("`text.json` says how a text becomes a row.")
    if getattr(facts, "schema", None) is not None:
        notes.append("`schema.json` says how the columns of a table become a row.")
    if subject.scaled_by_the_user:
        notes.append(
            f"Before this model, scale {_names(subject.scaled_by_the_user)} by rows of your own: "
            "0 and 1 become −1 and 1; a feature of a size near 1 (root mean square from 0.1 to 3) "
            "stays; any other one is centred at its mean and divided by its deviation. The file "
            "limits them to ±4."
        )
    elif subject.scaled and subject.format != "safetensors":
        notes.append("Rows are given as they are: the scaling is inside the file.")
    if "scale.fill" in subject.state:
        missing = "The file fills empty cells (NaN)."
        if subject.shared:
            missing = (
                "The file fills empty cells (NaN) of features with public bounds by the middle of "
                "them; fill other ones by the median of your own rows."
            )
        notes.append(missing)
    return "\n\n".join((text, *notes))


def _data(run: Run) -> str:
    facts = run.facts
    kinds = {"classification": "classes", "multilabel": "labels", "regression": "numbers"}
    return (
        f"{len(facts.clients):,} clients with rows of shape {list(facts.input_shape)}, and "
        f"{facts.outputs} {kinds[facts.task]} to predict. The rows stayed with the clients, and "
        "this card says nothing about them."
    )


def _evaluation(run: Run) -> str:
    if run.facts.production:
        released = run.released()
        if not released:
            return "No metrics were released: exact ones are private."
        last = {name: value for name, value in released[-1].items() if name != "noise"}
        return (
            "Averages over all clients, which passed the gate and are paid for in ε (noise "
            f"included):\n\n{_table(_flat(last))}"
        )
    found = _measured(run)
    if found is None:
        return "Not measured: run `pmtl evaluate` on the run."
    return f"On test rows of all clients together, exact (an experiment):\n\n{_table(_flat(found))}"


def _measured(run: Run) -> Mapping[str, Any] | None:
    if run.path is None:
        return None
    try:
        return files.read_json(Path(run.path) / "result.json").get("test")
    except PmtlError:  # It is not there, or not as it was written.
        return None


_EXPERIMENT = (
    " The run was an experiment, whose noise anybody with the seed can compute: its models are not "
    "private."
)

_PRIVACY = {
    "shared": "Everything in this folder was published by the run or is public knowledge.",
    "client": "**Private to this client.** The model was made from the client's own rows, and "
    "whoever has it may learn about them. Give this folder to the client and to nobody else. The "
    "statement protects the other clients.",
    "many": "**Private to each client.** A model was made from its client's own rows, and whoever "
    "has it may learn about them. Give each client its own file and no other one; this folder is "
    "for the owner of the run only. The statement protects the other clients.",
}


def _privacy(run: Run, subject: Subject) -> str:
    kind = "shared" if subject.shared else "many" if subject.many else "client"
    more = "" if run.facts.production else _EXPERIMENT
    return f"{_PRIVACY[kind]}{more}\n\n```text\n{str(run.privacy).strip()}\n```"


def _limits(run: Run, subject: Subject) -> str:
    limits = [
        "The file was compared with the run on a few rows that were made up: it computes what the "
        "run computes, which says nothing about how good that is on new data.",
        "Rows have the columns that are listed above, in that order; nothing checks it.",
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


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", value


def _table(values: Iterable[tuple[str, Any]]) -> str:
    rows = [f"| {name.replace('_', ' ')} | {_number(value)} |" for name, value in values]
    return "\n".join(("| | |", "|---|---:|", *rows))


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _names(names: Iterable[str]) -> str:
    every = list(names)
    shown = ", ".join(_inline(name) for name in every[:_MOST_NAMES])
    more = len(every) - _MOST_NAMES
    return shown if more <= 0 else f"{shown} and {more:,} more (all are in `model.json`)"


def _inline(text: str | None) -> str:
    """Any text as code within a line of Markdown."""
    plain = " ".join(str(text).split()).replace("`", "'").replace("|", "\\|")
    return f"`{plain}`"
