"""How to use an exported model: the part of its card with code that runs in its folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pmtl.data.schema.schema import Schema
from pmtl.export.columns import input_description, input_names
from pmtl.export.predictor import output_names
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
    count: int  #: how many models there are
    scaled_by_the_user: tuple[str, ...] = ()  #: features that the user of a shared model scales
    shared: bool = False
    columns: Schema | None = None  #: how the graph itself makes rows of columns, if it does

    @property
    def scaled(self) -> bool:
        """Whether rows are scaled or filled in front of the network."""
        return "scale.mean" in self.state

    @property
    def many(self) -> bool:
        """Whether the folder has the models of many clients."""
        return self.client is None and not self.shared

    @property
    def kind(self) -> str:
        """Whose model it is: shared, many clients' or one client's."""
        return "shared" if self.shared else "many" if self.many else "client"


_HOW = {
    "onnx": """\
```python
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("{file}")
{inputs}
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


def _inputs(schema: Schema | None, shape: tuple[int, ...]) -> str:
    """Two rows or, with a schema, two rows of a table, and what an ONNX graph answers, as code."""
    if schema is None:
        rows = f"rows = np.zeros({shape}, dtype=np.float32)"
        return f'{rows}\nanswers = session.run(None, {{"rows": rows}})'
    lines = ["columns = {  # Two rows."]
    for name, column in input_names(schema).items():
        kind, words = input_description(column)
        if column.hash is not None:
            values: object = [[0] * len(column.features)] * 2
        else:
            values = [(column.categories or ("",))[0], ""] if kind == "object" else [0, 1]
        array = f"np.array({values!r}, dtype={'object' if kind == 'object' else f'np.{kind}'})"
        lines.append(f"    {name!r}: {array},  # {words}")
    return "\n".join((*lines, "}", "answers = session.run(None, columns)"))


_OWN_NETWORK = """\
# The network is the owner's own module: module.load_state_dict(part)
print({name: tuple(value.shape) for name, value in part.items()})"""

_SCALE = """\
scale = {name[6:]: value.numpy() for name, value in weights.items() if name.startswith("scale.")}
rows = Standardise(**scale)(rows)
"""


_IMPORTS = """\
import torch
from safetensors.torch import load_file

from pmtl.models import build_model"""


def _rebuilt(run: Run, subject: Subject) -> str:
    facts = run.facts
    sizes = (facts.model, facts.input_shape, facts.outputs, facts.task)
    return (
        f"network = build_model{(*sizes, 0)!r}.module.eval()\n"
        f"network.load_state_dict(part)\nrows = torch.zeros{(2, *facts.input_shape)!r}\n"
        f"{_SCALE if subject.scaled else ''}"
        f"print(network(rows))  # {'numbers' if facts.task == 'regression' else 'logits'}"
    )


def how_to_use(run: Run, subject: Subject) -> str:
    """The section of a card with code to run and notes on what to give to it."""
    facts = run.facts
    own = facts.model == IN_MEMORY or ":" in facts.model
    scaled = "; `scale.…` of the scaling in front of it" if subject.scaled else ""
    more = "\nfrom pmtl.models.library import Standardise" if subject.scaled else ""
    shape = (2, *facts.input_shape)
    text = _HOW[subject.format].format(
        inputs=_inputs(subject.columns, shape),
        file=subject.file,
        shape=shape,
        answers=", ".join(output_names(facts.task)),
        scale=scaled,
        imports="from safetensors.torch import load_file" if own else _IMPORTS + more,
        rebuild=_OWN_NETWORK if own else _rebuilt(run, subject),
    )
    notes = []
    if subject.columns is not None:
        notes.append(
            "The file reads the columns of a table by name, as they are, and makes features of "
            "them as in training. A text that is not one of a column's categories counts as "
            "none of them. Cells are not trimmed of spaces."
        )
    elif facts.feature_names is not None:
        notes.append(f"The columns of a row, in this order: {names(facts.feature_names)}.")
    if facts.labels is not None:
        notes.append(f"The classes, from 0: {names(facts.labels)}.")
    if facts.pixels:
        notes.append("Pixels are numbers between 0 and 1.")
    if facts.text is not None:
        notes.append("`text.json` says how a text becomes a row.")
    if facts.schema is not None and subject.columns is None:
        notes.append("`schema.json` says how the columns of a table become a row.")
    if subject.scaled_by_the_user:
        notes.append(
            f"Before this model, scale {names(subject.scaled_by_the_user)} by rows of your own: "
            "0 and 1 become −1 and 1; a feature of a size near 1 (root mean square from 0.1 to 3, "
            "or from 1/3 if a row has 100 features or more) stays; any other one is centred at its "
            "mean and divided by its deviation. The file limits them to ±4."
        )
    elif subject.scaled and subject.format != "safetensors":
        notes.append("Rows are given as they are: the scaling is inside the file.")
    if "scale.fill" in subject.state:
        missing = "The file fills empty cells (NaN)."
        if subject.shared:
            missing = (
                "The file fills empty cells (NaN) of features with public bounds by the middle of "
                "them; fill empty cells of other features by the median of your own rows."
            )
        notes.append(missing)
    return "\n\n".join((text, *notes))


def names(every: Sequence[str]) -> str:
    """The first of these names, as code within a line."""
    shown = ", ".join(inline(name) for name in every[:_MOST_NAMES])
    more = len(every) - _MOST_NAMES
    return shown if more <= 0 else f"{shown} and {more:,} more (all are in `model.json`)"


def inline(text: str | None) -> str:
    """Any text as code within a line of Markdown."""
    plain = " ".join(str(text).split()).replace("`", "'").replace("|", "\\|")
    return f"`{plain}`"
