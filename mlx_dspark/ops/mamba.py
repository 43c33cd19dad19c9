"""What a Mamba-2 layer does between its two projections: conv, state walk, gated norm; and how to undo a tail of it.

Knows one sequence's block of rows and the recurrent state before it; knows no projection and no cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import mlx.core as mx

from mlx_dspark.ops.conv import conv_silu
from mlx_dspark.ops.norm import gated_group_norm
from mlx_dspark.ops.ssm import ScanInputs, Walk, advance, scan_inputs, softplus, walk


@dataclass(frozen=True, eq=False)
class MambaWeights:
    """A layer's own parameters. G groups, R heads a group, P channels a head, N state size, H = G R heads."""

    conv: mx.array  # [K, C], C = H P + 2 G N
    conv_bias: mx.array | None
    a: mx.array  # [G, R] float32, negative
    d: mx.array  # [G, R] float32
    dt_bias: mx.array  # [H] float32
    norm: mx.array  # [H P]
    head_dim: int
    state_size: int
    eps: float
    dt_limit: tuple[float, float]

    @property
    def groups(self) -> int:
        return int(self.a.shape[0])

    @property
    def inner(self) -> int:
        return int(self.norm.shape[0])


class Replay(Protocol):
    """What a block keeps so that only its first tokens can be consumed after all."""

    @property
    def nbytes(self) -> int: ...

    def after(self, keep: int) -> tuple[mx.array, mx.array]:
        """Conv window and SSM state, with the bits that consuming only the first `keep` tokens leaves."""


def replay(blocks: Sequence[Replay], keep: Sequence[int]) -> list[tuple[mx.array, mx.array]]:
    """Conv window and SSM state of each block after its first keep[i] tokens."""
    return [block.after(count) for block, count in zip(blocks, keep, strict=True)]


@dataclass(frozen=True, eq=False)
class MambaBlock:
    """T tokens later: y [T, H P] for the output projection, and the recurrent state after the last token."""

    y: mx.array
    window: mx.array  # [K-1, C]
    ssm: mx.array  # [G, R, P, N] float32
    replay: Replay


class MambaOp(Protocol):
    """projected [T, z | conv in | dt], the window [K-1, C] and the state [G, R, P, N] before it -> MambaBlock."""

    def __call__(self, projected: mx.array, window: mx.array, ssm: mx.array) -> MambaBlock: ...


@dataclass(frozen=True, eq=False)
class WalkedReplay:
    """The state before the block and all that its tokens brought to the recurrence."""

    inputs: mx.array  # conv inputs [K-1+T, C], the window before the block first
    ssm: mx.array
    scan: ScanInputs
    walk: Walk

    @property
    def nbytes(self) -> int:
        return self.ssm.nbytes + self.inputs.nbytes + self.scan.nbytes

    def after(self, keep: int) -> tuple[mx.array, mx.array]:
        taps = self.inputs.shape[0] - len(self.scan)
        return self.inputs[keep : keep + taps], advance(self.ssm, self.scan.first(keep), self.walk)


@dataclass(frozen=True, eq=False)
class WalkedMamba:
    """In mlx's own ops around `walk` (Dao & Gu, 2024)."""

    weights: MambaWeights
    walk: Walk = field(default=walk)

    def __call__(self, projected: mx.array, window: mx.array, ssm: mx.array) -> MambaBlock:
        w, count = self.weights, projected.shape[0]
        groups, heads = w.a.shape
        span = groups * w.state_size
        z, conv_in, dt = mx.split(projected, [w.inner, 2 * w.inner + 2 * span], axis=-1)
        inputs = mx.concatenate([window, conv_in])
        u = conv_silu(inputs, w.conv, w.conv_bias).astype(mx.float32)
        x, b, read = mx.split(u, [w.inner, w.inner + span], axis=-1)
        x = x.reshape(count, groups, heads, w.head_dim)
        dt = softplus(dt.astype(mx.float32) + w.dt_bias)
        if w.dt_limit != (0.0, float("inf")):
            dt = mx.clip(dt, *w.dt_limit)
        shape = (count, groups, w.state_size)
        scan = scan_inputs(x, dt.reshape(count, groups, heads), w.a, b.reshape(shape))
        y, after = self.walk(ssm, scan, read.reshape(shape))
        y = (y + w.d[..., None] * x).reshape(count, w.inner).astype(projected.dtype)
        y = gated_group_norm(y, z, w.norm, groups, w.eps)
        return MambaBlock(y, inputs[count:], after, WalkedReplay(inputs, ssm, scan, self.walk))
