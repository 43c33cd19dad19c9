"""The short causal depthwise convolution in front of the SSM."""

from __future__ import annotations

import mlx.core as mx

from mlx_dspark.ops.norm import silu


def conv_silu(rows: mx.array, weight: mx.array, bias: mx.array | None) -> mx.array:
    """silu(bias + sum_j weight[j] * rows[t + j]): rows [K-1+T, C], weight [K, C], bias [C] -> [T, C].

    The first K-1 rows are the window left by the tokens before; the last tap is the newest row.
    """
    taps = weight.shape[0]
    count = rows.shape[0] - taps + 1
    y = rows[:count] * weight[0]
    for j in range(1, taps):
        y = y + rows[j : j + count] * weight[j]
    return silu(y if bias is None else y + bias)
