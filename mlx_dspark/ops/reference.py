"""The slow twins: each op as its definition says, token by token in numpy, for testing fast kernels against."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def norm_rope(x: Array, weight: Array, eps: float, theta: float, position: int) -> Array:
    """x [T, H, D] normed by head, then channels i and i + D/2 turned by (position + t) theta^(-2 i / D)."""
    y = rms_norm(x.astype(np.float64), weight, eps)
    half = x.shape[-1] // 2
    angle = (position + np.arange(len(x)))[:, None, None] * theta ** (-np.arange(half) / half)
    left, right = y[..., :half], y[..., half:]
    turned = (left * np.cos(angle) - right * np.sin(angle), right * np.cos(angle) + left * np.sin(angle))
    return np.concatenate(turned, -1).astype(np.float32)


def silu(x: Array) -> Array:
    return np.asarray(x / (1 + np.exp(-x)))


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x [..., D], weight [D]."""
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight)


def gated_group_norm(x: Array, gate: Array, weight: Array, groups: int, eps: float) -> Array:
    """x, gate [T, D]; gate first, then a norm over each of `groups` slices."""
    y = (x * silu(gate)).reshape(len(x), groups, -1)
    return np.asarray((y / np.sqrt((y * y).mean(-1, keepdims=True) + eps)).reshape(x.shape) * weight)


def conv_silu(rows: Array, weight: Array, bias: Array) -> Array:
    """rows [K-1+T, C], weight [K, C], bias [C] -> [T, C]."""
    taps = len(weight)
    out = [bias + (rows[t : t + taps] * weight).sum(0) for t in range(len(rows) - taps + 1)]
    return silu(np.array(out))


def ssm(state: Array, x: Array, dt: Array, a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    """S_t = exp(dt_t a) S_{t-1} + dt_t x_t (outer) B_t; y_t = S_t C_t.

    state [H, P, N], x [T, H, P], dt [T, H], a [H], b and c [T, G, N]; head h reads group h // (H / G).
    """
    heads, per_group = len(a), len(a) // b.shape[1]
    state, out = state.copy(), np.zeros_like(x)
    for t in range(len(x)):
        for h in range(heads):
            g = h // per_group
            state[h] = np.exp(dt[t, h] * a[h]) * state[h] + np.outer(dt[t, h] * x[t, h], b[t, g])
            out[t, h] = state[h] @ c[t, g]
    return out, state


def attention(q: Array, keys: Array, values: Array, scale: float, window: int = 0, sinks: Array | None = None) -> Array:
    """q [T, Hq, D] are the last T of K positions; keys, values [K, Hkv, D]; causal, `window` keys back (0: all)."""
    count, heads = q.shape[:2]
    total, group = len(keys), heads // keys.shape[1]
    out = np.zeros_like(q)
    for i in range(count):
        end = total - count + i + 1
        seen = slice(max(0, end - window) if window else 0, end)
        for h in range(heads):
            scores = keys[seen, h // group] @ q[i, h] * scale
            sink = -np.inf if sinks is None else sinks[h]
            top = max(scores.max(), sink)
            weights = np.exp(scores - top)
            out[i, h] = weights / (weights.sum() + np.exp(sink - top)) @ values[seen, h // group]
    return out


def experts(x: Array, gate: Array, correction: Array, up: Array, down: Array, top: int, scale: float) -> Array:
    """x [T, H] through the `top` experts of sigmoid scores plus correction; up [E, I, H], down [E, H, I]."""
    out = np.zeros_like(x)
    for t, row in enumerate(x):
        scores = 1 / (1 + np.exp(-(gate @ row)))
        chosen = np.argsort(-(scores + correction))[:top]
        weights = scores[chosen] / (scores[chosen].sum() + 1e-20) * scale
        for e, w in zip(chosen, weights, strict=True):
            out[t] += w * (down[e] @ np.maximum(up[e] @ row, 0) ** 2)
    return out
