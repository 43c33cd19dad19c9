"""Which kernels run on the default device; decided once at load."""

from __future__ import annotations

import mlx.core as mx

from mlx_dspark.ops.kernels import STOCK, Kernels
from mlx_dspark.ops.native import find_native


def on_cpu() -> bool:
    return bool(mx.default_device().type == mx.DeviceType.cpu)


def choose_kernels() -> tuple[Kernels, str]:
    """The kernels, and one sentence that says which and why."""
    if not on_cpu():
        return STOCK, "mlx's own ops on the GPU"
    native, sentence = find_native()
    return native or STOCK, sentence
