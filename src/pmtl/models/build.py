"""From `logistic`, `mlp:hidden=128` or `package.module:factory` to a model for given data."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from torch import nn
from torch.func import vmap

from pmtl.errors import PmtlError
from pmtl.models.flat import FlatModel, refuse_changing_buffers
from pmtl.models.hog import HogLinear
from pmtl.models.layout import Traits
from pmtl.models.library import MLP, CelebaCNN, FemnistCNN, Linear, Shape
from pmtl.models.lookup import Lookups
from pmtl.models.losses import Task
from pmtl.plugins import find
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


def build_model(
    spec: str | Callable[..., nn.Module], input_shape: Shape, outputs: int, task: Task, seed: int
) -> FlatModel:
    """Build the model that `spec` names, its start drawn from the initialisation stream."""
    devices: list[int] = []  # The module is made on the CPU; other generators are left alone.
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(subseed(seed, "initialisation"))
        module, name = _make(spec, input_shape, outputs, task)
        model = FlatModel(module, name)
        return FlatModel(module, name, _try_out(model, input_shape, outputs))


def _make(
    spec: str | Callable[..., nn.Module], input_shape: Shape, outputs: int, task: Task
) -> tuple[nn.Module, str]:
    sizes = {"input_shape": input_shape, "outputs": outputs}
    if not isinstance(spec, str):
        name = getattr(spec, "__name__", type(spec).__name__)
        return _call_factory(spec, {}, sizes, name), name
    name, options = parse_spec(spec)
    if name == "auto":
        name = "linear" if task == "regression" else "logistic"
    if name in MODELS:
        _check_task(name, task)
        return _call_factory(MODELS[name], options, sizes, name), name
    factory = find("model", name, MODELS)
    if not callable(factory):
        raise PmtlError(f"{name!r} is not callable: give a function or class that makes a module.")
    return _call_factory(factory, options, sizes, name), name


def _check_task(name: str, task: Task) -> None:
    if (name == "linear") == (task != "regression") and name in ("linear", "logistic"):
        better = "linear" if task == "regression" else "logistic"
        raise PmtlError(f"The model {name!r} does not fit a {task} target: use {better!r}.")


def _call_factory(
    factory: Callable[..., nn.Module], options: dict[str, str], sizes: dict[str, object], name: str
) -> nn.Module:
    """Call a user's factory with the sizes of the data, as far as it asks for them by name."""
    try:
        parameters = inspect.signature(factory).parameters
        asked = {key: value for key, value in sizes.items() if key in parameters}
        module = construct(factory, options, f"model {name}", **asked)
    except PmtlError:
        raise
    except Exception as error:  # It is the user's code, and may raise anything.
        raise PmtlError(f"The factory {name!r} failed: {type(error).__name__}: {error}.") from error
    if not isinstance(module, nn.Module):
        raise PmtlError(f"The factory {name!r} returned a {type(module).__name__}, not a module.")
    return module


def _try_out(model: FlatModel, input_shape: Shape, outputs: int) -> Traits:
    """One forward pass on noise, so that a model that does not fit is refused before training;
    returns the model's traits, those that only show when it runs included.

    Noise, because zeros would leave a running mean that begins at zero where it is.
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
            answer, again = model.module(example), model.module(example)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = str(error).splitlines()[0]
        raise PmtlError(
            f"The model {model.name!r} cannot read rows of shape {input_shape} for many clients at "
            f"once: {reason}."
        ) from error
    if tuple(answer.shape) != (2, outputs):
        raise PmtlError(
            f"The model {model.name!r} answers two rows with shape {tuple(answer.shape)}, but this "
            f"data needs (2, {outputs})."
        )
    # A function that is called in `forward` is no layer that could be looked for.
    return Traits(
        random_forward=model.traits.random_forward or not torch.equal(answer, again),
        looks_up=model.traits.looks_up or lookups.seen,
    )
