"""Which kernels run on the default device; decided once at load."""

from __future__ import annotations

import mlx.core as mx

from mlx_dspark.ops.kernels import STOCK, Kernels, StockKernels
from mlx_dspark.ops.metal_ssm import checked_walk
from mlx_dspark.ops.native import find_native


def on_cpu() -> bool:
    return bool(mx.default_device().type == mx.DeviceType.cpu)


def choose_kernels(state_size: int) -> tuple[Kernels, str]:
    """The kernels for a model whose SSM states have `state_size` entries a channel, and one sentence on them."""
    if not on_cpu():
        walk, sentence = checked_walk(mx.default_device(), state_size)
        return StockKernels(walk), sentence
    native, sentence = find_native()
    return native or STOCK, sentence
