"""`--callback tensorboard`: every round's metrics as scalars for TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pmtl.errors import require_package
from pmtl.runs.callbacks import Callback, Event
from pmtl.storage import next_numbered
from pmtl.tracking.scalars import read, run_name, scalars


class TensorBoard(Callback):
    """Writes scalars; look at them with `tensorboard --logdir tensorboard`.

    Args:
        folder: the log folder; each run gets a folder of its own name in it.
    """

    def __init__(self, folder: str = "tensorboard") -> None:
        missing = "The callback tensorboard needs TensorBoard: pip install 'pmtl[tensorboard]'."
        with require_package(missing):
            from torch.utils.tensorboard import SummaryWriter
        self._make: Any = SummaryWriter
        self._folder = Path(folder)
        self._writer: Any = None

    def on_round(self, event: Event) -> None:
        """Write the scalars of the round."""
        if self._writer is None:
            # A run in memory gets a folder that does not exist yet. In the folder of an
            # interrupted run, what it wrote of this round and later ones is replaced.
            place = self._folder / run_name(event.path)
            place = next_numbered(place) if event.path is None else place
            self._writer = self._make(str(place), purge_step=event.round)
        for name, value in scalars(event).items():
            self._writer.add_scalar(name.replace(".", "/"), value, event.round)

    def on_checkpoint(self, event: Event) -> None:
        """Write what is waiting: the run may be stopped here."""
        if self._writer is not None:
            self._writer.flush()

    def on_end(self, event: Event) -> None:
        """Write the privacy statement, and close the file."""
        if self._writer is None:  # A run without a round of its own has nothing to write.
            return
        if privacy := read(event.path, "privacy.json"):
            self._writer.add_text("privacy", f"```\n{privacy['text']}\n```", event.round)
            if isinstance(privacy["epsilon"], float):
                self._writer.add_scalar("privacy/epsilon", privacy["epsilon"], event.round)
        self._writer.close()
        self._writer = None
