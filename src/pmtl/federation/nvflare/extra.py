"""NVFLARE is an extra: it is imported only by what needs it."""

from __future__ import annotations

import importlib.metadata

from pmtl.errors import PmtlError

VERSION = "2.9.0"


def require_nvflare() -> None:
    """Refuse to go on without the version of NVFLARE that this was written and tested for."""
    try:
        found = importlib.metadata.version("nvflare")
    except importlib.metadata.PackageNotFoundError:
        raise PmtlError(
            "A federation needs NVFLARE, which is not installed: pip install 'pmtl[federation]'."
        ) from None
    if found != VERSION:
        raise PmtlError(
            f"This version of pmtl works with NVFLARE {VERSION}, not {found}: "
            "pip install 'pmtl[federation]'."
        )
