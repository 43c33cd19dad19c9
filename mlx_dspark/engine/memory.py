"""How much memory a pair may come to need, and how much there is. Arithmetic on configurations alone."""

from __future__ import annotations

import os

from mlx_dspark.checkpoint.config import TargetConfig


def state_bytes(config: TargetConfig, tokens: int, itemsize: int) -> int:
    """Bytes of one sequence's State after `tokens`; `itemsize` is that of the activations."""
    attention, mamba = config.pattern.count("*"), config.pattern.count("M")
    keys = 2 * attention * config.kv_heads * config.head_dim * tokens * itemsize
    ssm = config.mamba_heads * config.mamba_head_dim * config.state_size * 4
    window = (config.conv_kernel - 1) * config.conv_size * itemsize
    return keys + mamba * (ssm + window)


def machine_bytes() -> int:
    """Memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
