"""Which weights of a linear model are shared. Pooling decides it before any privacy is spent, and
`pmtl plan` reports it, both from public numbers: the sizes of the model, and mμ (`strength`), the
number of clients times the budget μ, to which the ratio of signal to noise is proportional.

>>> LinearSizes(columns=6, outputs=1, classes=False).what_to_share(strength=160.0)
'all'
>>> words = LinearSizes(columns=1001, outputs=476, classes=True)
>>> words.what_to_share(strength=200.0), words.numbers("frequent", strength=200.0)
('frequent', 2976)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

#: All weights are shared if mμ/√(their number) is at least 2.5. Public weights (a public head) need
#: only 1.2: then a map of their answers is shared, or all weights if these are fewer.
MIN_RATIO, MIN_RATIO_OF_PUBLIC = 2.5, 1.2
#: Otherwise the (mμ/4)² most used weights are shared, if mμ is at least 100: with more noise, the
#: noisy counts do not show which weights clients use.
FREQUENT_DIVISOR, MIN_STRENGTH_TO_COUNT = 4.0, 100.0


@dataclass(frozen=True)
class LinearSizes:
    """The sizes of a linear model.

    Args:
        columns: the number of features, plus 1 for the intercept.
        outputs: number of model outputs.
        classes: whether the outputs are the logits of classes.
        public_head: whether training starts from public weights.
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
            ratio = strength / math.sqrt(self.free(rows * self.outputs))
            what = "all" if rows == self.columns else "answers"
            return what if ratio >= MIN_RATIO_OF_PUBLIC else "intercepts"
        return "frequent" if strength >= MIN_STRENGTH_TO_COUNT else "intercepts"

    def all_can_be_shared(self, strength: float) -> bool:
        """Whether the mean of all weights is more than noise."""
        return strength / math.sqrt(self.free(self.columns * self.outputs)) >= MIN_RATIO

    def free(self, numbers: int) -> int:
        """The degrees of freedom: adding a constant to all logits changes no probability."""
        many = self.classes and self.outputs > 1
        return numbers * (self.outputs - 1) // self.outputs if many else numbers

    def frequent(self, strength: float) -> int:
        """How many of the most used slopes are shared: (mμ/4)²."""
        return int(min(self.slopes, (strength / FREQUENT_DIVISOR) ** 2))

    def numbers(self, share: str, strength: float) -> int:
        """How many numbers of a client's model are uploaded in a round."""
        rows = {"all": self.columns, "answers": self.outputs + 1}.get(share, 1)
        return self.outputs * rows + (self.frequent(strength) if share == "frequent" else 0)
