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
from mlx_dspark.ops.draft import DraftForm, DraftLayer, DraftStack, Span
from mlx_dspark.ops.kernels import Kernels
from mlx_dspark.ops.linear import Embedding, Linear
from mlx_dspark.ops.markov import MarkovWalk

SLACK = 256


@dataclass(eq=False)
class DSparkState:
    """One sequence's context rows: `context` [layers, 2 (keys, values), Hkv, capacity, D], of which [begin, end) are in
    the window; `position` is that of the next row."""

    context: mx.array
    begin: int = 0
    end: int = 0
    position: int = 0

    @property
    def rows(self) -> int:
        return self.end - self.begin

    @property
    def nbytes(self) -> int:
        return self.context.nbytes

    def make_room(self, count: int, limit: int) -> int:
        """Where `count` more rows go; of the old ones those that leave `limit` in all stay in the window.

        Moves them to the front of a fresh buffer when this one is full.
        """
        self.begin = max(self.begin, self.end + count - limit)
        if self.end + count > self.context.shape[3]:
            kept = self.context[:, :, :, self.begin : self.end]
            blank = mx.zeros((*kept.shape[:3], count + SLACK, kept.shape[4]), kept.dtype)
            self.context = mx.concatenate([kept, blank], axis=3)
            self.begin, self.end = 0, self.rows
        at, self.end = self.end, self.end + count
        return at

    def copy(self) -> DSparkState:
        """Of the rows in the window alone, evaluated."""
        kept = mx.contiguous(self.context[:, :, :, self.begin : self.end])
        mx.eval(kept)
        return DSparkState(kept, 0, self.rows, self.position)


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
    stack: DraftStack
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
        form = DraftForm(c.heads, c.kv_heads, c.head_dim, c.window, c.norm_eps, c.rope_theta)
        stack = weights.kernels.draft(form, [_load_layer(c, weights, f"layers.{i}.", bits) for i in range(c.layers)])
        markov_out = weights.requantized("markov_head.markov_w2", c.vocab_size, c.markov_rank, bits)
        hidden_norm, norm = weights.array("hidden_norm.weight", (size,)), weights.array("norm.weight", (size,))
        if c.confidence_head:
            weights.ignore("confidence_head.")
        weights.finish()
        markov = weights.kernels.markov(markov_in, markov_out, weights.dtype)
        return cls(c, weights.dtype, weights.kernels, embed, fc, hidden_norm, norm, stack, markov, head)

    def new_state(self) -> DSparkState:
        c = self.config
        return DSparkState(mx.zeros((c.layers, 2, c.kv_heads, 0, c.head_dim), self.dtype))

    def copy_state(self, state: DSparkState) -> DSparkState:
        return state.copy()

    def state_nbytes(self, state: DSparkState) -> int:
        return state.nbytes

    def observe(self, state: DSparkState, tokens: Sequence[int], position: int, taps: Mapping[int, mx.array]) -> None:
        """Turn tapped rows into context keys and values; rows that do not follow the last ones start afresh."""
        end, limit = position + len(tokens), self.config.window - 1
        begin = end - (taps[self.config.taps[0]].shape[0] if taps else 0)
        assert begin >= position
        if begin != state.position:
            state.begin = state.end
        state.position = end
        skipped = max(0, end - begin - limit)
        if begin + skipped == end:
            return
        fused = mx.concatenate([taps[layer][skipped:] for layer in self.config.taps], axis=-1).astype(self.dtype)
        rows = self.kernels.rms_norm(self.fc(fused), self.hidden_norm, self.config.norm_eps)
        at = state.make_room(rows.shape[0], limit)
        state.context = self.stack.context(rows, state.context, at, begin + skipped)

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
            rows = slice(begin, begin + width)
            spans.append(Span(rows, r.position, r.state.context, r.state.begin, r.state.end))
            ids += [r.anchor] + [self.config.mask_token] * (width - 1)
            begin += width
        x = self.stack.block(self.embed(mx.array(ids, mx.int32)).astype(self.dtype), spans)
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
    return DraftLayer(
        input_norm=weights.array(f"{at}input_layernorm.weight", (size,)),
        q_proj=weights.requantized(f"{attn}q_proj", q, size, bits),
        k_proj=weights.requantized(f"{attn}k_proj", kv, size, bits),
        v_proj=weights.requantized(f"{attn}v_proj", kv, size, bits),
        q_norm=weights.array(f"{attn}q_norm.weight", (c.head_dim,)),
        k_norm=weights.array(f"{attn}k_norm.weight", (c.head_dim,)),
        sinks=weights.array(f"{attn}attention_sink_bias", (c.heads,)),
        o_proj=weights.requantized(f"{attn}o_proj", size, q, bits),
        post_norm=weights.array(f"{at}post_attention_layernorm.weight", (size,)),
        gate=weights.requantized(f"{mlp}gate_proj", c.intermediate_size, size, bits),
        up=weights.requantized(f"{mlp}up_proj", c.intermediate_size, size, bits),
        down=weights.requantized(f"{mlp}down_proj", size, c.intermediate_size, bits),
    )
