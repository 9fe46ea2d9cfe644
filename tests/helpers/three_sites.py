"""Three sites of one federation, in this process, and the same rows for a simulation."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from pmtl.data import FederatedData, load
from pmtl.federation.coordinator import Coordinator, Job
from pmtl.federation.limits import Limits, SiteSettings
from pmtl.federation.messages import Message
from pmtl.federation.server_folder import ServerFolder
from pmtl.federation.service import SiteService
from pmtl.federation.transport import Handler
from pmtl.runs.config import parse_config

SITES = ("a", "b", "c")
SIZES = {"a": (9, 14), "b": (8, 11, 20), "c": (16,)}


def write_tables(folder: Path, task: str = "classification") -> dict[str, Path]:
    """A table for each site, with given splits."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = {}
    for number, (site, sizes) in enumerate(SIZES.items()):
        rng = np.random.default_rng(number)
        lines = ["client,split,x0,x1,x2,target"]
        for k, size in enumerate(sizes):
            x = rng.normal(size=(size, 3))
            score = x @ [1.0, -0.5, 0.25] + 0.3 * k
            y = (score > 0).astype(int) if task == "classification" else score.round(3) + 0.5
            y[:2] = [0, 1]  # Every site has both classes.
            split = np.where(np.arange(size) % 4 == 3, "test", "train")
            lines += [
                f"p{k},{split[i]},{','.join(f'{v:.4f}' for v in x[i])},{y[i]}" for i in range(size)
            ]
        tables[site] = folder / f"{site}.csv"
        tables[site].write_text("\n".join(lines) + "\n")
    return tables


class InProcess:
    """A transport to sites in this process, called one after the other. A handler that raises an
    error counts as a site that does not answer."""

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self.handlers = dict(handlers)
        self.sites = tuple(self.handlers)

    def ask(
        self,
        messages: Mapping[str, bytes],
        deadline: float,
        wait_for: frozenset[str] | None = None,
    ) -> dict[str, bytes]:
        answers = {}
        for site, content in messages.items():
            with suppress(Exception):  # A site's crash must not end the run of the others.
                answers[site] = self.handlers[site](content)
        return answers


def services(tables: dict[str, Path], folder: Path, **limits: Any) -> dict[str, SiteService]:
    """The services of the sites."""
    allowed = Limits(**{"epsilon": 100.0, **limits})
    return {
        site: SiteService(site, SiteSettings(f"{path}:validation=0", folder / site, limits=allowed))
        for site, path in tables.items()
    }


class Faulty(InProcess):
    """Sites whose answers a function may change: `twist(site, message, answer)`."""

    def __init__(self, sites, twist):
        super().__init__({site: service.handle for site, service in sites.items()})
        self.twist = twist
        self.asked = []

    def ask(self, messages, deadline, wait_for=None):
        self.asked.append((dict(messages), wait_for))
        answers = {}
        for site, content in messages.items():
            message = Message.from_bytes(content)
            answer = self.twist(site, message, lambda site=site, c=content: self.handlers[site](c))
            if answer is not None:
                answers[site] = answer
        return answers


def job(run: str = "r1", summed: bool = False, **config: Any) -> Job:
    """A job with these settings."""
    values = {"seed": 3, "privacy": {"epsilon": 8.0, "hardened": True}, **config}
    return Job(run, parse_config(values, "the test"), summed=summed, round_seconds=60)


def coordinate(
    wanted: Job, sites: dict[str, SiteService], folder: Path, **more: Any
) -> tuple[Coordinator, list[str]]:
    """Run a job; returns the coordinator and what it told."""
    told: list[str] = []
    transport = more.pop("transport", None) or InProcess({s: v.handle for s, v in sites.items()})
    coordinator = Coordinator(
        wanted, transport, ServerFolder(folder), threading.Event(), told.append, **more
    )
    coordinator.run()
    return coordinator, told


def together(tables: dict[str, Path]) -> FederatedData:
    """All rows as one federation, with the names that the server knows."""
    parts = [load(f"{path}:validation=0") for path in tables.values()]
    names, order, split = [], [], []
    for site, data in zip(tables, parts, strict=True):
        for kind in ("train", "test"):
            rows = data.rows(kind)
            for k, client in enumerate(data.clients):
                mine = rows.of(k)
                names += [f"{site}/{client}"] * len(mine)
                split += [kind] * len(mine)
                order.append((data.x[mine], data.y[mine]))
    x, y = (np.concatenate([part[i] for part in order]) for i in (0, 1))
    first = parts[0]
    return FederatedData.from_arrays(
        x, y, np.array(names), np.array(split), validation=0,
        task=first.task, outputs=first.outputs, feature_names=first.feature_names,
        labels=first.labels,
    )  # fmt: skip
