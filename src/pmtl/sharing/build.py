"""From `share=…` and public files to an algorithm that shares a part of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from pmtl.algorithms import Algorithm, ExactAlgorithm
from pmtl.errors import PmtlError
from pmtl.models import FlatModel, PublicFile, read_public
from pmtl.sharing.algorithm import SharedPart
from pmtl.sharing.kinds import basis_rows, by_name, film, lowrank, subspace
from pmtl.sharing.share import Basis, Share
from pmtl.spec import construct, format_spec, parse_spec, unknown
from pmtl.storage import digest

BASIS = "basis"
KINDS: dict[str, Callable[..., Share]] = {
    "subspace": subspace,
    "lowrank": lowrank,
    "film": film,
}
#: The prefix of a start's tensors in a run's folder.
_START = "start."


def basis_path(share: str | None) -> str | None:
    """The file that a share names, if any."""
    if share is None:
        return None
    name, options = parse_spec(share)
    if name != BASIS:
        return None
    if set(options) != {"file"}:
        raise PmtlError("A basis is read from a file: write share=basis:file=FILE.safetensors.")
    return options["file"]


def build_share(spec: str, model: FlatModel, rows: Tensor | None = None) -> Share:
    """The part of a model, which has the common start as its parameters, that a spec names:
    patterns of names joined by +, or a kind with its options (`kinds.py`). `rows` are the
    directions of a basis, which `basis_rows` reads."""
    name, options = parse_spec(spec)
    if name == BASIS:
        if rows is None:
            raise PmtlError("A basis is read from a file: write share=basis:file=FILE.safetensors.")
        return Basis.of(model.layout, model.start(), rows)
    if name in KINDS:
        return construct(KINDS[name], options, f"share {name}", model=model)
    if options:
        raise unknown("kind of share", name, [*KINDS, BASIS])
    return by_name(model, spec)


def share_part(
    algorithm: Algorithm, spec: str | None, model: FlatModel, rows: Tensor | None = None
) -> Algorithm:
    """The algorithm on the part of the model that `spec` names; without one, as it is."""
    if spec is None:
        return algorithm
    part = build_share(spec, model, rows)
    if isinstance(algorithm, ExactAlgorithm):
        return algorithm.with_part(part)
    return SharedPart(algorithm, part)


@dataclass(frozen=True)
class PublicInputs:
    """The contents of the public files that a run uses."""

    start: Mapping[str, Tensor] | None = None  #: the start, by names of parameters
    rows: Tensor | None = None  #: the directions of a basis
    about: Mapping[str, Any] = field(default_factory=dict)  #: name and digest of each file
    basis: PublicFile | None = None  #: the basis as it was read

    @classmethod
    def read(cls, init: str | None, share: str | None) -> PublicInputs:
        """Read the files that the settings name."""
        path = basis_path(share)
        start = None if init is None else read_public(init, "start")
        basis = None if path is None else read_public(path, "basis")
        files = {"init": start, "basis": basis}
        about = {role: file.about() for role, file in files.items() if file is not None}
        return cls(None if start is None else start.tensors, None, about, basis)

    def fitted(self, model: FlatModel) -> PublicInputs:
        """The parts that this model uses."""
        start, rows = self.start, self.rows
        if start is not None:
            start = {name: start[name] for name in model.module.state_dict() if name in start}
        if self.basis is not None:
            rows = basis_rows(self.basis, model)
        return PublicInputs(start, rows, self.about)

    def tensors(self) -> dict[str, Tensor]:
        """A copy for the run's folder, so that the run does not need the files any more."""
        start = {f"{_START}{name}": value for name, value in (self.start or {}).items()}
        return start if self.rows is None else {**start, BASIS: self.rows}

    def digest(self) -> str | None:
        """The digest of `tensors`; None if there are none."""
        tensors = {name: value.detach().cpu() for name, value in self.tensors().items()}
        return digest(tensors, {}) if tensors else None

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> PublicInputs:
        start = {
            name.removeprefix(_START): value
            for name, value in tensors.items()
            if name.startswith(_START)
        }
        return cls(start or None, tensors.get(BASIS))


def named(share: str | None) -> str | None:
    """The share with the name of a file in place of its path, for publication."""
    return _with_path(share, lambda path: path.name)


def absolute(share: str | None) -> str | None:
    """The share with an absolute path, so that a run can be started again from any folder."""
    return _with_path(share, Path.absolute)


def _with_path(share: str | None, changed: Callable[[Path], Any]) -> str | None:
    path = basis_path(share)
    return share if path is None else format_spec(BASIS, {"file": changed(Path(path))})
