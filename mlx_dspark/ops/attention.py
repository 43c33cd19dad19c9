"""Scaled dot-product attention of one sequence's newest rows over its cached keys."""

from __future__ import annotations

import mlx.core as mx

from mlx_dspark.ops.rows import Rows, together


def attend(q: mx.array, keys: mx.array, values: mx.array, scale: float, rows: Rows = together) -> mx.array:
    """Causal attention: q [T, Hq, D] are the last T of the K positions of keys, values [1, Hkv, K, D] -> [T, Hq, D].

    Query head h reads key head h // (Hq / Hkv). `rows` other than `together` runs one query row a call.
    """
    count, total = q.shape[0], keys.shape[2]
    if count == 1 or rows is together:
        mask = "causal" if count > 1 else None
        return _sdpa(q, keys, values, scale, mask)
    parts = []
    for i in range(count):
        seen = total - count + i + 1
        parts.append(_sdpa(q[i : i + 1], keys[:, :, :seen], values[:, :, :seen], scale, None))
    return mx.concatenate(parts)


def _sdpa(q: mx.array, keys: mx.array, values: mx.array, scale: float, mask: str | None) -> mx.array:
    heads = q.transpose(1, 0, 2)[None]
    out = mx.fast.scaled_dot_product_attention(heads, keys, values, scale=scale, mask=mask)
    return out[0].transpose(1, 0, 2)


def attend_window(
    q: mx.array, keys: mx.array, values: mx.array, scale: float, mask: mx.array, sinks: mx.array
) -> mx.array:
    """Attention under an explicit mask with one sink logit a head in the softmax (Xiao et al., 2023).

    q [Q, Hq, D], keys and values [1, Hkv, K, D], mask [Q, K] bool (true = seen), sinks [Hq] -> [Q, Hq, D].
    """
    heads = q.transpose(1, 0, 2)[None]
    out = mx.fast.scaled_dot_product_attention(heads, keys, values, scale=scale, mask=mask, sinks=sinks)
    return out[0].transpose(1, 0, 2)
