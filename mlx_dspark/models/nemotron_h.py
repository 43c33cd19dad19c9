"""NVIDIA's nemotron_h: layers of one mixer each, x + mixer(norm(x)); Mamba-2, NoPE attention, experts or an MLP.

Rows are packed [T, H]; `segments` say which rows belong to which sequence. Taps are an argument, the Trace is a
result. Knows nothing of drafting, sampling or text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import mlx.core as mx

from mlx_dspark.checkpoint.config import TargetConfig
from mlx_dspark.checkpoint.weights import Weights
from mlx_dspark.models.mixers import Attention, Mamba, Mlp, Moe, Segment, Traces
from mlx_dspark.models.state import KVCache, LayerCache, MambaCache, Row, State, Trace, roll_back
from mlx_dspark.models.target import Taps, Verification
from mlx_dspark.ops.kernels import Kernels
from mlx_dspark.ops.linear import Embedding, Linear
from mlx_dspark.ops.rows import TOGETHER, RowPlan

PREFILL_GRID = 512


class Mixer(Protocol):
    """One layer's maths over packed rows; `caches` and the returned traces run parallel to `segments`."""

    def __call__(
        self, x: mx.array, segments: Sequence[Segment], caches: Sequence[LayerCache], plan: RowPlan
    ) -> tuple[mx.array, Traces]: ...


@dataclass(frozen=True, eq=False)
class Layer:
    norm: mx.array
    mixer: Mixer


@dataclass(eq=False)
class NemotronH:
    """A loaded target. `plan` says how its ops meet the rows of a verify (see models/probe.py)."""

    config: TargetConfig
    dtype: mx.Dtype
    embeddings: Embedding
    layers: list[Layer]
    norm: mx.array
    head: Linear
    kernels: Kernels
    plan: RowPlan = field(default=TOGETHER)

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def prefill_grid(self) -> int | None:
        """Absolute positions prefill chunks must end on, or None where the chunk size cannot change a bit."""
        return None if self.plan == TOGETHER else PREFILL_GRID

    @classmethod
    def load(cls, config: TargetConfig, weights: Weights) -> NemotronH:
        """Draw every tensor (names as in NVIDIA's and mlx-lm's files) and refuse what is left over."""
        kinds: dict[str, Callable[[TargetConfig, Weights, str], Mixer]] = {
            "M": Mamba.load,
            "*": Attention.load,
            "E": Moe.load,
            "-": Mlp.load,
        }
        layers = []
        for index, kind in enumerate(config.pattern):
            prefix = f"backbone.layers.{index}."
            norm = weights.array(prefix + "norm.weight", (config.hidden_size,))
            layers.append(Layer(norm, kinds[kind](config, weights, prefix + "mixer.")))
        embeddings, tied = weights.embedding("backbone.embeddings", config.vocab_size, config.hidden_size)
        norm = weights.array("backbone.norm_f.weight", (config.hidden_size,))
        head = tied if config.tied_head else weights.linear("lm_head", config.vocab_size, config.hidden_size)
        weights.ignore("mtp.")
        weights.finish()
        return cls(config, weights.dtype, embeddings, layers, norm, head, weights.kernels)

    def new_state(self, rows: int = 1) -> State:
        return State([Row([self._new_cache(kind) for kind in self.config.pattern]) for _ in range(rows)])

    def _new_cache(self, kind: str) -> LayerCache:
        c = self.config
        if kind == "*":
            return KVCache.empty(c.kv_heads, c.head_dim, self.dtype)
        if kind == "M":
            state = (c.groups, c.mamba_heads // c.groups, c.mamba_head_dim, c.state_size)
            return MambaCache(mx.zeros((c.conv_kernel - 1, c.conv_size), self.dtype), mx.zeros(state, mx.float32))
        return None

    def prefill(self, state: State, row: int, tokens: Sequence[int], taps: Sequence[int] = ()) -> Taps:
        one = State([state.rows[row]])
        _, found, _ = self._forward(one, [mx.array(list(tokens), mx.int32)], taps, TOGETHER)
        return found

    def verify(self, state: State, blocks: Sequence[mx.array], taps: Sequence[int] = ()) -> Verification:
        hidden, found, trace = self._forward(state, blocks, taps, self.plan)
        logits = self.plan.linear(self.logits, hidden)
        return Verification(logits, found, trace)

    def likeliest(self, logits: mx.array) -> mx.array:
        return self.kernels.likeliest(logits)

    def rollback(self, state: State, trace: Trace, keep: Sequence[int]) -> None:
        roll_back(state, trace, keep, self.kernels.replay)

    def logits(self, hidden: mx.array) -> mx.array:
        """norm_f and the output head: [T, H] -> [T, V]."""
        return self.head(self.kernels.rms_norm(hidden, self.norm, self.config.norm_eps))

    def _forward(
        self, state: State, blocks: Sequence[mx.array], taps: Sequence[int], plan: RowPlan
    ) -> tuple[mx.array, dict[int, mx.array], Trace]:
        """The residual stream after the last layer, the tapped outputs, and the Trace; the state has moved on."""
        widths = [int(block.shape[0]) for block in blocks]
        trace = Trace(state.lengths, widths)
        segments = _segments(widths)
        x = self.embeddings(blocks[0] if len(blocks) == 1 else mx.concatenate(list(blocks))).astype(self.dtype)
        found: dict[int, mx.array] = {}
        for index, layer in enumerate(self.layers):
            caches = [row.layers[index] for row in state.rows]
            normed = self.kernels.rms_norm(x, layer.norm, self.config.norm_eps)
            y, kept = layer.mixer(normed, segments, caches, plan)
            x = x + y
            trace.mamba.update({(index, row): t for row, t in enumerate(kept) if t is not None})
            if index in taps:
                found[index] = x
        for row, width in zip(state.rows, widths, strict=True):
            row.length += width
        return x, found, trace


def _segments(widths: Sequence[int]) -> list[Segment]:
    segments, begin = [], 0
    for row, width in enumerate(widths):
        segments.append(Segment(row, begin, begin + width))
        begin += width
    return segments
