"""nemotron_h's four mixers over packed rows. Each draws its own weights and advances its own kind of cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from mlx_dspark.checkpoint.config import TargetConfig
from mlx_dspark.checkpoint.weights import Weights
from mlx_dspark.models.state import KVCache, LayerCache, MambaCache
from mlx_dspark.ops.attention import AttentionForm
from mlx_dspark.ops.kernels import ExpertMlp, Kernels, Matrix
from mlx_dspark.ops.linear import Linear
from mlx_dspark.ops.mamba import MambaOp, MambaWeights, Replay
from mlx_dspark.ops.moe import Routing
from mlx_dspark.ops.rows import RowPlan

Traces = list[Replay | None]


@dataclass(frozen=True)
class Segment:
    """Rows [begin, end) of a packed batch belong to State row `row`."""

    row: int
    begin: int
    end: int


def _packed(parts: list[mx.array]) -> mx.array:
    return parts[0] if len(parts) == 1 else mx.concatenate(parts)


@dataclass(frozen=True, eq=False)
class Mamba:
    """Mamba-2: in_proj -> z | x B C | dt, causal conv, state walk, gated group norm, out_proj."""

    in_proj: Linear
    out_proj: Linear
    core: MambaOp

    @classmethod
    def load(cls, c: TargetConfig, weights: Weights, at: str) -> Mamba:
        name, by_head = f"{at}conv1d.weight", (c.groups, c.mamba_heads // c.groups)
        stored = weights.tensors.get(name)
        swapped = stored is not None and stored.shape == (c.conv_size, c.conv_kernel, 1)
        shape = (c.conv_size, c.conv_kernel, 1) if swapped else (c.conv_size, 1, c.conv_kernel)
        heads = (c.mamba_heads,)
        own = MambaWeights(
            conv=mx.contiguous(weights.array(name, shape).reshape(c.conv_size, c.conv_kernel).T),
            conv_bias=weights.array(f"{at}conv1d.bias", (c.conv_size,)) if c.conv_bias else None,
            a=-mx.exp(weights.array(f"{at}A_log", heads, mx.float32)).reshape(by_head),
            d=weights.array(f"{at}D", heads, mx.float32).reshape(by_head),
            dt_bias=weights.array(f"{at}dt_bias", heads, mx.float32),
            norm=weights.array(f"{at}norm.weight", (c.inner_size,)),
            head_dim=c.mamba_head_dim,
            state_size=c.state_size,
            eps=c.norm_eps,
            dt_limit=c.dt_limit,
        )
        width = c.inner_size + c.conv_size + c.mamba_heads
        return cls(
            weights.linear(f"{at}in_proj", width, c.hidden_size, bias=c.projection_bias),
            weights.linear(f"{at}out_proj", c.hidden_size, c.inner_size, bias=c.projection_bias),
            weights.kernels.mamba(own),
        )

    def __call__(
        self, x: mx.array, segments: Sequence[Segment], caches: Sequence[LayerCache], plan: RowPlan
    ) -> tuple[mx.array, Traces]:
        projected = plan.linear(self.in_proj, x)
        parts: list[mx.array] = []
        traces: Traces = []
        for segment, cache in zip(segments, caches, strict=True):
            assert isinstance(cache, MambaCache)
            block = self.core(projected[segment.begin : segment.end], cache.window, cache.ssm)
            cache.window, cache.ssm = block.window, block.ssm
            parts.append(block.y)
            traces.append(block.replay)
        return plan.linear(self.out_proj, _packed(parts)), traces


@dataclass(frozen=True, eq=False)
class Attention:
    """Grouped-query attention without positions (NoPE), causal, no window."""

    config: TargetConfig
    kernels: Kernels
    form: AttentionForm
    q_proj: Linear
    k_proj: Linear
    v_proj: Linear
    o_proj: Linear

    @classmethod
    def load(cls, c: TargetConfig, weights: Weights, at: str) -> Attention:
        q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
        bias = c.attention_bias
        return cls(
            c,
            weights.kernels,
            AttentionForm(c.head_dim**-0.5),
            weights.linear(f"{at}q_proj", q, c.hidden_size, bias=bias),
            weights.linear(f"{at}k_proj", kv, c.hidden_size, bias=bias),
            weights.linear(f"{at}v_proj", kv, c.hidden_size, bias=bias),
            weights.linear(f"{at}o_proj", c.hidden_size, q, bias=bias),
        )

    def __call__(
        self, x: mx.array, segments: Sequence[Segment], caches: Sequence[LayerCache], plan: RowPlan
    ) -> tuple[mx.array, Traces]:
        c = self.config
        q = plan.linear(self.q_proj, x).reshape(-1, c.heads, c.head_dim)
        k = plan.linear(self.k_proj, x).reshape(-1, c.kv_heads, c.head_dim)
        v = plan.linear(self.v_proj, x).reshape(-1, c.kv_heads, c.head_dim)
        parts = []
        for segment, cache in zip(segments, caches, strict=True):
            assert isinstance(cache, KVCache)
            rows = slice(segment.begin, segment.end)
            cache.append(k[rows].transpose(1, 0, 2)[None], v[rows].transpose(1, 0, 2)[None])
            part = self.kernels.attend(q[rows], cache.keys, cache.values, cache.length, self.form, plan.attention)
            parts.append(part)
        y = _packed(parts).reshape(x.shape[0], c.heads * c.head_dim)
        return plan.linear(self.o_proj, y), [None] * len(segments)


@dataclass(frozen=True, eq=False)
class Mlp:
    """down(relu(up x)^2)."""

    apply: Linear

    @classmethod
    def load(cls, c: TargetConfig, weights: Weights, at: str) -> Mlp:
        return cls.of_size(c, weights, at, c.mlp_size)

    @classmethod
    def of_size(cls, c: TargetConfig, weights: Weights, at: str, size: int) -> Mlp:
        up = weights.linear(f"{at}up_proj", size, c.hidden_size, bias=c.mlp_bias)
        down = weights.linear(f"{at}down_proj", c.hidden_size, size, bias=c.mlp_bias)
        return cls(weights.kernels.mlp(up, down))

    def __call__(
        self, x: mx.array, segments: Sequence[Segment], caches: Sequence[LayerCache], plan: RowPlan
    ) -> tuple[mx.array, Traces]:
        return plan.linear(self.apply, x), [None] * len(segments)


@dataclass(frozen=True, eq=False)
class Moe:
    """Routed experts plus a shared one; with a latent size, the experts work between two shared projections."""

    kernels: Kernels
    routing: Routing
    gate: mx.array  # [E, H] float32: near-ties between experts are where bf16 would flip them
    correction: mx.array
    experts: ExpertMlp
    shared: Mlp | None
    to_latent: Linear | None
    from_latent: Linear | None

    @classmethod
    def load(cls, c: TargetConfig, weights: Weights, at: str) -> Moe:
        size = c.latent_size or c.hidden_size

        def stack(stacked: str, name: str, shape: tuple[int, int]) -> Matrix:
            return weights.stack(f"{at}switch_mlp.{stacked}", lambda e: f"{at}experts.{e}.{name}", c.experts, shape)

        latent = c.latent_size is not None
        up, down = stack("fc1", "up_proj", (c.expert_size, size)), stack("fc2", "down_proj", (size, c.expert_size))
        return cls(
            weights.kernels,
            Routing(c.experts_per_token, c.routed_scale, c.normalize_weights, c.expert_groups, c.top_groups),
            weights.array(f"{at}gate.weight", (c.experts, c.hidden_size), mx.float32),
            weights.array(f"{at}gate.e_score_correction_bias", (c.experts,), mx.float32),
            weights.kernels.experts(up, down),
            Mlp.of_size(c, weights, f"{at}shared_experts.", c.shared_size) if c.shared_size else None,
            weights.linear(f"{at}fc1_latent_proj", size, c.hidden_size) if latent else None,
            weights.linear(f"{at}fc2_latent_proj", c.hidden_size, size) if latent else None,
        )

    def apply(self, x: mx.array) -> mx.array:
        ids, weights = self.kernels.route(x, self.gate, self.correction, self.routing)
        inner = x if self.to_latent is None else self.to_latent(x)
        y = self.experts(inner, ids, weights)
        y = y if self.from_latent is None else self.from_latent(y)
        return y if self.shared is None else y + self.shared.apply(x)

    def __call__(
        self, x: mx.array, segments: Sequence[Segment], caches: Sequence[LayerCache], plan: RowPlan
    ) -> tuple[mx.array, Traces]:
        return plan.experts(self.apply, x), [None] * len(segments)
