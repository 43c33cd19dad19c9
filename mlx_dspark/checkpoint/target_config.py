"""nemotron_h's config.json -> TargetConfig (semantics: NVIDIA Nemotron-H, Mamba-2 + attention + experts)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mlx_dspark.checkpoint.config import (
    BLOCK_KINDS,
    Keys,
    TargetConfig,
    is_drafter,
    read_json,
    read_quantization,
    refuse_foreign,
    token_ids,
)
from mlx_dspark.errors import ConfigError

TARGET_FAMILIES = ("nemotron_h",)
SAMPLING_KEYS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def read_target_config(folder: Path) -> TargetConfig:
    """The target's configuration with eos ids and sampling defaults of generation_config.json merged in."""
    path = folder / "config.json"
    values = read_json(path)
    if is_drafter(values):
        raise ConfigError(
            f"{folder} is a drafter, not a target; pass it as --drafter and a nemotron_h target as --model"
        )
    family = values.get("model_type")
    if family not in TARGET_FAMILIES:
        raise ConfigError(f"{path}: model_type is {family!r}; this version runs {', '.join(TARGET_FAMILIES)} targets")
    keys = Keys(path, values)
    refuse_foreign(keys)
    eos, sampling = _generation_defaults(folder)
    return TargetConfig(
        pattern=_pattern(keys),
        **_sizes(keys),
        **_experts(keys),
        **_details(keys),
        eos_ids=token_ids(path, values.get("eos_token_id")) | eos,
        sampling=sampling,
        quantization=read_quantization(keys),
    )


def _pattern(keys: Keys) -> str:
    """One letter a layer from `hybrid_override_pattern`, `layers_block_type` or `layer_types`, which must agree."""
    spelled: list[tuple[str, str]] = []
    raw = keys.get("hybrid_override_pattern")
    if raw is not None:
        letters = "".join(raw) if isinstance(raw, list) else str(raw)
        spelled.append(("hybrid_override_pattern", letters))
    for key in ("layers_block_type", "layer_types"):
        names = keys.get(key)
        if names is None:
            continue
        unknown = sorted({str(n) for n in names if n not in BLOCK_KINDS}) if isinstance(names, list) else [str(names)]
        if unknown:
            raise keys.bad(key, f"has {', '.join(unknown)}; known layer kinds are {', '.join(BLOCK_KINDS)}")
        spelled.append((key, "".join(BLOCK_KINDS[n] for n in names)))
    if not spelled:
        raise keys.bad("layers_block_type", "is missing (and hybrid_override_pattern too)")
    first, pattern = spelled[0]
    for key, other in spelled[1:]:
        if other != pattern:
            raise keys.bad(key, f"says {other} but {first} says {pattern}; they must agree")
    if not pattern or set(pattern) - set("M*E-"):
        raise keys.bad(first, f"is {pattern!r}, but it must consist of M, *, E and -")
    declared = keys.get("num_hidden_layers")
    if declared is not None and declared != len(pattern):
        raise keys.bad("num_hidden_layers", f"is {declared}, but {first} has {len(pattern)} layers")
    return pattern


def _sizes(keys: Keys) -> dict[str, Any]:
    hidden, heads = keys.count("hidden_size"), keys.count("num_attention_heads")
    kv_heads = keys.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise keys.bad("num_key_value_heads", f"is {kv_heads}, which does not divide num_attention_heads {heads}")
    mamba_heads, groups = keys.count("mamba_num_heads"), keys.count("n_groups")
    if mamba_heads % groups:
        raise keys.bad("n_groups", f"is {groups}, which does not divide mamba_num_heads {mamba_heads}")
    return {
        "vocab_size": keys.count("vocab_size"),
        "hidden_size": hidden,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": keys.count("head_dim", hidden // heads),
        "mamba_heads": mamba_heads,
        "mamba_head_dim": keys.count("mamba_head_dim"),
        "state_size": keys.count("ssm_state_size"),
        "groups": groups,
        "conv_kernel": keys.count("conv_kernel", low=2),
        "max_positions": keys.count("max_position_embeddings"),
    }


def _experts(keys: Keys) -> dict[str, Any]:
    experts = keys.count("n_routed_experts", 0, low=0)
    chosen = keys.count("num_experts_per_tok", 0, low=0)
    groups, top_groups = keys.count("n_group", 1), keys.count("topk_group", 1)
    if experts and not 1 <= chosen <= experts:
        raise keys.bad("num_experts_per_tok", f"is {chosen}, but the model has {experts} experts")
    if experts % groups or top_groups > groups:
        raise keys.bad("n_group", f"is {groups} with topk_group {top_groups}, which does not fit {experts} experts")
    if keys.get("mlp_hidden_act", "relu2") != "relu2":
        raise keys.bad("mlp_hidden_act", f"is {keys.get('mlp_hidden_act')!r}; only relu2 is defined for this family")
    size = keys.count("intermediate_size", 1)
    return {
        "mlp_size": size,
        "experts": experts,
        "experts_per_token": chosen,
        "expert_size": keys.count("moe_intermediate_size", size),
        "shared_size": keys.count("n_shared_experts", 0, low=0)
        * keys.count("moe_shared_expert_intermediate_size", 0, low=0),
        "latent_size": keys.count("moe_latent_size") if keys.get("moe_latent_size") else None,
        "expert_groups": groups,
        "top_groups": top_groups,
        "normalize_weights": keys.switch("norm_topk_prob", True),
        "routed_scale": keys.number("routed_scaling_factor", 1.0),
    }


def _details(keys: Keys) -> dict[str, Any]:
    return {
        "norm_eps": keys.number("layer_norm_epsilon", keys.number("norm_eps", 1e-5)),
        "attention_bias": keys.switch("attention_bias", False),
        "projection_bias": keys.switch("mamba_proj_bias", False),
        "conv_bias": keys.switch("use_conv_bias", True),
        "mlp_bias": keys.switch("mlp_bias", False),
        "dt_limit": _dt_limit(keys),
        "tied_head": keys.switch("tie_word_embeddings", False),
    }


def _dt_limit(keys: Keys) -> tuple[float, float]:
    """`time_step_limit`, the only clamp on dt; time_step_min and _max are initialisation ranges, not limits."""
    raw = keys.get("time_step_limit", [0.0, float("inf")])
    if not isinstance(raw, (list, tuple)) or len(raw) != 2:
        raise keys.bad("time_step_limit", f"is {raw!r}, but it must be a pair of numbers")
    pair: list[Any] = [v.get("__float__") if isinstance(v, dict) else v for v in raw]
    try:
        low, high = (float(v) for v in pair)
    except (TypeError, ValueError):
        raise keys.bad("time_step_limit", f"is {raw!r}, but it must be a pair of numbers") from None
    if not low <= high:
        raise keys.bad("time_step_limit", f"is {raw!r}, but its first number must not exceed its second")
    return low, high


def _generation_defaults(folder: Path) -> tuple[frozenset[int], dict[str, Any]]:
    path = folder / "generation_config.json"
    if not path.is_file():
        return frozenset(), {}
    values = read_json(path)
    sampling = {k: values[k] for k in SAMPLING_KEYS if values.get(k) is not None}
    if values.get("do_sample") is False:
        sampling = {}
    elif values.get("do_sample") is True:
        sampling.setdefault("temperature", 1.0)
    return token_ids(path, values.get("eos_token_id")), sampling
