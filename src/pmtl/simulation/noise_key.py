"""The key of an experiment's noise: everything that decides what is published, except the seed.

Two runs with one seed have the same noise only if they publish the same numbers. If two different
models were published with the same noise, their difference would reveal the sums exactly. Engine,
device, compilation and number of processes are part of the key only if the model draws random
numbers in training (dropout), which depend on them. Otherwise they change the last bits of sums
only.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pmtl._version import __version__
from pmtl.errors import PmtlError
from pmtl.jsontext import to_json
from pmtl.privacy.noise import Source, WordStream, seeded_source, system_source
from pmtl.privacy.schemes import is_library_scheme
from pmtl.server import Server
from pmtl.simulation.code_digest import code_digest
from pmtl.simulation.sites import Sites


class NoiseKey:
    """Gives every kind of release its random words; in production from the operating system."""

    def __init__(self, seed: int | None) -> None:
        self._seed = seed
        self._described: str | None = None
        self._metrics: list[Any] | None = None
        self._drawn = False

    def describe(self, server: Server, sites: Sites, hardened: bool, processes: int) -> None:
        """Describe the run; to be called before training, which may change the module. `processes`
        is how many there are in the team."""
        if self._seed is not None:
            plan = server.plan  # It names its scheme; a copied one has the code only `with_code`.
            own: list[Any] = []
            if not is_library_scheme(plan.sampling):
                own.append(plan.with_code().scheme)
            if sites.drawn_together is not None:
                own.append((*sites.drawn_together, processes))
            self._described = code_digest(
                __version__,
                plan.to_dict(),
                asdict(sites.local),
                server.billboard.description(),
                sites.data.fingerprint(again=True),
                server.algorithm,
                sites.model.module,
                sites.model.start(),
                hardened,
                *own,
            )

    def add_metrics(self, *decided: Any) -> None:
        """Add which metrics are released."""
        if self._drawn:
            raise PmtlError("Choose metrics before the first round: noise was drawn already.")
        self._metrics = list(decided)

    @property
    def text(self) -> str:
        return to_json([self._described, self._metrics])

    def source(self, release: str = "") -> Source:
        """The random words for a kind of release; every kind has its own."""
        seed = self._seed
        if seed is None:
            return system_source

        def of_round(round: int) -> WordStream:
            self._drawn = True  # From now on the key must not change.
            return seeded_source(seed, self.text + release)(round)

        return of_round
