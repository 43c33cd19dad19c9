"""nemotron_h's four mixers over packed rows. Each draws its own weights and advances its own kind of cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from mlx_dspark.checkpoint.config import TargetConfig
from mlx_dspark.checkpoint.weights import Weights
from mlx_dspark.models.state import KVCache, LayerCache, MambaCache, MambaTrace
from mlx_dspark.ops.attention import attend
from mlx_dspark.ops.conv import conv_silu
from mlx_dspark.ops.linear import Linear
from mlx_dspark.ops.moe import Experts, Routing, relu2, route
from mlx_dspark.ops.norm import gated_group_norm
from mlx_dspark.ops.rows import RowPlan
from mlx_dspark.ops.ssm import scan_inputs, softplus, walk

Traces = list[MambaTrace | None]


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

    config: TargetConfig
    in_proj: Linear
    out_proj: Linear
    conv_weight: mx.array  # [K, C]
    conv_bias: mx.array | None
    a: mx.array  # [G, R] float32, negative
    d: mx.array  # [G, R, 1] float32
    dt_bias: mx.array  # [H] float32
    norm: mx.array

    @classmethod
    def load(cls, c: TargetConfig, weights: Weights, at: str) -> Mamba:
        name, by_head = f"{at}conv1d.weight", (c.groups, c.mamba_heads // c.groups)
        stored = weights.tensors.get(name)
        swapped = stored is not None and stored.shape == (c.conv_size, c.conv_kernel, 1)
        shape = (c.conv_size, c.conv_kernel, 1) if swapped else (c.conv_size, 1, c.conv_kernel)
        heads = (c.mamba_heads,)
        return cls(
            c,
            weights.linear(
                f"{at}in_proj", c.inner_size + c.conv_size + c.mamba_heads, c.hidden_size, bias=c.projection_bias
            ),
            weights.linear(f"{at}out_proj", c.hidden_size, c.inner_size, bias=c.projection_bias),
            mx.contiguous(weights.array(name, shape).reshape(c.conv_size, c.conv_kernel).T),
            weights.array(f"{at}conv1d.bias", (c.conv_size,)) if c.conv_bias else None,
            -mx.exp(weights.array(f"{at}A_log", heads, mx.float32)).reshape(by_head),
            weights.array(f"{at}D", heads, mx.float32).reshape(*by_head, 1),
            weights.array(f"{at}dt_bias", heads, mx.float32),
            weights.array(f"{at}norm.weight", (c.inner_size,)),
        )

    def __call__(
        self, x: mx.array, segments: Sequence[Segment], caches: Sequence[LayerCache], plan: RowPlan
    ) -> tuple[mx.array, Traces]:
        c = self.config
        z, conv_in, dt = mx.split(plan.linear(self.in_proj, x), [c.inner_size, c.inner_size + c.conv_size], axis=-1)
        parts: list[mx.array] = []
        traces: Traces = []
        for segment, cache in zip(segments, caches, strict=True):
            assert isinstance(cache, MambaCache)
            rows = slice(segment.begin, segment.end)
            y, trace = self._scan(conv_in[rows], dt[rows], cache)
            parts.append(y)
            traces.append(trace)
        y = gated_group_norm(_packed(parts).astype(x.dtype), z, self.norm, c.groups, c.norm_eps)
        return plan.linear(self.out_proj, y), traces

    def _scan(self, conv_in: mx.array, dt_raw: mx.array, cache: MambaCache) -> tuple[mx.array, MambaTrace]:
        """Read-outs [T, inner] of one sequence; the cache moves past its T tokens."""
        c, count = self.config, conv_in.shape[0]
        heads = c.mamba_heads // c.groups
        inputs = mx.concatenate([cache.window, conv_in])
        u = conv_silu(inputs, self.conv_weight, self.conv_bias).astype(mx.float32)
        span = c.groups * c.state_size
        x, b, read = mx.split(u, [c.inner_size, c.inner_size + span], axis=-1)
        x = x.reshape(count, c.groups, heads, c.mamba_head_dim)
        dt = softplus(dt_raw.astype(mx.float32) + self.dt_bias)
        if c.dt_limit != (0.0, float("inf")):
            dt = mx.clip(dt, *c.dt_limit)
        shape = (count, c.groups, c.state_size)
        scan = scan_inputs(x, dt.reshape(count, c.groups, heads), self.a, b.reshape(shape))
        trace = MambaTrace(cache.ssm, inputs, scan)
        y, cache.ssm = walk(cache.ssm, scan, read.reshape(shape))
        cache.window = inputs[count:]
        return (y + self.d * x).reshape(count, c.inner_size), trace


@dataclass(frozen=True, eq=False)
class Attention:
    """Grouped-query attention without positions (NoPE), causal, no window."""

    config: TargetConfig
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
            keys, values = cache.append(k[rows].transpose(1, 0, 2)[None], v[rows].transpose(1, 0, 2)[None])
            parts.append(attend(q[rows], keys, values, c.head_dim**-0.5, plan.attention))
        y = _packed(parts).reshape(x.shape[0], c.heads * c.head_dim)
        return plan.linear(self.o_proj, y), [None] * len(segments)


@dataclass(frozen=True, eq=False)
class Mlp:
    """down(relu(up x)^2)."""

    up: Linear
    down: Linear

    @classmethod
    def load(cls, c: TargetConfig, weights: Weights, at: str) -> Mlp:
        return cls.of_size(c, weights, at, c.mlp_size)

    @classmethod
    def of_size(cls, c: TargetConfig, weights: Weights, at: str, size: int) -> Mlp:
        return cls(
            weights.linear(f"{at}up_proj", size, c.hidden_size, bias=c.mlp_bias),
            weights.linear(f"{at}down_proj", c.hidden_size, size, bias=c.mlp_bias),
        )

    def apply(self, x: mx.array) -> mx.array:
        return self.down(relu2(self.up(x)))

    def __call__(
        self, x: mx.array, segments: Sequence[Segment], caches: Sequence[LayerCache], plan: RowPlan
    ) -> tuple[mx.array, Traces]:
        return plan.linear(self.apply, x), [None] * len(segments)


@dataclass(frozen=True, eq=False)
class Moe:
    """Routed experts plus a shared one; with a latent size, the experts work between two shared projections."""

    routing: Routing
    gate: mx.array  # [E, H] float32: near-ties between experts are where bf16 would flip them
    correction: mx.array
    up: Experts
    down: Experts
    shared: Mlp | None
    to_latent: Linear | None
    from_latent: Linear | None

    @classmethod
    def load(cls, c: TargetConfig, weights: Weights, at: str) -> Moe:
        size = c.latent_size or c.hidden_size

        def experts(stacked: str, name: str, shape: tuple[int, int]) -> Experts:
            return weights.experts(f"{at}switch_mlp.{stacked}", lambda e: f"{at}experts.{e}.{name}", c.experts, shape)

        latent = c.latent_size is not None
        return cls(
            Routing(c.experts_per_token, c.routed_scale, c.normalize_weights, c.expert_groups, c.top_groups),
            weights.array(f"{at}gate.weight", (c.experts, c.hidden_size), mx.float32),
            weights.array(f"{at}gate.e_score_correction_bias", (c.experts,), mx.float32),
            experts("fc1", "up_proj", (c.expert_size, size)),
            experts("fc2", "down_proj", (size, c.expert_size)),
            Mlp.of_size(c, weights, f"{at}shared_experts.", c.shared_size) if c.shared_size else None,
            weights.linear(f"{at}fc1_latent_proj", size, c.hidden_size) if latent else None,
            weights.linear(f"{at}fc2_latent_proj", c.hidden_size, size) if latent else None,
        )

    def apply(self, x: mx.array) -> mx.array:
        ids, weights = route(x, self.gate, self.correction, self.routing)
        inner = x if self.to_latent is None else self.to_latent(x)
        y = self.down(relu2(self.up(inner[:, None, :], ids)), ids)
        y = (y * weights[..., None]).sum(axis=1).astype(x.dtype)
        y = y if self.from_latent is None else self.from_latent(y)
        return y if self.shared is None else y + self.shared.apply(x)

    def __call__(
        self, x: mx.array, segments: Sequence[Segment], caches: Sequence[LayerCache], plan: RowPlan
    ) -> tuple[mx.array, Traces]:
        return plan.experts(self.apply, x), [None] * len(segments)
