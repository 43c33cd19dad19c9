"""How sure a drafter was of each draft: the margin of its likeliest token over the next, read once drafts are known.

The margin, log p1 - log p2, tells as much as p1 and p1 with it, and needs no normalising. Read on the host where
that is as cheap as the device, or on the device; a drafter without logits has a measure of its own. Estimates learn
what any of them is worth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx
import numpy as np


class Confidence(Protocol):
    """Of one draft block, possibly not evaluated yet."""

    def arrays(self) -> list[mx.array]:
        """What to evaluate together with the drafts."""

    def read(self, count: int) -> list[float]:
        """Margins, at least 0, of the first `count` drafts; waits for them."""


Confide = Callable[[mx.array], Confidence]
"""Logits [k, V] of a block, biases and all, possibly not evaluated yet -> Confidence."""


@dataclass(frozen=True, eq=False)
class OnHost:
    """Reads the rows themselves: no copy where device and host share memory, as a CPU does."""

    rows: mx.array

    @classmethod
    def of(cls, rows: mx.array) -> OnHost:
        return cls(rows)

    def arrays(self) -> list[mx.array]:
        return [self.rows]

    def read(self, count: int) -> list[float]:
        found = []
        for values in np.array(self.rows, copy=False)[:count]:
            at = int(values.argmax())
            rest = (part.max() for part in (values[:at], values[at + 1 :]) if part.size)  # faster than a partition
            found.append(float(values[at] - max(rest)))
        return found


@dataclass(frozen=True)
class Even:
    """The same number for every draft, known at once."""

    margin: float

    def arrays(self) -> list[mx.array]:
        return []

    def read(self, count: int) -> list[float]:
        return [self.margin] * count


@dataclass(frozen=True, eq=False)
class OnDevice:
    """One small array [k] leaves the device."""

    margins: mx.array

    @classmethod
    def of(cls, rows: mx.array) -> OnDevice:
        """Two likeliest tokens that tie have the margin 0."""
        two = mx.topk(rows, 2, axis=-1)
        return cls(mx.abs(two[:, 0] - two[:, 1]))

    def arrays(self) -> list[mx.array]:
        return [self.margins]

    def read(self, count: int) -> list[float]:
        return [float(v) for v in self.margins[:count].tolist()]  # type: ignore[union-attr, arg-type]
