"""What of a linear model is shared. Pooling decides it before anything is spent, and `pmtl plan`
tells it, from public numbers: the sizes of the model, and mμ (`strength`), against which the noise
of the shared numbers stands.

>>> LinearSizes(columns=6, outputs=1, classes=False).what_to_share(strength=160.0)
'all'
>>> words = LinearSizes(columns=1001, outputs=476, classes=True)
>>> words.what_to_share(strength=200.0), words.numbers("frequent", strength=200.0)
('frequent', 2976)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

#: All weights are shared if mμ/√(their number) is at least this. A public head is near the goal
#: already: a map of its answers, or all weights if these are fewer, from a smaller number on.
ENOUGH, ENOUGH_OF_PUBLIC = 2.5, 1.2
#: Of more weights, those in most use are shared: (mμ/4)² of them, if mμ is at least 100, so that
#: what clients use can be read.
PART, READABLE_USE = 4.0, 100.0


@dataclass(frozen=True)
class LinearSizes:
    """The sizes of a linear model.

    Args:
        columns: its features, and 1 for the intercept.
        outputs: number of model outputs.
        classes: whether these are the logits of classes, of which one is right.
        public_head: whether its weights begin with public ones that count.
    """

    columns: int
    outputs: int
    classes: bool
    public_head: bool = False

    @property
    def slopes(self) -> int:
        return (self.columns - 1) * self.outputs

    def what_to_share(self, strength: float) -> str:
        """ "all", "answers", "frequent" or "intercepts" (`Pooling`)."""
        if self.all_can_be_shared(strength):
            return "all"
        if self.public_head:  # Few features: all weights are fewer than a map of the answers.
            rows = min(self.columns, self.outputs + 1)
            paid = strength / math.sqrt(self.free(rows * self.outputs)) >= ENOUGH_OF_PUBLIC
            what = "all" if rows == self.columns else "answers"
            return what if paid else "intercepts"
        return "frequent" if strength >= READABLE_USE else "intercepts"

    def all_can_be_shared(self, strength: float) -> bool:
        """Whether the mean of all weights is more than noise."""
        return strength / math.sqrt(self.free(self.columns * self.outputs)) >= ENOUGH

    def free(self, numbers: int) -> int:
        """How many of so many numbers are free: the same for all classes changes no probability."""
        many = self.classes and self.outputs > 1
        return numbers * (self.outputs - 1) // self.outputs if many else numbers

    def frequent(self, strength: float) -> int:
        """How many slopes are shared because they are in most use: (mμ/4)²."""
        return int(min(self.slopes, (strength / PART) ** 2))

    def numbers(self, share: str, strength: float) -> int:
        """How many numbers of a client's model are uploaded in a round."""
        rows = {"all": self.columns, "answers": self.outputs + 1}.get(share, 1)
        return self.outputs * rows + (self.frequent(strength) if share == "frequent" else 0)
