"""From `logistic`, `mlp:hidden=128` or `package.module:factory` to a model for given data."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from pmtl.errors import PmtlError, is_out_of_memory, kind_of
from pmtl.models.flat import FlatModel, refuse_changing_buffers
from pmtl.models.hog import HogLinear
from pmtl.models.layout import Traits
from pmtl.models.library import MLP, CelebaCNN, FemnistCNN, Linear, Shape
from pmtl.models.lookup import Lookups
from pmtl.models.losses import Task
from pmtl.models.start import freeze, load_start
from pmtl.plugins import error_text, find
from pmtl.spec import construct, parse_spec
from pmtl.streams import subseed

MODELS: dict[str, Callable[..., nn.Module]] = {
    "logistic": Linear,
    "linear": Linear,
    "mlp": MLP,
    "femnist_cnn": FemnistCNN,
    "celeba_cnn": CelebaCNN,
    "hog": HogLinear,
}
#: A model is run so often to see whether it draws random numbers: few draws may be equal by chance.
_TRIALS = 8


def build_model(
    spec: str | Callable[..., nn.Module],
    input_shape: Shape,
    outputs: int,
    task: Task,
    seed: int,
    init: Mapping[str, Tensor] | None = None,
    frozen: str | None = None,
) -> FlatModel:
    """Build a model for given data.

    Args:
        spec: `mlp:hidden=128`, `package.module:factory:key=value`, `auto`, or a factory.
        input_shape: the shape of one row.
        outputs: how many outputs the model must have.
        task: what it is trained for.
        seed: draws its first parameters.
        init: a public start, by the names of parameters; it replaces what the seed drew.
        frozen: parameters that are not trained, as patterns of names joined by +.
    """
    with torch.random.fork_rng(devices=()):  # Only the CPU's generator is used.
        torch.manual_seed(subseed(seed, "initialisation"))
        module, name = _make(spec, input_shape, outputs, task)
        if init is not None or frozen is not None:
            module = copy.deepcopy(module)  # A factory may return the same module every time.
        if init is not None:
            load_start(module, init)
        if frozen is not None:
            freeze(module, frozen)
        traits = _trial_run(FlatModel(module, name), input_shape, outputs)
        model = FlatModel(module, name, traits)
        model.public = frozenset(init or ())
        return model


def check_model(model: Any) -> None:
    """Refuse what is neither a spec of a model that there is nor a factory."""
    if isinstance(model, nn.Module):
        raise PmtlError(
            "A model is a spec (mlp:hidden=64) or a function that makes a module, but "
            f"{kind_of(model)} was given: write model=lambda input_shape, outputs: …, so "
            "that the run can draw its first weights from its seed."
        )
    if not isinstance(model, str) and not callable(model):
        raise PmtlError(
            "A model is a spec (mlp:hidden=64) or a function that makes a torch module, but "
            f"{kind_of(model)} was given."
        )
    name = parse_spec(model)[0] if isinstance(model, str) else "auto"
    if name != "auto":
        find("model", name, MODELS)


def _make(
    spec: str | Callable[..., nn.Module], input_shape: Shape, outputs: int, task: Task
) -> tuple[nn.Module, str]:
    sizes = {"input_shape": input_shape, "outputs": outputs}
    if not isinstance(spec, str):
        name = getattr(spec, "__name__", type(spec).__name__)
        _refuse_further_parameters(spec, name)
        return _call_factory(spec, {}, sizes, name), name
    name, options = parse_spec(spec)
    default = "linear" if task == "regression" else "logistic"
    if name == "auto":
        name = default
    if name in ("linear", "logistic") and name != default:
        raise PmtlError(f"The model {name!r} does not fit a {task} target: use {default!r}.")
    factory = find("model", name, MODELS)
    if not callable(factory):
        raise PmtlError(f"{name!r} is not callable: give a function or class that makes a module.")
    return _call_factory(factory, options, sizes, name), name


def _call_factory(
    factory: Callable[..., nn.Module], options: dict[str, str], sizes: dict[str, object], name: str
) -> nn.Module:
    """Call a factory with its options, and with `sizes` that it has parameters for."""
    try:
        parameters = inspect.signature(factory).parameters
        asked = {key: value for key, value in sizes.items() if key in parameters}
        module = construct(factory, options, f"model {name}", **asked)
    except PmtlError:
        raise
    except (Exception, SystemExit) as error:  # A user's code may raise anything.
        raise PmtlError(f"The factory {name!r} failed: {error_text(error)}.") from error
    if not isinstance(module, nn.Module):
        raise PmtlError(f"The factory {name!r} returned a {type(module).__name__}, not a module.")
    return module


def _refuse_further_parameters(factory: Callable[..., nn.Module], name: str) -> None:
    """Refuse a factory that cannot be called with the sizes alone."""
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # It has no signature; calling it shows any error.
        return
    for word, item in parameters.items():
        needed = item.default is item.empty and "VAR" not in item.kind.name
        if needed and word not in ("input_shape", "outputs"):
            raise PmtlError(
                f"The factory {name!r} needs {word!r}, but a factory is called with input_shape "
                "and outputs only: write model=lambda input_shape, outputs: …."
            )


def _trial_run(model: FlatModel, input_shape: Shape, outputs: int) -> Traits:
    """Run the model once, so that a model that does not fit the data is refused before training.
    Returns its traits, including those that are visible only when it runs.

    The rows are random: zeros would not change a running mean that starts at zero.
    """
    example = torch.randn((2, *input_shape), dtype=next(model.module.parameters()).dtype)
    try:
        refuse_changing_buffers(model.module, example)
        with Lookups() as lookups:
            vmap(model.apply, randomness="same")(
                model.start().expand(2, -1), example.expand(2, *example.shape)
            )
        with torch.no_grad():
            model.module.train()
            answer, *more = (model.module(example) for _ in range(_TRIALS))
    except PmtlError:
        raise
    except (Exception, SystemExit) as error:  # The user's code may raise anything.
        if is_out_of_memory(error):
            raise
        reason = error_text(error).partition("\n")[0]
        raise PmtlError(
            f"The model {model.name!r} cannot read rows of shape {input_shape} for many clients at "
            f"once: {reason}."
        ) from error
    if tuple(answer.shape) != (2, outputs):
        raise PmtlError(
            f"The model {model.name!r} answers two rows with shape {tuple(answer.shape)}, but this "
            f"data needs (2, {outputs})."
        )
    # `model.traits` is found from layers; functions called in `forward` are visible only here.
    differs = not all(torch.equal(answer, again) for again in more)
    if differs:
        _refuse_other_randomness(model, example)
    return Traits(
        random_forward=model.traits.random_forward or differs,
        looks_up=model.traits.looks_up or lookups.seen,
    )


def _refuse_other_randomness(model: FlatModel, example: Tensor) -> None:
    """Refuse a model whose random numbers do not follow torch's seed: two experiments with one seed
    would train differently and have the same noise."""
    state, answers = torch.get_rng_state(), []
    for _ in range(_TRIALS):
        torch.set_rng_state(state)
        answers.append(model.module(example).nan_to_num())
    if not all(torch.equal(answers[0], again) for again in answers[1:]):
        raise PmtlError(
            f"The model {model.name!r} draws random numbers that torch's seed does not decide "
            "(NumPy's, Python's, or a generator of its own): use nn.Dropout or torch.rand."
        )
