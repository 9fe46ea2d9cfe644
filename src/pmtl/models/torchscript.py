"""What functions and modules of TorchScript compute, as bytes to compare."""

from __future__ import annotations

import re
import warnings
from io import BytesIO
from typing import Any
from zipfile import ZipFile

import torch

#: Files of a saved script that say where its source lies, what it was traced with, and versions.
_IGNORED = re.compile(r"\.debug_pkl$|/traced_inputs|/version$|/byteorder$|/\.data/")
#: Equal names are numbered in the order in which the process made them.
_NUMBERED = re.compile(rb"\.___torch_mangle_\d+")


def saved_script(value: Any) -> list[bytes]:
    """Code, constants and weights of a scripted or traced function or module, on any device."""
    load: Any = torch.jit.load
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            loaded = load(BytesIO(value.save_to_buffer()), map_location="cpu").eval()
        with ZipFile(BytesIO(loaded.save_to_buffer())) as saved:
            names = [name for name in saved.namelist() if not _IGNORED.search(name)]
            return [_NUMBERED.sub(b"", saved.read(name)) for name in names]
    except RuntimeError:  # It calls Python, which cannot be saved.
        return [str(value.code).encode()]
