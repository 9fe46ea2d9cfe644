"""A digest that identifies a model or algorithm by its values and code.

Two experiments with one seed must not share noise unless they publish the same numbers. So the key
of the noise covers everything that decides what models and algorithms compute, not only their
names. `code_digest` reads

- numbers, texts and containers by their content; tensors and arrays by their bytes, on any device;
- a user's functions and classes by their compiled code (which exists without a source file),
  defaults, closures, the globals they name, and what they name of a user's own modules;
- what belongs to Python or to an installed package with a version by its name (and this version,
  except those of torch, NumPy and SciPy, whose builds differ between machines);
- modules, pmtl's own objects and objects of a user's classes by their class and attributes, other
  objects by what `pickle` would store;
- subclasses of numbers, texts, containers, tensors and arrays by their class and attributes, too;
- functions and modules of TorchScript by what they would save.

Not covered: what code finds by a computed name (`getattr(module, name)`, `globals()[name]`), reads
from files or the environment, or keeps where `pickle` cannot read it (as `np.frompyfunc` does).
"""

from __future__ import annotations

import dis
import sys
import types
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from functools import cache, partial
from hashlib import blake2b
from inspect import getattr_static
from sysconfig import get_path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pmtl.models.torchscript import saved_script

#: Packages whose code is identified by name alone; pmtl's version is in the key of the noise.
_BY_NAME = {"torch", "numpy", "scipy", "pmtl"}
_STANDARD_LIBRARY = (get_path("stdlib"), get_path("platstdlib"))
#: Attributes of Python's own that are ignored; the last one is a function of `singledispatch`.
_IGNORED = {"__dict__", "__weakref__", "__doc__", "__module__", "_abc_impl", "_clear_cache"}
_SCALARS = (bool, int, float, complex, str, bytes)
#: Types whose name is not written again after the content. Objects of other types may have methods.
_PLAIN = {
    *(*_SCALARS, tuple, list, set, frozenset, dict, partial, property, types.FunctionType),
    *(Tensor, nn.Parameter, np.ndarray, np.memmap),
}
#: What is identified by its name alone.
_NAMED = (torch.dtype, np.dtype, types.ModuleType, types.BuiltinFunctionType)
#: How many modules inside modules are followed.
_MOST_LEVELS = 8


def code_digest(*values: Any) -> str:
    """A digest of the values; equal values have equal digests, in all processes and devices."""
    return _Digester().digest(values)


class _Code(NamedTuple):
    """Compiled code, and the globals that it can name."""

    code: types.CodeType
    names: dict[str, Any]


class _Digester:
    """Computes the digest of values, breadth first.

    The kind of a value and the number of its parts are written before its parts, so that different
    values never give the same bytes.
    """

    def __init__(self, above: frozenset[int] = frozenset()) -> None:
        self._above = above  # The ids of the elements of sets that are being read.
        self._state = blake2b(digest_size=32)
        self._waiting: deque[Any] = deque()
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []  # Keeps objects alive, so that their ids stay unique.

    def digest(self, values: Sequence[Any]) -> str:
        """The digest of the values and all of their parts."""
        self._parts("values", values)
        while self._waiting:
            self._read(self._waiting.popleft())
        return self._state.hexdigest()

    def _read(self, value: Any) -> None:
        if value is None or type(value) in _SCALARS:
            self._write(type(value).__name__, repr(value))
        elif isinstance(value, np.generic):
            self._array(np.asarray(value))
        elif isinstance(value, torch.device):
            self._write("device")
        elif isinstance(value, _NAMED):
            self._write("name", _name(value))
        elif isinstance(value, (_Code, types.CodeType)):
            self._code(*(value if isinstance(value, _Code) else (value, {})))
        elif type(value) in (tuple, set, frozenset):
            self._read_content(value)
        elif not self._was_read(value):
            self._read_once(value)

    def _read_once(self, value: Any) -> None:
        if isinstance(value, (torch.jit.ScriptFunction, torch.jit.ScriptModule)):
            self._parts("script", saved_script(value))
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, types.MethodType):
            self._parts("method", (value.__func__, value.__self__))
        elif self._read_content(value):
            self._kind_and_attributes(value)
        elif _known(type(value)) and getattr_static(value, "__wrapped__", None) is not None:
            self._parts("wrapper", (type(value), value.__wrapped__))  # As `functools.cache` makes.
        else:
            self._object(value)

    def _read_content(self, value: Any) -> bool:
        """Read what a value of a basic type holds; whether it is of one."""
        if isinstance(value, Tensor):
            self._tensor(value)
        elif isinstance(value, np.ndarray):
            self._array(value)
        elif isinstance(value, (dict, types.MappingProxyType)):
            self._parts("dict", [part for item in value.items() for part in item])
            if isinstance(value, defaultdict):
                self._parts("default", (value.default_factory,))
        elif isinstance(value, list):
            self._parts("list", list(value))
        elif isinstance(value, (set, frozenset)):
            self._parts("set", sorted(self._digest_inside(part) for part in value))
        elif isinstance(value, partial):
            self._parts("partial", (value.func, value.args, value.keywords))
        elif isinstance(value, property):
            self._parts("property", (value.fget, value.fset, value.fdel))
        elif isinstance(value, tuple):
            self._parts("tuple", tuple(value))
        elif isinstance(value, _SCALARS):
            base = next(base for base in _SCALARS if isinstance(value, base))
            self._write(base.__name__, base.__repr__(value))
        else:
            return False
        return True

    def _kind_and_attributes(self, value: Any) -> None:
        """After the content: the class if it is a subclass, and attributes if there are any."""
        if type(value) not in _PLAIN:
            self._parts("kind", (type(value),))
        if found := _attributes_of(value):
            self._attributes(found)

    def _digest_inside(self, part: Any) -> str:
        """The digest of an element of a set, which has no place in the order of reading."""
        if id(part) in self._above:  # The element refers to a set that it is in.
            return "again"
        return _Digester(self._above | {id(part)}).digest((part,))

    def _tensor(self, value: Tensor) -> None:
        self._write("tensor", str(value.dtype), str(tuple(value.shape)), str(value.requires_grad))
        try:
            whole = value.detach().to_dense().cpu().contiguous().reshape(-1)
            self._bytes(whole.view(torch.uint8).numpy().data)
        except (RuntimeError, TypeError, NotImplementedError):
            self._write("not readable")  # A tensor inside `vmap` has no values.

    def _array(self, value: np.ndarray[Any, Any]) -> None:
        self._write("array", str(value.dtype), str(value.shape))
        if value.dtype.hasobject:
            self._parts("objects", value.reshape(-1).tolist())
        else:
            self._bytes(np.ascontiguousarray(value).tobytes())

    def _function(self, value: types.FunctionType) -> None:
        # `functools.wraps` gives a user's function the module of the function that it wraps.
        if _known(value) and _known_package(_root(value.__globals__.get("__name__"))):
            self._write("known", _name(value))
            return
        cells = tuple(_content(cell) for cell in value.__closure__ or ())
        given = (value.__defaults__, value.__kwdefaults__, cells)
        self._parts("function", (*given, _Code(value.__code__, value.__globals__)))
        self._kind_and_attributes(value)

    def _code(self, code: types.CodeType, names: dict[str, Any]) -> None:
        self._write("code", str((code.co_names, code.co_varnames, code.co_freevars)))
        self._bytes(code.co_code)
        parts = [_Code(c, names) if isinstance(c, types.CodeType) else c for c in code.co_consts]
        steps = list(dis.get_instructions(code))
        loads = ("LOAD_GLOBAL", "LOAD_NAME")
        asked = {step.argval for step in steps if step.opname in loads} & set(names)
        used = {name: names[name] for name in asked}
        imported = [step.argval for step in steps if step.opname == "IMPORT_NAME"]
        package = str(names.get("__package__") or "")
        places = [full for name in imported for full in (name, f"{package}.{name}")]
        used |= {f"import {full}": sys.modules[full] for full in places if full in sys.modules}
        self._parts("constants", parts)
        self._attributes(used | _named_in(used, code.co_names))

    def _class(self, kind: type) -> None:
        if _known(kind):
            self._write("known", _name(kind))
            return
        self._parts(f"class {kind.__qualname__}", kind.__bases__)
        self._attributes(dict(vars(kind)))

    def _object(self, value: Any) -> None:
        kind = type(value)
        self._parts("object", (kind,))
        if isinstance(value, nn.Module) or not _known(kind) or _package(kind) == "pmtl":
            self._attributes(_attributes_of(value))
        elif _package(kind) != "logging":  # A logging level changes no result.
            self._parts("state", _state_of(value))

    def _attributes(self, values: dict[str, Any]) -> None:
        names = sorted(set(values) - _IGNORED)
        self._write("attributes", *names)
        self._waiting.extend(values[name] for name in names)

    def _parts(self, what: str, parts: Sequence[Any]) -> None:
        self._write(what, str(len(parts)))
        self._waiting.extend(parts)

    def _was_read(self, value: Any) -> bool:
        """Whether this object was read before. Then only its number is written, so that cycles end
        and tied weights differ from equal ones."""
        number = self._numbers.setdefault(id(value), len(self._numbers))
        if number < len(self._kept):
            self._write("again", str(number))
            return True
        self._kept.append(value)
        return False

    def _write(self, *texts: str) -> None:
        self._state.update(len(texts).to_bytes(8, "little"))
        for text in texts:
            self._bytes(text.encode("utf-8", "surrogatepass"))

    def _bytes(self, content: bytes | memoryview) -> None:
        self._state.update(len(content).to_bytes(8, "little"))
        self._state.update(content)


def _named_in(values: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The attributes with these names in a user's own modules among the values."""
    found: dict[str, Any] = {}
    waiting = [(name, part) for name, part in values.items() if isinstance(part, types.ModuleType)]
    while waiting:
        above, module = waiting.pop()
        if _known_package(_root(module.__name__)):
            continue
        for name in names:
            if hasattr(module, name) and (full := f"{above}.{name}") not in found:
                found[full] = getattr(module, name)
                if isinstance(found[full], types.ModuleType) and full.count(".") < _MOST_LEVELS:
                    waiting.append((full, found[full]))
    return found


def _state_of(value: Any) -> tuple[Any, ...]:
    """What `pickle` would store; empty if it cannot store the object (a lock, an open file)."""
    try:
        reduced = value.__reduce_ex__(2)
    except Exception:  # An object of any package may raise anything.
        return ()
    if isinstance(reduced, str):
        return (reduced,)
    # The fourth and fifth parts are iterators over what a container holds.
    return tuple(list(part) if place > 2 and part else part for place, part in enumerate(reduced))


def _attributes_of(value: Any) -> dict[str, Any]:
    """An object's attributes, except fields of pmtl's own dataclasses with `repr=False`, of which
    the billboard has the content. Derived fields count: nothing else has their content."""
    ours = [kind for kind in type(value).__mro__ if is_dataclass(kind) and _package(kind) == "pmtl"]
    own = [field for kind in ours for field in fields(kind) if not field.metadata.get("derived")]
    hidden = {field.name for field in own if not field.repr}
    slots = [name for kind in type(value).__mro__ for name in vars(kind).get("__slots__", ())]
    found = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    found |= _own_attributes(value)
    if isinstance(value, nn.Module):
        hidden.add("training")  # Whether the module is in training mode.
        # The keys of hooks are counted over the whole process.
        hooks = {name: part for name, part in found.items() if "hooks" in name}
        found |= {name: tuple(h.values()) for name, h in hooks.items() if isinstance(h, dict)}
    return {name: part for name, part in found.items() if name not in hidden}


def _own_attributes(value: Any) -> dict[str, Any]:
    """The object's `__dict__`, without asking a `__getattr__`, which may answer to any name."""
    try:
        return dict(object.__getattribute__(value, "__dict__"))
    except AttributeError:
        return {}


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # Nothing is assigned to it yet.
        return None


def _name(value: Any) -> str:
    own = getattr(value, "__qualname__", None) or getattr(value, "__name__", None) or str(value)
    package = _package(value)
    by_name = package in _BY_NAME or _standard(package)
    version = "" if by_name else getattr(sys.modules.get(package), "__version__", "")
    return f"{getattr(value, '__module__', '')} {own} {version}"


def _package(value: Any) -> str:
    return _root(getattr(value, "__module__", None))


def _root(module: Any) -> str:
    return str(module or "").partition(".")[0]


def _known(value: Any) -> bool:
    """Whether the code belongs to Python or an installed package, not to the user."""
    return _known_package(_package(value))


def _known_package(package: str) -> bool:
    return package in _BY_NAME or _standard(package) or _installed(package)


@cache
def _standard(package: str) -> bool:
    """Whether this is a module of Python's own, and not a user's module of the same name."""
    file = getattr(sys.modules.get(package), "__file__", None)
    own = file is None or (file.startswith(_STANDARD_LIBRARY) and not _is_in_site_packages(file))
    return package in sys.stdlib_module_names and own


@cache
def _installed(package: str) -> bool:
    """Whether this is an installed package with a version. The version then stands for the code; a
    package without a version is identified by its code."""
    module = sys.modules.get(package)
    file = getattr(module, "__file__", None) or ""
    return _is_in_site_packages(file) and bool(getattr(module, "__version__", ""))


def _is_in_site_packages(file: str) -> bool:
    return "site-packages" in file or "dist-packages" in file
