"""A block of drafts picked left to right, each from its logits plus a low-rank bias of the token before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from mlx_dspark.ops.linear import Embedding, Linear

Choose = Callable[[mx.array, int, "mx.array | None"], mx.array]
"""(biased logits [1, V] float32, their row in the block, the drafts before it or None) -> the draft [1]."""


class MarkovWalk(Protocol):
    def __call__(self, logits: mx.array, anchor: int, choose: Choose | None) -> tuple[mx.array, mx.array]:
        """Drafts int32 [R] for logits [R, V] float32, and the lead [R] of each row's likeliest token over the next.

        `choose` None picks the likeliest.
        """


@dataclass(frozen=True, eq=False)
class StockMarkovWalk:
    """`dtype` is that of the activations."""

    markov_in: Embedding
    markov_out: Linear
    dtype: mx.Dtype

    def __call__(self, logits: mx.array, anchor: int, choose: Choose | None) -> tuple[mx.array, mx.array]:
        pick = choose or _likeliest
        drafts: list[mx.array] = []
        rows: list[mx.array] = []
        previous = mx.array([anchor], mx.int32)
        for i in range(logits.shape[0]):
            bias = self.markov_out(self.markov_in(previous).astype(self.dtype)).astype(mx.float32)
            rows.append(logits[i : i + 1] + bias)
            previous = pick(rows[-1], i, mx.concatenate(drafts) if drafts else None).astype(mx.int32)
            drafts.append(previous)
        return mx.concatenate(drafts), lead(mx.concatenate(rows))


def lead(rows: mx.array) -> mx.array:
    """Of each row of [R, V], its largest number less the next largest; 0 if two tie, infinity if it is alone."""
    if rows.shape[-1] < 2:
        return mx.full(rows.shape[:-1], float("inf"))
    two = mx.topk(rows, 2, axis=-1)
    return mx.abs(two[:, 0] - two[:, 1])


def _likeliest(row: mx.array, index: int, before: mx.array | None) -> mx.array:
    return mx.argmax(row, axis=-1)
