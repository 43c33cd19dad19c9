"""Scaled dot-product attention of one sequence's newest rows over its cached keys."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from mlx_dspark.ops.rows import Rows, together


@dataclass(frozen=True, eq=False)
class AttentionForm:
    """How a layer attends: the factor on its scores, how far back it looks (0: to the start), one sink logit a head.

    A sink [Hq] joins the softmax without a value (Xiao et al., 2023).
    """

    scale: float
    window: int = 0
    sinks: mx.array | None = None


def attend(q: mx.array, keys: mx.array, values: mx.array, form: AttentionForm, rows: Rows = together) -> mx.array:
    """Causal attention: q [T, Hq, D] are the last T of the K positions of keys, values [1, Hkv, K, D] -> [T, Hq, D].

    Query head h reads key head h // (Hq / Hkv); the query at position p sees keys p - window < k <= p. `rows` other
    than `together` runs one query row a call.
    """
    count, total = q.shape[0], keys.shape[2]
    if form.window or form.sinks is not None:
        return _sdpa(q, keys, values, form, _mask(count, total, form.window))
    if count == 1 or rows is together:
        return _sdpa(q, keys, values, form, "causal" if count > 1 else None)
    parts = []
    for i in range(count):
        seen = total - count + i + 1
        parts.append(_sdpa(q[i : i + 1], keys[:, :, :seen], values[:, :, :seen], form, None))
    return mx.concatenate(parts)


def _mask(count: int, total: int, window: int) -> mx.array:
    """[count, total], true where the key is seen."""
    keys, queries = mx.arange(total)[None, :], mx.arange(total - count, total)[:, None]
    seen = keys <= queries
    return seen & (keys > queries - window) if window else seen


def _sdpa(q: mx.array, keys: mx.array, values: mx.array, form: AttentionForm, mask: mx.array | str | None) -> mx.array:
    heads = q.transpose(1, 0, 2)[None]
    out = mx.fast.scaled_dot_product_attention(heads, keys, values, scale=form.scale, mask=mask, sinks=form.sinks)
    return out[0].transpose(1, 0, 2)
