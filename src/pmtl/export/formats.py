"""The formats of exported models. Each is made once for a network and filled with any weights.

Tracing a network takes about a second, and filling the traced graph with another client's weights
some milliseconds, so that ten thousand clients take minutes.
"""

from __future__ import annotations

import copy
import io
import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pmtl.data.schema.schema import Schema
from pmtl.errors import PmtlError, is_out_of_memory
from pmtl.export.columns import Trial, add_columns, trial_of
from pmtl.export.predictor import Answers, Array, Predictor
from pmtl.jsontext import to_json
from pmtl.models import Task
from pmtl.spec import unknown

#: The name of a file's metadata, which is JSON.
KEY = "pmtl"


@contextmanager
def _traced(name: str) -> Iterator[None]:
    """Turn any error of tracing, writing or running a network into a `PmtlError`, and hide the
    exporter's own warnings, which are not about the user's model."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:  # The user's network and the exporter may raise anything.
        if is_out_of_memory(error):
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise PmtlError(
            f"This model cannot be exported to {name}: {reason}. Its weights alone can always be "
            "exported: use --to safetensors."
        ) from error
    finally:
        logger.setLevel(level)


class Format(ABC):
    """A way to write a model.

    Args:
        module: the model whose network is traced; its weights do not matter.
        rows: rows that it can read.
        classes: the names of classes, if they have names.
        schema: how the columns of a table become rows, if the graph is to read columns. A format
            whose graphs cannot hold text reads rows.
    """

    name: ClassVar[str]
    ending: ClassVar[str]
    reads_columns: ClassVar[bool] = False  #: whether graphs can read the columns of a table

    def __init__(
        self,
        module: Predictor,
        rows: Array,
        classes: Sequence[str] | None,
        schema: Schema | None = None,
    ) -> None:
        self.module, self.classes = copy.deepcopy(module).eval().requires_grad_(False), classes
        self.schema = schema if self.reads_columns else None
        self.task: Task = module.task
        self._trace(torch.from_numpy(rows))

    @abstractmethod
    def _trace(self, rows: Tensor) -> None:
        """Keep what all files of this network have in common."""

    def trial(self, rows: NDArray[np.float32]) -> Trial:
        """What a file of this format is tried with: these rows, or a table if it reads columns."""
        return Trial(rows, {"rows": rows}) if self.schema is None else trial_of(self.schema, rows)

    @abstractmethod
    def content(self, module: Predictor, about: Mapping[str, Any]) -> bytes:
        """The file of a model with the same network, with the metadata `about` as JSON."""

    @abstractmethod
    def answers(self, content: bytes, inputs: Mapping[str, Array]) -> Answers:
        """What the model in a file answers (to `rows`, or columns), by the runtime of users."""


class Onnx(Format):
    """ONNX, for onnxruntime and other programs."""

    name, ending = "onnx", ".onnx"
    reads_columns = True

    @_traced(name)
    def _trace(self, rows: Tensor) -> None:
        onnx = _import_onnx()[0]
        program = _program(self.module, rows)
        # Without optimisation every weight keeps its name and place; runtimes optimise by
        # themselves when they load the file.
        made = torch.onnx.export(
            program,
            input_names=["rows"],
            output_names=[*self.module.outputs],
            optimize=False,
            verbose=False,
        )
        assert made is not None
        self._proto = made.model_proto  # Every access makes another one.
        graph = self._proto.graph
        if self.classes is not None and self.task == "classification":
            table = np.array(self.classes, dtype=object)
            graph.initializer.append(onnx.numpy_helper.from_array(table, "pmtl_class_names"))
            inputs, helper = ["pmtl_class_names", "prediction"], onnx.helper
            graph.node.append(helper.make_node("Gather", inputs, ["class_name"]))
            kind = onnx.TensorProto.STRING
            graph.output.append(helper.make_tensor_value_info("class_name", kind, ["rows"]))
        for node in graph.node:  # Its metadata quotes source code and paths.
            del node.metadata_props[:]
        for value in (*graph.input, *graph.output):
            value.type.tensor_type.shape.dim[0].dim_param = "rows"
        del graph.value_info[:]
        if self.schema is not None:
            add_columns(onnx, self._proto, self.schema)
        self._slots = {slot.name: slot for slot in graph.initializer}
        if lost := sorted(set(self.module.state_dict()) - set(self._slots)):
            raise PmtlError(f"The graph has no place for {', '.join(lost)}.")

    @_traced(name)
    def content(self, module: Predictor, about: Mapping[str, Any]) -> bytes:
        onnx, _ = _import_onnx()
        for name, value in module.state_dict().items():
            self._slots[name].CopyFrom(onnx.numpy_helper.from_array(value.numpy(), name))
        onnx.helper.set_model_props(self._proto, {KEY: to_json(about)})
        return bytes(self._proto.SerializeToString())

    @_traced(name)
    def answers(self, content: bytes, inputs: Mapping[str, Array]) -> Answers:
        _, runtime = _import_onnx()
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        outputs = [output.name for output in session.get_outputs()]
        found = dict(zip(outputs, session.run(None, dict(inputs)), strict=True))
        if self.classes is not None and self.task == "classification":
            names = [self.classes[place] for place in found["prediction"]]
            if found.pop("class_name").tolist() != names:
                raise PmtlError("The names of classes in the ONNX file are not the run's.")
        return found


class Torch(Format):
    """The archive of torch.export, for PyTorch without the network's source code."""

    name, ending = "torch", ".pt2"

    @_traced(name)
    def _trace(self, rows: Tensor) -> None:
        self._program = _program(self.module, rows)

    @_traced(name)
    def content(self, module: Predictor, about: Mapping[str, Any]) -> bytes:
        with torch.no_grad():
            for name, value in module.state_dict().items():
                self._program.state_dict[name].copy_(value)
        buffer = io.BytesIO()
        torch.export.save(self._program, buffer, extra_files={KEY: to_json(about)})
        return buffer.getvalue()

    @_traced(name)
    def answers(self, content: bytes, inputs: Mapping[str, Array]) -> Answers:
        with torch.no_grad():
            loaded = torch.export.load(io.BytesIO(content)).module()
            values = [value.numpy() for value in loaded(torch.from_numpy(inputs["rows"]))]
        return dict(zip(self.module.outputs, values, strict=True))


class Safetensors(Format):
    """Weights only: `model.…` of the network, `scale.…` of the client's scaling."""

    name, ending = "safetensors", ".safetensors"

    def _trace(self, rows: Tensor) -> None:
        return None

    @_traced(name)
    def content(self, module: Predictor, about: Mapping[str, Any]) -> bytes:
        from safetensors.torch import save

        # Tied weights are written once for each of their names.
        state = {name: value.clone().contiguous() for name, value in module.state_dict().items()}
        return bytes(save(state, {KEY: to_json(about), "format": "pt"}))

    @_traced(name)
    def answers(self, content: bytes, inputs: Mapping[str, Array]) -> Answers:
        from safetensors.torch import load

        self.module.load_state_dict(load(content))
        return self.module.answers(inputs["rows"])


FORMATS: dict[str, type[Format]] = {kind.name: kind for kind in (Onnx, Torch, Safetensors)}


def find_format(name: str) -> type[Format]:
    """The format of this name; refused if its package is not installed."""
    if name not in FORMATS:
        raise unknown("format", name, FORMATS)
    if name == "onnx":
        _import_onnx()
    return FORMATS[name]


def _program(module: Predictor, rows: Tensor) -> Any:
    """The traced network, for any number of rows and without paths of source files."""
    batch = {0: torch.export.Dim("rows")}
    program = torch.export.export(module, (rows,), dynamic_shapes={"rows": batch})
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    return program


def _import_onnx() -> tuple[Any, Any]:
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  torch.onnx needs it.
    except ImportError as error:
        raise PmtlError(
            f"Exports to ONNX need the package {error.name!r}: run `pip install 'pmtl[onnx]'`, or "
            "use --to torch."
        ) from error
    return onnx, onnxruntime
