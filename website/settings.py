"""Arguments that functions take from declared settings, for the reference of Python."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

from griffe import Extension, Function, Parameter, ParameterKind, Parameters


class Settings(Extension):
    """Shows functions with `takes_settings` as `inspect` and `help` do."""

    def on_function(self, *, func: Function, **_: Any) -> None:
        if not any("takes_settings" in str(one.value) for one in func.decorators):
            return
        made = getattr(import_module(func.module.path), func.name)
        written = {one.name: one for one in func.parameters}
        arguments = inspect.signature(made).parameters.values()
        func.parameters = Parameters(*(written.get(one.name) or _made(one) for one in arguments))
        if func.docstring is not None:
            func.docstring.value = inspect.getdoc(made) or ""


def _made(one: inspect.Parameter) -> Parameter:
    """An argument that is not in the source."""
    hint = inspect.formatannotation(one.annotation).replace("pathlib.", "")
    kind = ParameterKind.keyword_only
    return Parameter(one.name, annotation=hint, kind=kind, default=repr(one.default))
