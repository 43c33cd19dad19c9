"""How sure a drafter was of each draft: the logarithm of its own top probability, read once the drafts are known.

Two ways to one number: on the host, where it is as cheap as the device, or on the device. Knows logits alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx
import numpy as np


class Confidence(Protocol):
    """Of one draft block, possibly not evaluated yet."""

    def arrays(self) -> list[mx.array]:
        """What to evaluate together with the drafts."""

    def read(self, count: int) -> list[float]:
        """log p of the likeliest token at each of the first `count` positions, each at most 0; waits for them."""


Confide = Callable[[Sequence[mx.array]], Confidence]
"""Logits [1, V] of each position, biases and all -> Confidence."""


@dataclass(frozen=True, eq=False)
class OnHost:
    """Reads the rows themselves: no copy where device and host share memory, as a CPU does."""

    rows: Sequence[mx.array]

    @classmethod
    def of(cls, rows: Sequence[mx.array]) -> OnHost:
        return cls(list(rows))

    def arrays(self) -> list[mx.array]:
        return list(self.rows)

    def read(self, count: int) -> list[float]:
        found = []
        for row in self.rows[:count]:
            values = np.array(row, copy=False)
            found.append(-float(np.log(np.exp(values - values.max()).sum())))
        return found


@dataclass(frozen=True, eq=False)
class OnDevice:
    """One small array leaves the device."""

    values: mx.array

    @classmethod
    def of(cls, rows: Sequence[mx.array]) -> OnDevice:
        logits = mx.concatenate(list(rows))
        return cls(logits.max(axis=-1) - mx.logsumexp(logits, axis=-1))

    def arrays(self) -> list[mx.array]:
        return [self.values]

    def read(self, count: int) -> list[float]:
        return [float(v) for v in self.values[:count].tolist()]  # type: ignore[union-attr, arg-type]
