"""Matrix products against stored weights, dense or group-quantised, and embeddings.

Holders of weights with one method each; no shapes are checked here (the loader did).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx


class Linear(Protocol):
    """y [T, out] = x [T, in] @ W.T + bias."""

    def __call__(self, x: mx.array) -> mx.array: ...


class Embedding(Protocol):
    """Rows of a table by token id: ids [T] -> [T, width]."""

    def __call__(self, ids: mx.array) -> mx.array: ...


@dataclass(frozen=True, eq=False)
class DenseLinear:
    weight: mx.array  # [out, in]
    bias: mx.array | None = None

    def __call__(self, x: mx.array) -> mx.array:
        y = x @ self.weight.T
        return y if self.bias is None else y + self.bias


@dataclass(frozen=True, eq=False)
class QuantizedWeight:
    """mlx's packed form: weight uint32 [.., out, in * bits / 32], scales and biases [.., out, in / group_size].

    `tensor_scale` (float32 []) multiplies the whole matrix, as NVFP4's second scale does; it is never folded into the
    8-bit block scales, which could not hold the product.
    """

    weight: mx.array
    scales: mx.array
    biases: mx.array | None
    group_size: int
    bits: int
    mode: str = "affine"
    tensor_scale: mx.array | None = None

    def scaled(self, y: mx.array, dtype: mx.Dtype) -> mx.array:
        """`y`, a result of the unscaled matrix, as the whole matrix gives it, in `dtype`."""
        return (y if self.tensor_scale is None else y * self.tensor_scale).astype(dtype)


@dataclass(frozen=True, eq=False)
class QuantizedLinear:
    packed: QuantizedWeight
    bias: mx.array | None = None

    def __call__(self, x: mx.array) -> mx.array:
        q = self.packed
        # Without its tensor scale an NVFP4 matrix is some 10^4 times larger: beyond what float16 holds.
        inner = x if q.tensor_scale is None else x.astype(mx.float32)
        y = mx.quantized_matmul(
            inner, q.weight, q.scales, q.biases, transpose=True, group_size=q.group_size, bits=q.bits, mode=q.mode
        )
        y = q.scaled(y, x.dtype)
        return y if self.bias is None else y + self.bias


@dataclass(frozen=True, eq=False)
class DenseEmbedding:
    weight: mx.array  # [vocab, width]

    def __call__(self, ids: mx.array) -> mx.array:
        return self.weight[ids]


@dataclass(frozen=True, eq=False)
class QuantizedEmbedding:
    packed: QuantizedWeight

    def __call__(self, ids: mx.array) -> mx.array:
        q = self.packed
        biases = None if q.biases is None else q.biases[ids]
        rows = mx.dequantize(q.weight[ids], q.scales[ids], biases, group_size=q.group_size, bits=q.bits, mode=q.mode)
        return q.scaled(rows, mx.float32 if q.biases is None else q.scales.dtype)


def quantize(weight: mx.array, bits: int, group_size: int = 64) -> QuantizedWeight:
    """Affine quantisation of weight [out, in]; `in` must be a multiple of `group_size`."""
    packed, scales, biases = mx.quantize(weight, group_size=group_size, bits=bits)
    return QuantizedWeight(packed, scales, biases, group_size, bits)
