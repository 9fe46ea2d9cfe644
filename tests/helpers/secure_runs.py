"""Runs with secure aggregation in one process, and a server that watches what passes."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace

from three_sites import InProcess, job, services

from pmtl.errors import PmtlError
from pmtl.federation.coordinator import Coordinator
from pmtl.federation.messages import Message
from pmtl.federation.server_folder import ServerFolder
from pmtl.federation.service import SiteService

PMTL = {
    "algorithm": "pmtl",
    "local": {"steps": 2, "batch": 4},
    "privacy": {"epsilon": 8.0, "rounds": 3, "hardened": True},
}


class Spy(InProcess):
    """A server that records, and may change, what passes: `twist(site, message, answer)`."""

    def __init__(self, sites, twist=lambda site, message, answer: answer()):
        super().__init__({site: service.handle for site, service in sites.items()})
        self.twist = twist
        self.seen = []

    def ask(self, messages, deadline, wait_for=None):
        answers = {}
        for site, content in messages.items():
            message = Message.from_bytes(content)

            def answer(site=site, content=content):
                return self.handlers[site](content)

            if (given := self.twist(site, message, answer)) is not None:
                answers[site] = given
                with suppress(PmtlError):  # A site may send nonsense.
                    self.seen.append((site, message, Message.from_bytes(given)))
        return answers


def hidden(tables, folder, authority, source=None, **limits):
    """Services with certificates; with a `source`, shares are drawn from it."""
    made = services(tables, folder, **limits)
    more = {} if source is None else {"source": source}
    return {
        site: SiteService(
            site, service.settings, lambda site=site: authority.identity(site),
            **({k: v(site) for k, v in more.items()}),
        )
        for site, service in made.items()
    }  # fmt: skip


def run(wanted, transport, folder):
    told = []
    Coordinator(wanted, transport, ServerFolder(folder), threading.Event(), told.append).run()
    return told


def secure(**more):
    return replace(job(**{**PMTL, **more}), secure=True)
