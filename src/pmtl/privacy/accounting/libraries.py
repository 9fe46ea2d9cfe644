"""Lazy imports of SciPy and dp-accounting, which are not needed for training."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from pmtl.errors import PmtlError


class MissingPackage(PmtlError, ImportError):
    """A library for accounting is not installed."""


@cache
def load(module: str) -> Any:
    """Import `module` of scipy or dp-accounting."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0].replace("_", "-")
        raise MissingPackage(
            f"Computing epsilon needs the package {package}, which cannot be imported here "
            f"({error}): install it, or state the noise instead of epsilon and compute epsilon "
            "on another machine.",
            name=package,
        ) from error
