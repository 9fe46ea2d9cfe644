"""The transport between organisations: NVFLARE carries the messages of the coordinator.

The server's job runs in a process of its own (`controller.py`). Sites run no NVFLARE jobs: their
main process answers the server's messages (`site.py`), so that a site that was restarted is back at
once, and no site accepts code, configuration or commands.
"""

from __future__ import annotations

import importlib.metadata

from pmtl.errors import PmtlError

#: The version of NVFLARE that this was written and tested for.
VERSION = "2.9.0"


def require_nvflare() -> None:
    """Refuse to go on without this version of NVFLARE, which is an extra: it is imported only by
    what needs it."""
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
