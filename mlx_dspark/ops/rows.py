"""How an op meets a block of rows: all at once, padded to one width, or one by one.

An op is exact when a row's bits do not depend on how many rows it is computed with. Where the device's kernel
for several rows uses another order of summation than its kernel for one, `padded` keeps every call at one
width and `one_by_one` keeps it at width 1; the load-time probe (`models/probe.py`) picks the first that is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

RowOp = Callable[[mx.array], mx.array]
Rows = Callable[[RowOp, mx.array], mx.array]

MAX_WIDTH = 8


def together(op: RowOp, x: mx.array) -> mx.array:
    """`op` over all rows of x [T, ...] in one call."""
    return op(x)


def padded(op: RowOp, x: mx.array) -> mx.array:
    """`op` in calls of exactly MAX_WIDTH rows; the last call repeats the final row to fill up."""
    parts = []
    for start in range(0, x.shape[0], MAX_WIDTH):
        part = x[start : start + MAX_WIDTH]
        count = part.shape[0]
        if count < MAX_WIDTH:
            part = mx.concatenate([part] + [part[-1:]] * (MAX_WIDTH - count))
        parts.append(op(part)[:count])
    return parts[0] if len(parts) == 1 else mx.concatenate(parts)


def one_by_one(op: RowOp, x: mx.array) -> mx.array:
    """`op` in calls of one row."""
    if x.shape[0] == 1:
        return op(x)
    return mx.concatenate([op(x[i : i + 1]) for i in range(x.shape[0])])


@dataclass(frozen=True)
class RowPlan:
    """How each kind of op meets the rows of a verify. `attention` is per query row of one sequence."""

    linear: Rows = together
    experts: Rows = together
    attention: Rows = together

    def describe(self) -> dict[str, str]:
        return {name: getattr(self, name).__name__ for name in ("linear", "experts", "attention")}


TOGETHER = RowPlan()
