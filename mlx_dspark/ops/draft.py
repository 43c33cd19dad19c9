"""A block drafter's decoder layers: norm, attention over context rows and the block itself, gated MLP, twice residual.

Knows the layers' weights and one buffer of context rows a sequence; knows no token, no head and no target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import mlx.core as mx

from mlx_dspark.ops.attention import AttentionForm
from mlx_dspark.ops.linear import Linear
from mlx_dspark.ops.rows import together

if TYPE_CHECKING:
    from mlx_dspark.ops.kernels import Kernels


@dataclass(frozen=True)
class DraftForm:
    """What all layers share: query heads, key heads, channels a head, how far back a row sees, and rope's base."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int
    eps: float
    theta: float

    @property
    def scale(self) -> float:
        return float(self.head_dim**-0.5)


@dataclass(frozen=True, eq=False)
class DraftLayer:
    """One Qwen3 decoder layer's weights, with q/k norms [D] and one attention sink a query head."""

    input_norm: mx.array
    q_proj: Linear
    k_proj: Linear
    v_proj: Linear
    q_norm: mx.array
    k_norm: mx.array
    sinks: mx.array
    o_proj: Linear
    post_norm: mx.array
    gate: Linear
    up: Linear
    down: Linear


@dataclass(frozen=True, eq=False)
class Span:
    """One sequence's rows of a packed block: the first is at absolute position `position`, behind rows [begin, end) of
    its `context` [layers, 2 (keys, values), Hkv, capacity, D]."""

    rows: slice
    position: int
    context: mx.array
    begin: int
    end: int


class DraftStack(Protocol):
    def block(self, x: mx.array, spans: Sequence[Span]) -> mx.array:
        """The packed rows x [T, H] after all layers; causal within a span."""

    def context(self, x: mx.array, buffer: mx.array, at: int, position: int) -> mx.array:
        """`buffer`, a context, with each layer's roped keys and its values of rows x [T, H] put at `at`.

        The first row is at absolute position `position`. The buffer given may change, too.
        """


@dataclass(frozen=True, eq=False)
class StockDraftStack:
    """In single ops of `kernels`."""

    kernels: Kernels
    form: DraftForm
    layers: Sequence[DraftLayer]

    def block(self, x: mx.array, spans: Sequence[Span]) -> mx.array:
        for index, layer in enumerate(self.layers):
            x = self._layer(x, layer, index, spans)
        return x

    def context(self, x: mx.array, buffer: mx.array, at: int, position: int) -> mx.array:
        fresh = [a for layer in self.layers for a in self._placed(layer, *self._projected(layer, x), position)]
        shape = (len(self.layers), 2, *fresh[0].shape[1:])
        buffer[:, :, :, at : at + x.shape[0]] = mx.concatenate(fresh).reshape(shape)
        return buffer

    def _projected(self, layer: DraftLayer, rows: mx.array) -> tuple[mx.array, mx.array]:
        """Raw keys and values [T, Hkv, D]."""
        shape = (-1, self.form.kv_heads, self.form.head_dim)
        return layer.k_proj(rows).reshape(shape), layer.v_proj(rows).reshape(shape)

    def _placed(self, layer: DraftLayer, k: mx.array, v: mx.array, position: int) -> tuple[mx.array, mx.array]:
        """Normed, roped keys and values [1, Hkv, T, D] of rows from `position` on."""
        return self._turned(k, layer.k_norm, position).transpose(1, 0, 2)[None], v.transpose(1, 0, 2)[None]

    def _turned(self, heads: mx.array, weight: mx.array, position: int) -> mx.array:
        return self.kernels.norm_rope(heads, weight, self.form.eps, self.form.theta, position)

    def _layer(self, x: mx.array, layer: DraftLayer, index: int, spans: Sequence[Span]) -> mx.array:
        form, kernels = self.form, self.kernels
        attention = AttentionForm(form.scale, form.window, layer.sinks)
        h = kernels.rms_norm(x, layer.input_norm, form.eps)
        q = layer.q_proj(h).reshape(-1, form.heads, form.head_dim)
        k, v = self._projected(layer, h)
        parts = []
        for span in spans:
            seen = span.context[index, :, :, span.begin : span.end]
            own = self._placed(layer, k[span.rows], v[span.rows], span.position)
            keys, values = (mx.concatenate([seen[i][None], own[i]], axis=2) for i in range(2))
            turned = self._turned(q[span.rows], layer.q_norm, span.position)
            parts.append(kernels.attend(turned, keys, values, keys.shape[2], attention, together))
        attended = parts[0] if len(parts) == 1 else mx.concatenate(parts)
        x = x + layer.o_proj(attended.reshape(x.shape[0], -1))
        h = kernels.rms_norm(x, layer.post_norm, form.eps)
        return x + layer.down(kernels.swiglu(layer.gate(h), layer.up(h)))
