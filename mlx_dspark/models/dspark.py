"""NVIDIA's DSpark head: a sliding-window block drafter over the target's tapped states, with a Markov fix-up.

Slot 0 of a block is the anchor, the others are masks; mask slot j predicts the token at its own position, and its
logits get a low-rank bias from the draft before it. Knows hidden states and ids; knows no target family.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from mlx_dspark.checkpoint.config import DrafterConfig
from mlx_dspark.checkpoint.weights import Weights
from mlx_dspark.models.confidence import Margins
from mlx_dspark.models.drafter import DraftBlock, DraftRequest, block_of
from mlx_dspark.ops.attention import AttentionForm
from mlx_dspark.ops.kernels import Kernels
from mlx_dspark.ops.linear import Embedding, Linear
from mlx_dspark.ops.markov import MarkovWalk
from mlx_dspark.ops.rows import together

SLACK = 256


@dataclass(eq=False)
class ContextCache:
    """Roped keys and values [1, Hkv, capacity, D] of one layer's context rows; [begin, end) are in the window."""

    keys: mx.array
    values: mx.array
    begin: int = 0
    end: int = 0

    def append(self, keys: mx.array, values: mx.array, limit: int) -> None:
        """Add rows and keep the newest `limit`; moves the kept rows to the front when the buffer is full."""
        count = min(keys.shape[2], limit)
        keys, values = keys[:, :, keys.shape[2] - count :], values[:, :, values.shape[2] - count :]
        self.begin = max(self.begin, self.end + count - limit)
        if self.end + count > self.keys.shape[2]:
            self._compact(count)
        self.keys[:, :, self.end : self.end + count] = keys
        self.values[:, :, self.end : self.end + count] = values
        self.end += count

    def _compact(self, count: int) -> None:
        """A fresh buffer: the rows still in the window, then room for `count` more and the slack."""
        kept = self.end - self.begin
        blank = mx.zeros((*self.keys.shape[:2], count + SLACK, self.keys.shape[3]), self.keys.dtype)
        self.keys = mx.concatenate([self.keys[:, :, self.begin : self.end], blank], axis=2)
        self.values = mx.concatenate([self.values[:, :, self.begin : self.end], blank], axis=2)
        self.begin, self.end = 0, kept

    def copy(self) -> ContextCache:
        span = slice(self.begin, self.end)
        return ContextCache(
            mx.contiguous(self.keys[:, :, span]), mx.contiguous(self.values[:, :, span]), 0, self.end - self.begin
        )

    def with_block(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        span = slice(self.begin, self.end)
        return (
            mx.concatenate([self.keys[:, :, span], keys], axis=2),
            mx.concatenate([self.values[:, :, span], values], axis=2),
        )


@dataclass(eq=False)
class DSparkState:
    """Context of one sequence: a cache a layer; `position` is that of the next context row."""

    layers: list[ContextCache]
    position: int = 0

    @property
    def rows(self) -> int:
        return self.layers[0].end - self.layers[0].begin

    @property
    def nbytes(self) -> int:
        return sum(c.keys.nbytes + c.values.nbytes for c in self.layers)


@dataclass(frozen=True, eq=False)
class DraftLayer:
    """One Qwen3 decoder layer with q/k norms, rope and attention sinks."""

    config: DrafterConfig
    kernels: Kernels
    form: AttentionForm
    input_norm: mx.array
    post_norm: mx.array
    q_proj: Linear
    k_proj: Linear
    v_proj: Linear
    o_proj: Linear
    q_norm: mx.array
    k_norm: mx.array
    gate: Linear
    up: Linear
    down: Linear

    def project(self, rows: mx.array) -> tuple[mx.array, mx.array]:
        """Raw keys and values [T, Hkv, D]."""
        shape = (-1, self.config.kv_heads, self.config.head_dim)
        return self.k_proj(rows).reshape(shape), self.v_proj(rows).reshape(shape)

    def placed(self, k: mx.array, v: mx.array, position: int) -> tuple[mx.array, mx.array]:
        """Projected rows as normed, roped keys and values [1, Hkv, T, D] at positions from `position`."""
        return self._turned(k, self.k_norm, position).transpose(1, 0, 2)[None], v.transpose(1, 0, 2)[None]

    def __call__(self, x: mx.array, spans: Sequence[Span], layer: int) -> mx.array:
        c = self.config
        h = self.kernels.rms_norm(x, self.input_norm, c.norm_eps)
        q = self.q_proj(h).reshape(-1, c.heads, c.head_dim)
        k, v = self.project(h)
        parts = []
        for span in spans:
            keys, values = self.placed(k[span.rows], v[span.rows], span.position)
            keys, values = span.state.layers[layer].with_block(keys, values)
            turned = self._turned(q[span.rows], self.q_norm, span.position)
            parts.append(self.kernels.attend(turned, keys, values, keys.shape[2], self.form, together))
        attended = parts[0] if len(parts) == 1 else mx.concatenate(parts)
        x = x + self.o_proj(attended.reshape(x.shape[0], -1))
        h = self.kernels.rms_norm(x, self.post_norm, c.norm_eps)
        return x + self.down(self.kernels.swiglu(self.gate(h), self.up(h)))

    def _turned(self, heads: mx.array, weight: mx.array, position: int) -> mx.array:
        return self.kernels.norm_rope(heads, weight, self.config.norm_eps, self.config.rope_theta, position)


@dataclass(frozen=True, eq=False)
class Span:
    """One request's slots in the packed block: rows and the absolute position of slot 0."""

    state: DSparkState
    rows: slice
    position: int


@dataclass(frozen=True, eq=False)
class DSpark:
    """A loaded head; `head` is the target's own output projection."""

    config: DrafterConfig
    dtype: mx.Dtype
    kernels: Kernels
    embed: Embedding
    fc: Linear
    hidden_norm: mx.array
    norm: mx.array
    layers: list[DraftLayer]
    markov: MarkovWalk
    head: Linear
    name: str = field(default="dspark")

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def taps(self) -> tuple[int, ...]:
        return self.config.taps

    @property
    def max_draft(self) -> int:
        return self.config.max_draft

    @property
    def context(self) -> int:
        return self.config.window - 1

    @classmethod
    def load(cls, config: DrafterConfig, weights: Weights, head: Linear, bits: int = 0) -> DSpark:
        """Draw every tensor (NVIDIA's names), matrices held in `bits` (0: as stored); refuse what is left over."""
        c, size = config, config.hidden_size
        embed, _ = weights.embedding("embed_tokens", c.vocab_size, size)
        markov_in, _ = weights.embedding("markov_head.markov_w1", c.vocab_size, c.markov_rank)
        fc = weights.requantized("fc", size, size * len(c.taps), bits)
        layers = [_load_layer(c, weights, f"layers.{i}.", bits) for i in range(c.layers)]
        markov_out = weights.requantized("markov_head.markov_w2", c.vocab_size, c.markov_rank, bits)
        hidden_norm, norm = weights.array("hidden_norm.weight", (size,)), weights.array("norm.weight", (size,))
        if c.confidence_head:
            weights.ignore("confidence_head.")
        weights.finish()
        markov = weights.kernels.markov(markov_in, markov_out, weights.dtype)
        return cls(c, weights.dtype, weights.kernels, embed, fc, hidden_norm, norm, layers, markov, head)

    def new_state(self) -> DSparkState:
        c = self.config
        blank = mx.zeros((1, c.kv_heads, 0, c.head_dim), self.dtype)
        return DSparkState([ContextCache(blank, blank) for _ in range(c.layers)])

    def copy_state(self, state: DSparkState) -> DSparkState:
        """A copy of the rows in the window alone, evaluated."""
        copied = DSparkState([cache.copy() for cache in state.layers], state.position)
        mx.eval([a for cache in copied.layers for a in (cache.keys, cache.values)])
        return copied

    def state_nbytes(self, state: DSparkState) -> int:
        return state.nbytes

    def observe(self, state: DSparkState, tokens: Sequence[int], position: int, taps: Mapping[int, mx.array]) -> None:
        """Turn tapped rows into context keys and values; rows that do not follow the last ones start afresh."""
        end, limit = position + len(tokens), self.config.window - 1
        begin = end - (taps[self.config.taps[0]].shape[0] if taps else 0)
        assert begin >= position
        if begin != state.position:
            state.layers = self.new_state().layers
        state.position = end
        skipped = max(0, end - begin - limit)
        if begin + skipped == end:
            return
        fused = mx.concatenate([taps[layer][skipped:] for layer in self.config.taps], axis=-1).astype(self.dtype)
        rows = self.kernels.rms_norm(self.fc(fused), self.hidden_norm, self.config.norm_eps)
        for layer, cache in zip(self.layers, state.layers, strict=True):
            cache.append(*layer.placed(*layer.project(rows), begin + skipped), limit)

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
        asked = [r for r in requests if r.count > 0]
        if not asked:
            return [block_of((), self.name) for _ in requests]
        logits = self._base_logits(asked)
        blocks: dict[int, DraftBlock] = {}
        for request, rows in zip(asked, logits, strict=True):
            blocks[id(request)] = self._walk(request, rows)
        return [blocks.get(id(r)) or block_of((), self.name) for r in requests]

    def _base_logits(self, requests: Sequence[DraftRequest]) -> list[mx.array]:
        """The head's logits [count, V] before the Markov bias, one a request; linear parts run packed."""
        spans, ids, begin = [], [], 0
        for r in requests:
            width = min(r.count, self.max_draft) + 1
            assert not r.state.rows or r.state.position == r.position
            spans.append(Span(r.state, slice(begin, begin + width), r.position))
            ids += [r.anchor] + [self.config.mask_token] * (width - 1)
            begin += width
        x = self.embed(mx.array(ids, mx.int32)).astype(self.dtype)
        for index, layer in enumerate(self.layers):
            x = layer(x, spans, index)
        x = self.kernels.rms_norm(x, self.norm, self.config.norm_eps)
        drafts = [x[s.rows.start + 1 : s.rows.stop] for s in spans]
        logits = self.head(drafts[0] if len(drafts) == 1 else mx.concatenate(drafts)).astype(mx.float32)
        ends = [s.rows.stop - i - 1 for i, s in enumerate(spans)]
        return list(mx.split(logits, ends[:-1])) if len(ends) > 1 else [logits]

    def _walk(self, request: DraftRequest, logits: mx.array) -> DraftBlock:
        """Left to right: each draft is picked from its logits plus the bias of the token before it."""
        choose = None if request.greedy else lambda row, i, before: request.pick(row, request.position + 1 + i, before)
        drafts, margins = self.markov(logits, request.anchor, choose)
        return DraftBlock(drafts, self.name, Margins(margins))


def _load_layer(c: DrafterConfig, weights: Weights, at: str, bits: int) -> DraftLayer:
    q, kv, size = c.heads * c.head_dim, c.kv_heads * c.head_dim, c.hidden_size
    attn, mlp = f"{at}self_attn.", f"{at}mlp."
    sinks = weights.array(f"{attn}attention_sink_bias", (c.heads,))
    return DraftLayer(
        c,
        weights.kernels,
        AttentionForm(c.head_dim**-0.5, c.window, sinks),
        input_norm=weights.array(f"{at}input_layernorm.weight", (size,)),
        post_norm=weights.array(f"{at}post_attention_layernorm.weight", (size,)),
        q_proj=weights.requantized(f"{attn}q_proj", q, size, bits),
        k_proj=weights.requantized(f"{attn}k_proj", kv, size, bits),
        v_proj=weights.requantized(f"{attn}v_proj", kv, size, bits),
        o_proj=weights.requantized(f"{attn}o_proj", size, q, bits),
        q_norm=weights.array(f"{attn}q_norm.weight", (c.head_dim,)),
        k_norm=weights.array(f"{attn}k_norm.weight", (c.head_dim,)),
        gate=weights.requantized(f"{mlp}gate_proj", c.intermediate_size, size, bits),
        up=weights.requantized(f"{mlp}up_proj", c.intermediate_size, size, bits),
        down=weights.requantized(f"{mlp}down_proj", size, c.intermediate_size, bits),
    )
