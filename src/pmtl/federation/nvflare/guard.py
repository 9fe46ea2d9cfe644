"""Which messages the server accepts from cells, NVFLARE's endpoints.

A connection is bound to its certificate's name by mutual TLS. NVFLARE does not bind a message's
origin to its connection, lets a site write to other sites, and answers maintenance requests, such
as stopping a cell, from any site. The guard prevents all three.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessagePropKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply

from pmtl.federation.nvflare.policy import ADMIN, SITES_FILE, server_address, site_names

_MAINTENANCE = "_net_manager"  # NVFLARE's channel for requests to list, measure and stop cells.
ENGINES: list[Any] = []  #: the engine of this process, for its end
_log = logging.getLogger(__name__)


class SiteNames:
    """The names of all sites, read again when their file has changed. Without a file that can be
    read there are none."""

    def __init__(self, kit: Path) -> None:
        self._kit, self._file = kit, kit / "local" / SITES_FILE
        self._seen = -1
        self._names: frozenset[str] = frozenset()

    def __call__(self) -> frozenset[str]:
        try:
            if (changed := self._file.stat().st_mtime_ns) != self._seen:
                self._names, self._seen = frozenset(site_names(self._kit)), changed
        except (OSError, ValueError) as error:
            _log.error("All sites are refused: %s cannot be read (%s).", self._file, error)
            return frozenset()
        return self._names


class Guard(FLComponent):  # type: ignore[misc]
    """Refuses messages at the server's process."""

    def __init__(self) -> None:
        super().__init__()
        self.sites: Callable[[], frozenset[str]] = frozenset
        self.server = ""  # The name in the server's certificate.

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Begin with the server."""
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            engine, workspace = fl_ctx.get_engine(), fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
            kit = Path(workspace.get_root_dir())
            self.server, self.sites = server_address(kit)[0], SiteNames(kit)
            engine.get_cell().core_cell.add_incoming_filter(channel="*", topic="*", cb=self.check)
            ENGINES.append(engine)
            _log.info("The server waits for the sites %s.", ", ".join(sorted(self.sites())))

    def check(self, message: Any) -> Any:
        """A reply that refuses a message which arrived at the server's process, for it or to be
        passed on; None if it may pass."""
        endpoint = str(message.get_prop(MessagePropKey.ENDPOINT).name)
        reason = self.reason(
            endpoint,
            message.get_prop(MessagePropKey.COMMON_NAME),
            str(message.get_header(MessageHeaderKey.ORIGIN)),
            str(message.get_header(MessageHeaderKey.DESTINATION)),
            str(message.get_header(MessageHeaderKey.CHANNEL)),
        )
        if reason is None:
            return None
        _log.error("A message of %s is refused: %s.", endpoint, reason)
        return make_reply(ReturnCode.UNAUTHENTICATED, error=reason)

    def reason(
        self, endpoint: str, certified: str | None, origin: str, destination: str, channel: str
    ) -> str | None:
        """Why a message is refused, or None.

        Args:
            endpoint: whose connection it came over.
            certified: the name in the connection's certificate; None inside the server's machine.
            origin: who sent it, as the message says.
            destination: to whom.
            channel: NVFLARE's channel.
        """
        own, administrator = _within(endpoint, "server"), endpoint.startswith("_admin_")
        if own and certified is None:
            return None  # A process of this server.
        if certified != (self.server if own else ADMIN if administrator else endpoint):
            return f"its certificate is that of {certified!r}"
        if own:
            return None
        if not administrator and endpoint not in self.sites():
            return "no site of this federation has this name"
        if not _within(origin, endpoint):
            return f"it says that it comes from {origin!r}"
        if not _within(destination, "server"):
            return f"it is for {destination!r}, and only the server may be written to"
        if channel == _MAINTENANCE:
            return "sites have no right to maintain the network"
        return None


def _within(name: str, of: str) -> bool:
    return name == of or name.startswith(f"{of}.")
