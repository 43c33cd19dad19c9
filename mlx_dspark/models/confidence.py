"""How sure a drafter was of each draft: the margin of its likeliest token over the next, read once drafts are known.

The margin, log p1 - log p2, tells as much as p1 and p1 with it, and needs no normalising. A drafter without logits
has a measure of its own. Estimates learn what any of them is worth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx


class Confidence(Protocol):
    """Of one draft block, possibly not evaluated yet."""

    def arrays(self) -> list[mx.array]:
        """What to evaluate together with the drafts."""

    def read(self, count: int) -> list[float]:
        """Margins, at least 0, of the first `count` drafts; waits for them."""


@dataclass(frozen=True)
class Even:
    """The same number for every draft, known at once."""

    margin: float

    def arrays(self) -> list[mx.array]:
        return []

    def read(self, count: int) -> list[float]:
        return [self.margin] * count


@dataclass(frozen=True, eq=False)
class Margins:
    """One number a draft, [k]; what is no number counts as 0."""

    values: mx.array

    def arrays(self) -> list[mx.array]:
        return [self.values]

    def read(self, count: int) -> list[float]:
        values: list[float] = self.values.tolist()  # type: ignore[assignment]
        return [v if v > 0 else 0.0 for v in values[:count]]
