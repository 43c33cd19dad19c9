"""How many weights a target has, and how many of them one token uses. Arithmetic on its configuration."""

from __future__ import annotations

from mlx_dspark.checkpoint.config import TargetConfig


def count_parameters(config: TargetConfig) -> tuple[int, int]:
    """(all, active for one token); of the embedding a token uses its own row, of the head everything."""
    all_of, active_of = zip(*(_layer(config, letter) for letter in config.pattern), strict=True)
    table = config.vocab_size * config.hidden_size
    norms = (config.layers + 1) * config.hidden_size
    embedding = (0, 0) if config.tied_head else (table, config.hidden_size)
    return sum(all_of) + table + norms + embedding[0], sum(active_of) + table + norms + embedding[1]


def _layer(config: TargetConfig, letter: str) -> tuple[int, int]:
    layer = {"M": _mamba, "*": _attention, "E": _experts, "-": _mlp}[letter]
    return layer(config)


def _mamba(c: TargetConfig) -> tuple[int, int]:
    projections = c.hidden_size * (c.inner_size + c.conv_size + c.mamba_heads) + c.inner_size * c.hidden_size
    biases = c.inner_size + c.conv_size + c.mamba_heads + c.hidden_size if c.projection_bias else 0
    conv = c.conv_size * (c.conv_kernel + c.conv_bias)
    count = projections + biases + conv + 3 * c.mamba_heads + c.inner_size
    return count, count


def _attention(c: TargetConfig) -> tuple[int, int]:
    queries, keys = c.heads * c.head_dim, c.kv_heads * c.head_dim
    count = c.hidden_size * (queries + 2 * keys) + queries * c.hidden_size
    count += queries + 2 * keys + c.hidden_size if c.attention_bias else 0
    return count, count


def _experts(c: TargetConfig) -> tuple[int, int]:
    router = c.experts * c.hidden_size + c.experts
    shared = 2 * c.hidden_size * c.shared_size
    width = c.latent_size or c.hidden_size
    latent = 2 * c.hidden_size * c.latent_size if c.latent_size else 0
    one = 2 * width * c.expert_size
    rest = router + shared + latent
    return rest + c.experts * one, rest + c.experts_per_token * one


def _mlp(c: TargetConfig) -> tuple[int, int]:
    count = 2 * c.hidden_size * c.mlp_size + (c.mlp_size + c.hidden_size if c.mlp_bias else 0)
    return count, count
