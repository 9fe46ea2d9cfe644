"""The key of an experiment's noise: everything that decides what is published, but for the seed.

Two runs with one seed have the same noise only if they publish the same numbers. If two different
models were published with one noise, their difference would give the sums away exactly.

Who computes is no part of the key: engine, device, compilation and the number of processes change
the last bits of sums, and the noise stays the same.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pmtl._version import __version__
from pmtl.errors import PmtlError
from pmtl.jsontext import to_json
from pmtl.privacy.noise import Source, Words, seeded_source, system_source
from pmtl.server import Server
from pmtl.simulation.identity import identity
from pmtl.simulation.sites import Sites


class NoiseKey:
    """Gives every kind of release its random words; in production the operating system does."""

    def __init__(self, seed: int | None) -> None:
        self._seed = seed
        self._described: str | None = None
        self._metrics: list[Any] | None = None
        self._drawn = False

    def describe(self, server: Server, sites: Sites, hardened: bool) -> None:
        """Take in all that decides what is published; before training, which may leave something
        in the model's module."""
        if self._seed is not None:
            self._described = identity(
                __version__,
                server.plan.to_dict(),
                asdict(sites.local),
                server.billboard.description(),
                sites.data.fingerprint(),
                server.algorithm,
                sites.model.module,
                sites.model.start(),
                hardened,
            )

    def add_metrics(self, *decided: Any) -> None:
        """Take in which metrics are released, too."""
        if self._drawn:
            raise PmtlError("Metrics are decided upon before the first round: noise was drawn.")
        self._metrics = list(decided)

    @property
    def text(self) -> str:
        """The key."""
        return to_json([self._described, self._metrics])

    def source(self, release: str = "") -> Source:
        """Where a kind of release gets its random words from; other ones for every kind."""
        seed = self._seed
        if seed is None:
            return system_source

        def of_round(round: int) -> Words:
            self._drawn = True  # Only now it is settled which metrics are released.
            return seeded_source(seed, self.text + release)(round)

        return of_round
