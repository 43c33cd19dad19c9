"""All ops of one device behind one object, chosen once at load and handed to the models; and mlx's own ops as one.

An implementation may hold weights in a form of its own, but never changes what an op means (see `reference.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from mlx_dspark.ops import attention, moe, norm
from mlx_dspark.ops.attention import AttentionForm
from mlx_dspark.ops.draft import DraftForm, DraftLayer, DraftStack, StockDraftStack
from mlx_dspark.ops.linear import (
    DenseEmbedding,
    DenseLinear,
    Embedding,
    Linear,
    QuantizedEmbedding,
    QuantizedLinear,
    QuantizedWeight,
)
from mlx_dspark.ops.mamba import MambaOp, MambaWeights, Replay, WalkedMamba, replay
from mlx_dspark.ops.markov import MarkovWalk, StockMarkovWalk
from mlx_dspark.ops.moe import DenseExperts, Experts, QuantizedExperts, Routing, relu2
from mlx_dspark.ops.rows import Rows
from mlx_dspark.ops.ssm import Walk, walk

Matrix = mx.array | QuantizedWeight
"""A dense [.., out, in] or packed matrix, or a stack of them, one an expert."""
ExpertMlp = Callable[[mx.array, mx.array, mx.array], mx.array]
"""(x [T, in], expert ids [T, S], their weights [T, S] float32) -> the weighted sum of down(relu(up x)^2), [T, in]."""


class Kernels(Protocol):
    """`mixed`: dense matrices may stay in their stored dtype, whatever that of the activations."""

    @property
    def name(self) -> str: ...

    @property
    def mixed(self) -> bool: ...

    def linear(self, matrix: Matrix, bias: mx.array | None = None) -> Linear: ...

    def embedding(self, table: Matrix) -> Embedding:
        """Rows of `table` [vocab, width], in its dtype or in that of its scales."""

    def mlp(self, up: Linear, down: Linear) -> Linear:
        """down(relu(up x)^2)."""

    def experts(self, up: Matrix, down: Matrix) -> ExpertMlp: ...

    def mamba(self, weights: MambaWeights) -> MambaOp: ...

    def replay(self, blocks: Sequence[Replay], keep: Sequence[int]) -> list[tuple[mx.array, mx.array]]:
        """As `mamba.replay`."""

    def rms_norm(self, x: mx.array, weight: mx.array | None, eps: float) -> mx.array:
        """As `norm.rms_norm`."""

    def norm_rope(self, x: mx.array, weight: mx.array, eps: float, theta: float, position: int) -> mx.array:
        """As `norm.norm_rope`."""

    def attend(
        self, q: mx.array, keys: mx.array, values: mx.array, length: int, form: AttentionForm, rows: Rows
    ) -> mx.array:
        """As `attention.attend`."""

    def route(self, x: mx.array, gate: mx.array, correction: mx.array, routing: Routing) -> tuple[mx.array, mx.array]:
        """As `moe.route`."""

    def swiglu(self, gate: mx.array, up: mx.array) -> mx.array:
        """silu(gate) * up."""

    def likeliest(self, logits: mx.array) -> mx.array:
        """The first largest number's place (int32) in each row of [R, V]."""

    def markov(self, markov_in: Embedding, markov_out: Linear, dtype: mx.Dtype) -> MarkovWalk:
        """As `markov.StockMarkovWalk`."""

    def draft(self, form: DraftForm, layers: Sequence[DraftLayer]) -> DraftStack:
        """As `draft.StockDraftStack`."""


@dataclass(frozen=True, eq=False)
class StockMlp:
    up: Linear
    down: Linear

    def __call__(self, x: mx.array) -> mx.array:
        return self.down(relu2(self.up(x)))


@dataclass(frozen=True, eq=False)
class StockExpertMlp:
    up: Experts
    down: Experts

    def __call__(self, x: mx.array, ids: mx.array, weights: mx.array) -> mx.array:
        y = self.down(relu2(self.up(x[:, None, :], ids)), ids)
        return (y * weights[..., None]).sum(axis=1).astype(x.dtype)


def _experts(matrix: Matrix) -> Experts:
    return QuantizedExperts(matrix) if isinstance(matrix, QuantizedWeight) else DenseExperts(matrix)


@dataclass(frozen=True, eq=False)
class StockKernels:
    """mlx's own ops, with `walk` for the one that has several forms."""

    walk: Walk = walk
    name: str = "stock"
    mixed: bool = False

    def linear(self, matrix: Matrix, bias: mx.array | None = None) -> Linear:
        if isinstance(matrix, QuantizedWeight):
            return QuantizedLinear(matrix, bias)
        return DenseLinear(matrix, bias)

    def embedding(self, table: Matrix) -> Embedding:
        return QuantizedEmbedding(table) if isinstance(table, QuantizedWeight) else DenseEmbedding(table)

    def mlp(self, up: Linear, down: Linear) -> Linear:
        return StockMlp(up, down)

    def experts(self, up: Matrix, down: Matrix) -> ExpertMlp:
        return StockExpertMlp(_experts(up), _experts(down))

    def mamba(self, weights: MambaWeights) -> MambaOp:
        return WalkedMamba(weights, self.walk)

    def replay(self, blocks: Sequence[Replay], keep: Sequence[int]) -> list[tuple[mx.array, mx.array]]:
        return replay(blocks, keep)

    def rms_norm(self, x: mx.array, weight: mx.array | None, eps: float) -> mx.array:
        return norm.rms_norm(x, weight, eps)

    def norm_rope(self, x: mx.array, weight: mx.array, eps: float, theta: float, position: int) -> mx.array:
        return norm.norm_rope(x, weight, eps, theta, position)

    def attend(
        self, q: mx.array, keys: mx.array, values: mx.array, length: int, form: AttentionForm, rows: Rows
    ) -> mx.array:
        return attention.attend(q, keys[:, :, :length], values[:, :, :length], form, rows)

    def route(self, x: mx.array, gate: mx.array, correction: mx.array, routing: Routing) -> tuple[mx.array, mx.array]:
        return moe.route(x, gate, correction, routing)

    def swiglu(self, gate: mx.array, up: mx.array) -> mx.array:
        return norm.silu(gate) * up

    def likeliest(self, logits: mx.array) -> mx.array:
        return mx.argmax(logits, axis=-1).astype(mx.int32)

    def markov(self, markov_in: Embedding, markov_out: Linear, dtype: mx.Dtype) -> MarkovWalk:
        return StockMarkovWalk(markov_in, markov_out, dtype)

    def draft(self, form: DraftForm, layers: Sequence[DraftLayer]) -> DraftStack:
        return StockDraftStack(self, form, layers)


STOCK = StockKernels()
