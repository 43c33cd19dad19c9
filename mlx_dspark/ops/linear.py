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
    """mlx's packed form: weight uint32 [.., out, in * bits / 32], scales and biases [.., out, in / group_size]."""

    weight: mx.array
    scales: mx.array
    biases: mx.array | None
    group_size: int
    bits: int
    mode: str = "affine"


@dataclass(frozen=True, eq=False)
class QuantizedLinear:
    packed: QuantizedWeight
    bias: mx.array | None = None

    def __call__(self, x: mx.array) -> mx.array:
        q = self.packed
        y = mx.quantized_matmul(
            x, q.weight, q.scales, q.biases, transpose=True, group_size=q.group_size, bits=q.bits, mode=q.mode
        )
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
        return mx.dequantize(
            q.weight[ids], q.scales[ids], biases, group_size=q.group_size, bits=q.bits, mode=q.mode
        ).astype(q.scales.dtype)


def quantize(weight: mx.array, bits: int, group_size: int = 64) -> QuantizedWeight:
    """Affine quantisation of weight [out, in]; `in` must be a multiple of `group_size`."""
    packed, scales, biases = mx.quantize(weight, group_size=group_size, bits=bits)
    return QuantizedWeight(packed, scales, biases, group_size, bits)
