"""`metrics.jsonl`: one line of JSON for each round, in the order of rounds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pmtl import storage as files
from pmtl.errors import PmtlError
from pmtl.runs.budget import Published


@dataclass(frozen=True)
class MetricsFile:
    """Reads the file, and checks that its lines are the ones that were written."""

    path: Path
    key: bytes  #: the key of the run's digests

    def lines(self, known: str | None = None) -> list[dict[str, Any]]:
        """All lines; their digest must be `known`, if that is given."""
        text = self._text()
        if known not in (None, files.digest_of_text(text, self.key)):
            raise self.damaged()
        try:
            return [json.loads(line) for line in text.splitlines()]
        except ValueError:
            raise self.damaged() from None

    def digest(self, rounds: int | None = None) -> str:
        """The digest of all lines, or of the lines of the first `rounds`."""
        return files.digest_of_text(self._text(rounds), self.key)

    def published(self) -> Published:
        """The releases that the lines show. A line that a crash cut short counts as a round."""
        lines = self._text().splitlines()
        released = []
        for line in lines:
            with suppress(ValueError, TypeError, KeyError, RecursionError):
                values = json.loads(line)
                if "noise" in values:
                    released.append(int(values["round"]))
        return Published(len(lines), released)

    def drop_after(self, round: int) -> None:
        """Keep the lines up to `round`; no line that a crash cut short is among them."""
        files.write_text(self.path, self._text(round))

    def damaged(self) -> PmtlError:
        return PmtlError(
            f"{self.path} is damaged or was edited: its lines are not the ones that were "
            "written. Put it back as it was."
        )

    def _text(self, rounds: int | None = None) -> str:
        try:
            lines = self.path.read_bytes().splitlines(keepends=True)
            return b"".join(lines[:rounds]).decode()
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError):
            raise self.damaged() from None


def released(lines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The average metrics that passed the gate, one entry for each evaluation, with the standard
    deviation of its noise; empty without released metrics."""
    return [
        {"round": line["round"], **line["validation"], "noise": line["noise"]}
        for line in lines
        if "noise" in line
    ]
