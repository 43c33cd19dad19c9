"""RMSNorm and Mamba-2's gated group norm."""

from __future__ import annotations

import mlx.core as mx


def silu(x: mx.array) -> mx.array:
    return x * mx.sigmoid(x)


def rms_norm(x: mx.array, weight: mx.array | None, eps: float) -> mx.array:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis; statistics in float32 (Zhang & Sennrich, 2019)."""
    return mx.fast.rms_norm(x, weight, eps)


def norm_rope(x: mx.array, weight: mx.array, eps: float, theta: float, position: int) -> mx.array:
    """Each head of x [T, H, D] normed, then turned by its row's position; the first is at `position` (Su et al., 2021).

    Channel i pairs with i + D / 2 and turns by position * theta^(-2 i / D).
    """
    heads = rms_norm(x, weight, eps).transpose(1, 0, 2)[None]
    turned = mx.fast.rope(heads, x.shape[-1], traditional=False, base=theta, scale=1.0, offset=position)
    return turned[0].transpose(1, 0, 2)


def gated_group_norm(x: mx.array, gate: mx.array, weight: mx.array, groups: int, eps: float) -> mx.array:
    """RMSNorm of x * silu(gate) over each of `groups` equal slices; x, gate [T, D], weight [D] (gate first)."""
    y = (x * silu(gate)).reshape(x.shape[0], groups, -1)
    return rms_norm(y, None, eps).reshape(x.shape) * weight
