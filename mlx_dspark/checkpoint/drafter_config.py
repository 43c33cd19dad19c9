"""A drafter's config.json -> DrafterConfig, NVIDIA's `Qwen3DSparkModel` packaging; others are refused by name.

A wrong reading of these keys is silent (text stays right, acceptance halves), so every key that changes the
maths is either understood or refused, and spellings that contradict each other are refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mlx_dspark.checkpoint.config import (
    DRAFTER_ARCHITECTURE,
    DrafterConfig,
    Keys,
    read_json,
    read_quantization,
)
from mlx_dspark.errors import ConfigError


def read_drafter_config(folder: Path) -> DrafterConfig:
    path = folder / "config.json"
    values = read_json(path)
    names = values.get("architectures")
    if values.get("model_type") == "nemotron_h":
        raise ConfigError(
            f"{folder} is a target, not a drafter; pass it as --model and its DSpark drafter as --drafter"
        )
    if names != [DRAFTER_ARCHITECTURE]:
        raise ConfigError(f"{path}: architectures is {names!r}; this version reads drafters of {DRAFTER_ARCHITECTURE}")
    keys = Keys(path, values)
    flash = keys.nested("dflash_config")
    _refuse_other_maths(keys, flash)
    heads, kv_heads = keys.count("num_attention_heads"), keys.count("num_key_value_heads")
    if heads % kv_heads:
        raise keys.bad("num_key_value_heads", f"is {kv_heads}, which does not divide num_attention_heads {heads}")
    vocab, mask = keys.count("vocab_size"), keys.same("mask_token_id", (flash, "mask_token_id"), (keys, "pard_token"))
    if not isinstance(mask, int) or isinstance(mask, bool) or not 0 <= mask < vocab:
        raise keys.bad("mask_token_id", f"is {mask!r}, but it must be a token id below vocab_size {vocab}")
    return DrafterConfig(
        taps=_taps(keys, flash),
        vocab_size=vocab,
        hidden_size=keys.count("hidden_size"),
        intermediate_size=keys.count("intermediate_size"),
        layers=keys.count("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=keys.count("head_dim"),
        norm_eps=keys.number("rms_norm_eps", 1e-6),
        rope_theta=_rope_theta(keys),
        window=_window(keys, flash),
        block_size=keys.count("block_size", low=2),
        mask_token=mask,
        markov_rank=_positive(keys, "markov_rank", keys.same("markov_rank", (keys, "dspark_markov_rank"))),
        confidence_head=keys.switch("enable_confidence_head", False),
        quantization=read_quantization(keys),
    )


def _positive(keys: Keys, key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise keys.bad(key, f"is {value!r}, but it must be a whole number of at least 1")
    return value


def _refuse_other_maths(keys: Keys, flash: Keys) -> None:
    if keys.same("sample_from_anchor", (flash, "sample_from_anchor")):
        raise keys.bad("sample_from_anchor", "is true; this version reads heads whose slot 0 predicts nothing")
    anchored = keys.get("dspark_bonus_anchor")
    if anchored is False:
        raise keys.bad("dspark_bonus_anchor", "is false, which contradicts sample_from_anchor false")
    only = {
        "draft_vocab_size": None,
        "markov_head_type": "vanilla",
        "dspark_fixup_head_type": "markov",
        "hidden_act": "silu",
        "has_lm_head": False,
        "has_embed_tokens": True,
        "attention_bias": False,
        "dflash_query_causal": True,
        "tie_word_embeddings": False,
    }
    for key, value in only.items():
        found = keys.get(key, value)
        if found != value:
            raise keys.bad(key, f"is {found!r}; this version reads heads with {value!r}")
    if not keys.same("attention_sink_bias", (flash, "attention_sink_bias")):
        raise keys.bad("attention_sink_bias", "is not true; this version reads heads with attention sinks")
    if flash.get("causal", True) is not True:
        raise flash.bad("causal", "is not true; this version reads heads that are causal inside the block")
    kinds = keys.get("layer_types")
    if kinds is not None and set(kinds) != {"sliding_attention"}:
        raise keys.bad("layer_types", f"has {sorted(set(map(str, kinds)))}; this version reads sliding_attention only")


def _taps(keys: Keys, flash: Keys) -> tuple[int, ...]:
    raw = keys.same("target_layer_ids", (flash, "target_layer_ids"))
    shifted = keys.get("eagle_aux_hidden_state_layer_ids")
    if raw is None:
        raise keys.bad("target_layer_ids", "is missing, so which target layers to tap is unknown")
    if not isinstance(raw, list) or not raw or not all(isinstance(i, int) and not isinstance(i, bool) for i in raw):
        raise keys.bad("target_layer_ids", f"is {raw!r}, but it must be a list of layer numbers")
    if min(raw) < 0 or sorted(set(raw)) != raw:
        raise keys.bad("target_layer_ids", f"is {raw!r}, but layer numbers must ascend from 0 without repeats")
    if shifted is not None and list(shifted) != [i + 1 for i in raw]:
        raise keys.bad(
            "eagle_aux_hidden_state_layer_ids", f"is {shifted!r}, but target_layer_ids {raw!r} need one more each"
        )
    declared = keys.get("num_aux_layers")
    if declared is not None and declared != len(raw):
        raise keys.bad("num_aux_layers", f"is {declared}, but target_layer_ids has {len(raw)} entries")
    return tuple(raw)


def _window(keys: Keys, flash: Keys) -> int:
    if keys.get("use_sliding_window", True) is False or flash.get("use_swa", True) is False:
        raise keys.bad("use_sliding_window", "is false; this version reads heads with a sliding window")
    return _positive(keys, "sliding_window", keys.same("sliding_window", (flash, "swa_window_size")))


def _rope_theta(keys: Keys) -> float:
    """theta, from `rope_parameters` or the top level; any scaling is refused."""
    rope = keys.nested("rope_parameters")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default" or keys.get("rope_scaling"):
        raise keys.bad("rope_parameters", f"asks for {kind!r} scaling; this version reads plain rope")
    theta = keys.same("rope_theta", (rope, "rope_theta"))
    if theta is None:
        raise keys.bad("rope_theta", "is missing")
    if isinstance(theta, bool) or not isinstance(theta, (int, float)) or theta <= 0:
        raise keys.bad("rope_theta", f"is {theta!r}, but it must be a positive number")
    return float(theta)
