"""The server: it draws cohorts, opens rounds, passes uploads through the gate and publishes."""

from pmtl.server.server import Server, ServerState

__all__ = ["Server", "ServerState"]
