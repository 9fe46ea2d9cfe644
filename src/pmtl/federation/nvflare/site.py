"""A site's side of the transport: a component of NVFLARE's main process at the site."""

from __future__ import annotations

import logging
import secrets
import threading
from functools import partial
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_exception import FLCommunicationError
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.private.fed.authenticator import Authenticator

from pmtl.errors import PmtlError
from pmtl.federation.nvflare.cells import ASK, CHANNEL, ECHO, PING, PING_BYTES
from pmtl.federation.nvflare.policy import SITE_FILE
from pmtl.federation.transport import Handler

HANDLERS: list[Handler] = []  #: the handler of this process's site, which `process.py` opens
CLIENTS: list[Any] = []  #: NVFLARE's client of this process, for its end
_log = logging.getLogger(__name__)
_ASK_SECONDS = 5.0  # For the server's answer to the first question.


class SiteComponent(FLComponent):  # type: ignore[misc]
    """Passes the server's messages to the site's handler, one at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._handler = HANDLERS[-1] if HANDLERS else _no_rows
        self._instance = secrets.token_bytes(PING_BYTES)  # Another one after a restart.

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Begin before the site registers with the server."""
        engine = fl_ctx.get_engine()
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            CLIENTS.append(engine.client)
            answers = {ASK: self._ask, PING: lambda content: self._instance, ECHO: bytes}
            for topic, answer in answers.items():
                reply = partial(_reply, answer)
                engine.get_cell().register_request_cb(channel=CHANNEL, topic=topic, cb=reply)
        elif event_type == EventType.SYSTEM_START:
            _log.info(
                "Site %s is connected and waits for the server's messages.", engine.client_name
            )

    def _ask(self, content: bytes) -> bytes:
        with self._lock:
            return self._handler(content)


def _no_rows(content: bytes) -> bytes:
    raise PmtlError(f"This site has no {SITE_FILE}: start it with pmtl federation site.")


def _reply(answer: Handler, message: Any) -> Any:
    """The reply to a message of a job of the server; the server's guard checks that, too."""
    origin = str(message.get_header(MessageHeaderKey.ORIGIN, ""))
    if not origin.startswith("server."):
        _log.error(
            "A message that is not of the server's job is refused: it comes from %r.", origin
        )
        return make_reply(ReturnCode.UNAUTHENTICATED)
    try:
        return make_reply(ReturnCode.OK, body=answer(bytes(message.payload or b"")))
    except PmtlError as error:
        _log.error("A message of the server could not be answered: %s", error)
    except Exception:
        _log.exception("A message of the server could not be answered.")
    return make_reply(ReturnCode.PROCESS_EXCEPTION)  # The reason stays in this log.


def retry_until_admitted() -> None:
    """Make a site retry while the server does not admit it; NVFLARE's process would end."""
    challenge = Authenticator._challenge_server
    said: list[str] = []

    def ask(self: Any) -> Any:
        patience, self.msg_timeout = self.msg_timeout, _ASK_SECONDS
        try:
            return challenge(self)
        except FLCommunicationError as error:
            if f": {ReturnCode.TIMEOUT}:" not in str(error):
                raise
            if not said:
                said.append(
                    "The server runs, but does not admit this site. The server's owner admits it "
                    f"with: pmtl federation members KITS/server --add {self.client_name}. This "
                    "site keeps asking: do not restart it."
                )
                _log.warning(said[0])
            return None, None  # NVFLARE asks again after two seconds.
        finally:
            self.msg_timeout = patience

    Authenticator._challenge_server = ask
