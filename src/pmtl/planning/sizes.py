"""How many numbers the library's models have, in all and in parts, without building them.

`tests/planning/test_sizes.py` compares every number with the model itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt

from pmtl.errors import PmtlError
from pmtl.plugins import entries
from pmtl.spec import construct, parse_spec, unknown

ALL, HEAD, BIASES = "all", "head", "biases"
MOMENTS = "second moments"
#: The largest number that is accepted; no number of clients would be enough for more parameters.
MOST_NUMBERS = 10**15
#: Models of which one linear layer is all that is trained.
LINEAR = ("auto", "logistic", "linear", "hog")


@dataclass(frozen=True)
class Parts:
    """The numbers of a model's parameters."""

    all: int
    head: int  #: of the last layer
    biases: int  #: of all layers
    moments: int | None = None  #: of XᵀX and Xᵀy, for a linear model with one target


def parts_of(model: str, columns: int, classes: int) -> Parts:
    """The parts of the model with this spec (`mlp:hidden=128`; `auto` is a linear layer), for rows
    of `columns` numbers and `classes` outputs: classes or labels, 1 for a number."""
    check_count(columns, "columns")
    check_count(classes, "classes")
    name, options = parse_spec(model)
    if name in MODEL_PARTS:
        return construct(
            MODEL_PARTS[name], options, f"model {name}", columns=columns, classes=classes
        )
    if ":" in name or name in entries("model"):
        raise PmtlError(
            f"The parameters of {name!r} cannot be counted from public numbers: give their number "
            "with --parameters instead of --model."
        )
    raise unknown("model whose parameters can be counted named", name, MODEL_PARTS)


def check_count(value: object, name: str) -> int:
    """The number of `name`, which must be a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_NUMBERS:
        raise PmtlError(
            f"The number of {name} must be a whole number between 1 and {MOST_NUMBERS:,}, but "
            f"{value!r} was given."
        )
    return value


def is_linear(model: str) -> bool:
    """Whether the spec names a linear model, for which pooling is the default method."""
    return parse_spec(model)[0] in LINEAR


def _linear(columns: int, classes: int) -> Parts:
    weights = columns + 1
    # Two classes are one yes-or-no target.
    moments = weights * (weights + 3) // 2 if classes <= 2 else None
    return Parts(weights * classes, weights * classes, classes, moments)


def _mlp(columns: int, classes: int, hidden: int = 64, layers: int = 1) -> Parts:
    if hidden < 1 or layers < 1:
        raise PmtlError("An mlp needs hidden ≥ 1 and layers ≥ 1; use logistic for no layer.")
    check_count(hidden, "hidden units")
    check_count(layers, "layers")
    head = (hidden + 1) * classes
    whole = (columns + 1) * hidden + (layers - 1) * (hidden + 1) * hidden + head
    return Parts(whole, head, layers * hidden + classes)


def _femnist_cnn(columns: int, classes: int) -> Parts:
    _pixels("femnist_cnn", columns, 28 * 28)
    head = 1025 * classes
    return Parts((25 + 1) * 32 + (25 * 32 + 1) * 64 + head, head, 32 + 64 + classes)


def _celeba_cnn(columns: int, classes: int, groups: int = 8) -> Parts:
    _pixels("celeba_cnn", columns, 3 * 84 * 84)
    head, normalisation = 801 * classes, 4 * 2 * 32
    convolutions = (9 * 3 + 1) * 32 + 3 * (9 * 32 + 1) * 32
    return Parts(convolutions + normalisation + head, head, 2 * 4 * 32 + classes)


def _hog(columns: int, classes: int, cells: int = 4, bins: int = 18) -> Parts:
    side = isqrt(columns)
    if side**2 != columns or not 1 <= cells <= side or bins < 2:
        raise PmtlError(
            "The model 'hog' reads grey square images and cuts them into cells, but a row has "
            f"{columns} columns (with cells={cells}, bins={bins})."
        )
    check_count(bins, "bins")
    return _linear(bins * cells**2, classes)


def _pixels(model: str, columns: int, needed: int) -> None:
    if columns != needed:
        raise PmtlError(
            f"The model {model!r} reads rows of {needed:,} pixels, but {columns:,} columns were "
            f"given: use --columns {needed}, or another model."
        )


MODEL_PARTS: dict[str, Callable[..., Parts]] = {
    "auto": _linear,
    "logistic": _linear,
    "linear": _linear,
    "mlp": _mlp,
    "femnist_cnn": _femnist_cnn,
    "celeba_cnn": _celeba_cnn,
    "hog": _hog,
}
