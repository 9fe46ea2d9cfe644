"""A wire between a site and the server that can be cut: a TCP proxy on the loopback interface."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Wire:
    """Passes bytes both ways between whoever connects to `port` and `target`."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._whole = threading.Event()
        self._whole.set()
        self._flows = threading.Event()
        self._flows.set()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break all connections, and let none through."""
        self._whole.clear()
        self._break()

    def stall(self) -> None:
        """Keep connections, and pass nothing on."""
        self._flows.clear()

    def mend(self) -> None:
        """Let everything through again."""
        self._whole.set()
        self._flows.set()

    def close(self) -> None:
        self._listener.close()
        self._flows.set()
        self._break()

    def _break(self) -> None:
        for end in list(self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # It was closed.
            while True:
                near, _ = self._listener.accept()
                if not self._whole.is_set():
                    near.close()
                    continue
                try:
                    far = socket.create_connection(("127.0.0.1", self._target), timeout=5)
                except OSError:  # The server is not there.
                    near.close()
                    continue
                far.settimeout(None)
                self._open |= {near, far}
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while content := one.recv(2**16):
                self._flows.wait()
                other.sendall(content)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._open -= {one, other}


@contextmanager
def wire(target: int) -> Iterator[Wire]:
    """A wire that is closed afterwards."""
    made = Wire(target)
    try:
        yield made
    finally:
        made.close()
