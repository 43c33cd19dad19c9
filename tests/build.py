"""Tiny random checkpoints in the real on-disk forms; their output depends on every weight and the recurrent state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

VOCAB, HIDDEN, INNER, CONV = 288, 64, 64, 64 + 2 * 2 * 16
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TARGET = {
    "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "vocab_size": VOCAB, "hidden_size": HIDDEN,
    "intermediate_size": 96, "max_position_embeddings": 4096, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "attention_bias": False, "mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 16,
    "n_groups": 2, "conv_kernel": 4, "use_conv_bias": True, "use_bias": False, "mamba_proj_bias": False,
    "mlp_bias": False, "layer_norm_epsilon": 1e-5, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "n_shared_experts": 1, "moe_intermediate_size": 64, "moe_shared_expert_intermediate_size": 64,
    "routed_scaling_factor": 2.5, "norm_topk_prob": True, "n_group": 1, "topk_group": 1, "tie_word_embeddings": False,
    "eos_token_id": 258, "time_step_limit": [0.0, float("inf")],
}  # fmt: skip
DRAFTER = {
    "architectures": ["Qwen3DSparkModel"], "attention_bias": False, "attention_sink_bias": True, "block_size": 8,
    "dflash_config": {"attention_sink_bias": True, "causal": True, "mask_token_id": 3, "sample_from_anchor": False,
                      "swa_window_size": 24, "target_layer_ids": [0, 2, 4], "use_swa": True},
    "dflash_query_causal": True, "draft_vocab_size": None, "dspark_bonus_anchor": True,
    "dspark_fixup_head_type": "markov", "dspark_markov_rank": 16, "eagle_aux_hidden_state_layer_ids": [1, 3, 5],
    "has_embed_tokens": True, "has_lm_head": False, "head_dim": 16, "hidden_act": "silu", "hidden_size": HIDDEN,
    "intermediate_size": 96, "layer_types": ["sliding_attention"] * 2, "markov_head_type": "vanilla",
    "markov_rank": 16, "mask_token_id": 3, "model_type": "qwen3", "num_attention_heads": 4, "num_aux_layers": 3,
    "num_hidden_layers": 2, "num_key_value_heads": 2, "pard_token": 3, "rms_norm_eps": 1e-6, "rope_parameters": None,
    "rope_theta": 10000, "sample_from_anchor": False, "sliding_window": 24, "target_layer_ids": [0, 2, 4],
    "vocab_size": VOCAB,
}  # fmt: skip


def target_arrays(pattern: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Every tensor of a target, float32, none of them trivial."""
    r = np.random.default_rng(seed)

    def lin(out: int, inp: int, gain: float = 1.5) -> np.ndarray:
        return r.normal(0, gain / np.sqrt(inp), (out, inp))

    def vec(size: int) -> np.ndarray:
        return 1 + 0.2 * r.normal(size=size)

    w = {"backbone.embeddings.weight": r.normal(size=(VOCAB, HIDDEN)), "backbone.norm_f.weight": vec(HIDDEN)}
    w["lm_head.weight"] = lin(VOCAB, HIDDEN, 2.5)
    for i, kind in enumerate(pattern):
        p = f"backbone.layers.{i}."
        w[p + "norm.weight"] = vec(HIDDEN)
        m = p + "mixer."
        if kind == "M":
            w[m + "in_proj.weight"], w[m + "out_proj.weight"] = lin(INNER + CONV + 4, HIDDEN), lin(HIDDEN, INNER)
            w[m + "conv1d.weight"] = r.normal(0, 0.6, (CONV, 4, 1))
            w[m + "conv1d.bias"], w[m + "norm.weight"] = r.normal(0, 0.1, CONV), vec(INNER)
            w[m + "A_log"], w[m + "D"] = r.normal(0.5, 0.5, 4), vec(4)
            w[m + "dt_bias"] = r.normal(-2, 1, 4)
        elif kind == "*":
            w[m + "q_proj.weight"], w[m + "o_proj.weight"] = lin(64, HIDDEN, 2), lin(HIDDEN, 64)
            w[m + "k_proj.weight"], w[m + "v_proj.weight"] = lin(32, HIDDEN, 2), lin(32, HIDDEN)
        elif kind == "E":
            w[m + "gate.weight"], w[m + "gate.e_score_correction_bias"] = lin(8, HIDDEN, 2), r.normal(0, 0.2, 8)
            w[m + "switch_mlp.fc1.weight"] = np.stack([lin(64, HIDDEN) for _ in range(8)])
            w[m + "switch_mlp.fc2.weight"] = np.stack([lin(HIDDEN, 64, 0.5) for _ in range(8)])
            w[m + "shared_experts.up_proj.weight"], w[m + "shared_experts.down_proj.weight"] = (
                lin(64, HIDDEN),
                lin(HIDDEN, 64, 0.5),
            )
        else:
            w[m + "up_proj.weight"], w[m + "down_proj.weight"] = lin(96, HIDDEN), lin(HIDDEN, 96, 0.5)
    return {k: v.astype(np.float32) for k, v in w.items()}


def drafter_arrays(seed: int = 1) -> dict[str, np.ndarray]:
    r = np.random.default_rng(seed)

    def lin(out: int, inp: int) -> np.ndarray:
        return r.normal(0, 1 / np.sqrt(inp), (out, inp))

    def vec(size: int, middle: float = 1.0) -> np.ndarray:
        return middle + 0.2 * r.normal(size=size)

    w = {"embed_tokens.weight": r.normal(size=(VOCAB, HIDDEN)), "fc.weight": lin(HIDDEN, 3 * HIDDEN),
         "hidden_norm.weight": vec(HIDDEN), "norm.weight": vec(HIDDEN),
         "markov_head.markov_w1.weight": r.normal(size=(VOCAB, 16)), "markov_head.markov_w2.weight": lin(VOCAB, 16)}  # fmt: skip
    for i in range(2):
        p, a, m = f"layers.{i}.", f"layers.{i}.self_attn.", f"layers.{i}.mlp."
        w[p + "input_layernorm.weight"], w[p + "post_attention_layernorm.weight"] = vec(HIDDEN), vec(HIDDEN)
        w[a + "q_proj.weight"], w[a + "o_proj.weight"] = lin(64, HIDDEN), lin(HIDDEN, 64)
        w[a + "k_proj.weight"], w[a + "v_proj.weight"] = lin(32, HIDDEN), lin(32, HIDDEN)
        w[a + "q_norm.weight"], w[a + "k_norm.weight"] = vec(16, 1.5), vec(16, 1.5)
        w[a + "attention_sink_bias"] = r.normal(1, 1, 4)
        w[m + "gate_proj.weight"], w[m + "up_proj.weight"] = lin(96, HIDDEN), lin(96, HIDDEN)
        w[m + "down_proj.weight"] = lin(HIDDEN, 96)
    return {k: v.astype(np.float32) for k, v in w.items()}


def write_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer: ids 0-255 are the bytes' characters, specials from 256."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(t, special=True) for t in ("<s>", "<|im_start|>", "<|im_end|>", "</s>")])
    inner.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "bos_token": "<s>"}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)


def write_target(
    folder: Path, pattern: str = "M*EM-E*", dtype: mx.Dtype = mx.float32, bits: int = 0, seed: int = 0, **config: Any
) -> Path:
    """A target folder; `bits` quantises every matrix affinely in groups of 64 as mlx-lm does."""
    folder.mkdir(parents=True, exist_ok=True)
    keep = ("A_log", "e_score_correction_bias")
    out: dict[str, mx.array] = {}
    for name, value in target_arrays(pattern, seed).items():
        array = mx.array(value).astype(mx.float32 if name.endswith(keep) else dtype)
        if (
            bits
            and value.ndim >= 2
            and "gate.weight" not in name
            and "conv1d" not in name
            and value.shape[-1] % 64 == 0
        ):
            stem = name.removesuffix(".weight")
            out[name], out[f"{stem}.scales"], out[f"{stem}.biases"] = mx.quantize(array, group_size=64, bits=bits)
        else:
            out[name] = array
    mx.save_safetensors(str(folder / "model.safetensors"), out)
    values = {**TARGET, "hybrid_override_pattern": pattern, **config}
    if bits:
        odd = {
            n.removesuffix(".weight"): False for n in out if n.endswith("down_proj.weight") and out[n].dtype == dtype
        }
        values["quantization"] = {"group_size": 64, "bits": bits, **odd}
    (folder / "config.json").write_text(json.dumps(values))
    write_tokenizer(folder)
    return folder


def write_drafter(folder: Path, dtype: mx.Dtype = mx.bfloat16, **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {k: mx.array(v).astype(dtype) for k, v in drafter_arrays().items()}
    mx.save_safetensors(str(folder / "model.safetensors"), arrays)
    (folder / "config.json").write_text(json.dumps({**DRAFTER, **config}))
    return folder


def edit_config(folder: Path, drop: tuple[str, ...] = (), **values: Any) -> None:
    path = folder / "config.json"
    config = {k: v for k, v in json.loads(path.read_text()).items() if k not in drop}
    path.write_text(json.dumps({**config, **values}))
