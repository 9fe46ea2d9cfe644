"""The server: it draws cohorts, opens rounds, passes uploads through the gate and publishes."""

from pmtl.server.server import Server as Server
from pmtl.server.server import ServerState as ServerState
