"""Routing to experts and the experts' own products (squared-ReLU MLPs without a gate matrix)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from mlx_dspark.ops.linear import QuantizedWeight


@dataclass(frozen=True)
class Routing:
    """How a token chooses its experts: `top` of them, from the best `top_groups` of `groups` groups."""

    top: int
    scale: float
    normalize: bool = True
    groups: int = 1
    top_groups: int = 1


def route(x: mx.array, gate: mx.array, correction: mx.array, routing: Routing) -> tuple[mx.array, mx.array]:
    """Expert ids [T, top] and float32 weights [T, top] for x [T, H], gate [E, H], correction [E] (both float32).

    Sigmoid scores; the correction bias decides who is chosen, the plain score what it weighs (DeepSeek-V3, 2.1.2).
    """
    scores = mx.sigmoid(x.astype(mx.float32) @ gate.T)
    ranked = scores + correction
    if routing.groups > 1:
        ranked = _keep_best_groups(ranked, routing)
    chosen = mx.argpartition(-ranked, kth=routing.top - 1, axis=-1)[:, : routing.top]
    weights = mx.take_along_axis(scores, chosen, axis=-1)
    if routing.normalize and routing.top > 1:
        weights = weights / (weights.sum(axis=-1, keepdims=True) + 1e-20)
    return chosen, weights * routing.scale


def _keep_best_groups(ranked: mx.array, routing: Routing) -> mx.array:
    """Experts outside the groups whose two best scores sum highest are ranked at zero."""
    rows, experts = ranked.shape
    grouped = ranked.reshape(rows, routing.groups, experts // routing.groups)
    best_two = mx.topk(grouped, 2, axis=-1).sum(axis=-1)
    dropped = mx.argpartition(best_two, kth=routing.groups - routing.top_groups - 1, axis=-1)
    dropped = dropped[:, : routing.groups - routing.top_groups, None]
    zeros = mx.zeros((*dropped.shape[:2], grouped.shape[-1]), ranked.dtype)
    if routing.top_groups < routing.groups:
        grouped = mx.put_along_axis(grouped, mx.broadcast_to(dropped, zeros.shape), zeros, axis=1)
    return grouped.reshape(rows, experts)


class Experts(Protocol):
    """x [T, S, in] through expert ids [T, S] (or x [T, 1, in] through all S) -> [T, S, out]."""

    def __call__(self, x: mx.array, ids: mx.array) -> mx.array: ...


@dataclass(frozen=True, eq=False)
class DenseExperts:
    weight: mx.array  # [E, out, in]

    def __call__(self, x: mx.array, ids: mx.array) -> mx.array:
        return mx.gather_mm(x[:, :, None, :], self.weight.swapaxes(-1, -2), rhs_indices=ids).squeeze(2)


@dataclass(frozen=True, eq=False)
class QuantizedExperts:
    packed: QuantizedWeight

    def __call__(self, x: mx.array, ids: mx.array) -> mx.array:
        q = self.packed
        y = mx.gather_qmm(
            x[:, :, None, :], q.weight, q.scales, q.biases,
            rhs_indices=ids, transpose=True, group_size=q.group_size, bits=q.bits, mode=q.mode,
        )  # fmt: skip
        return y.squeeze(2)


def relu2(x: mx.array) -> mx.array:
    """relu(x)^2 (Primer, So et al., 2021)."""
    return mx.square(mx.maximum(x, 0))
