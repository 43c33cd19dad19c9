"""Writes a synthetic NVFP4 drafter in ModelOpt's layout, as a source for `convert`.

    python bench/make_nvfp4_source.py DST            # 118 tensors, 1,349,057,504 bytes, random codes
    python bench/make_nvfp4_source.py DST --small    # the embedded drafter, quantised to NVFP4

The full-size file has the names, dtypes and shapes of NVIDIA's published drafter and random valid contents. The small
one is a real drafter that the embedded target works with. numpy only.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mlx_dspark.checkpoint.nvfp4 import E4M3, round_to_bf16
from mlx_dspark.checkpoint.safetensors import TensorSpec, encode_header, read_folder

FULL_BYTES = 1_349_057_504
HIDDEN, VOCAB, MLP, RANK, LAYERS = 2688, 131072, 6144, 512, 6
EXCLUDED = ["*embed_tokens*", "*markov_w1*", "*self_attn*"]
CONFIG = {
    "architectures": ["Qwen3DSparkModel"], "attention_bias": False, "attention_sink_bias": True, "block_size": 8,
    "dflash_config": {"attention_sink_bias": True, "causal": True, "mask_token_id": 990, "sample_from_anchor": False,
                      "swa_window_size": 1024, "target_layer_ids": [1, 11, 21, 31, 41, 51], "use_swa": True},
    "dflash_query_causal": True, "draft_vocab_size": None, "dspark_bonus_anchor": True,
    "dspark_fixup_head_type": "markov",
    "dspark_markov_rank": RANK, "dtype": "bfloat16", "has_embed_tokens": True, "has_lm_head": False, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": HIDDEN, "intermediate_size": MLP,
    "layer_types": ["sliding_attention"] * LAYERS,
    "markov_head_type": "vanilla", "markov_rank": RANK, "mask_token_id": 990, "max_position_embeddings": 1048576,
    "model_type": "qwen3", "num_attention_heads": 32, "num_aux_layers": 6, "num_hidden_layers": LAYERS,
    "num_key_value_heads": 2, "pard_token": 990, "rms_norm_eps": 1e-6, "rope_parameters": None, "rope_theta": 10000,
    "sample_from_anchor": False, "sliding_window": 1024, "target_layer_ids": [1, 11, 21, 31, 41, 51],
    "tie_word_embeddings": False, "vocab_size": VOCAB,
}  # fmt: skip
CARD = """---
license: other
license_name: synthetic
---
# Synthetic NVFP4 source

Made by bench/make_nvfp4_source.py for tests and measurements.
"""


def full_specs() -> list[TensorSpec]:
    """The tensors of the published drafter, as the safetensors library orders them: wide dtypes first, then names."""
    dense = {"embed_tokens": (VOCAB, HIDDEN), "hidden_norm": (HIDDEN,), "norm": (HIDDEN,),
             "markov_head.markov_w1": (VOCAB, RANK)}  # fmt: skip
    packed = {"fc": (HIDDEN, 6 * HIDDEN), "markov_head.markov_w2": (VOCAB, RANK)}
    sinks = []
    for n in range(LAYERS):
        p = f"layers.{n}."
        dense |= {f"{p}input_layernorm": (HIDDEN,), f"{p}post_attention_layernorm": (HIDDEN,)}
        dense |= {f"{p}self_attn.{k}_norm": (128,) for k in "qk"}
        dense |= {f"{p}self_attn.{k}_proj": (4096 if k == "q" else 256, HIDDEN) for k in "qkv"}
        dense[f"{p}self_attn.o_proj"] = (HIDDEN, 4096)
        packed |= {f"{p}mlp.{k}_proj": (MLP, HIDDEN) for k in ("gate", "up")}
        packed[f"{p}mlp.down_proj"] = (HIDDEN, MLP)
        sinks.append(TensorSpec(f"{p}self_attn.attention_sink_bias", "BF16", (32,)))
    specs = [TensorSpec(f"{name}.weight", "BF16", shape) for name, shape in dense.items()] + sinks
    for name, (rows, width) in packed.items():
        specs.append(TensorSpec(f"{name}.weight", "U8", (rows, width // 2)))
        specs.append(TensorSpec(f"{name}.weight_scale", "F8_E4M3", (rows, width // 16)))
        specs.append(TensorSpec(f"{name}.weight_scale_2", "F32", ()))
    order = {"F32": 0, "BF16": 1, "F8_E4M3": 2, "U8": 3}
    return sorted(specs, key=lambda s: (order[s.dtype], s.name))


def random_pieces(spec: TensorSpec, random: np.random.Generator, size: int = 1 << 24) -> Iterator[memoryview]:
    """Valid contents: any code, block scales 2^-9 to 448, tensor scales from bf16 maxima, weights of normal size."""
    if spec.dtype == "F32":
        amax = round_to_bf16(np.array([random.uniform(0.05, 2)], np.float32)).astype(np.uint32) << 16
        yield memoryview((amax.view(np.float32) / np.float32(2688)).tobytes())
        return
    left = spec.nbytes
    while left:
        count = min(size, left)
        if spec.dtype == "BF16":
            sign_and_exponent = (random.integers(0, 2, count // 2, np.uint16) << 15) | np.uint16(0x3C00)
            data = (sign_and_exponent | random.integers(0, 1 << 9, count // 2, np.uint16)).view(np.uint8)
        else:
            low, high = (1, 0x7F) if spec.dtype == "F8_E4M3" else (0, 256)
            data = random.integers(low, high, count, np.uint8)
        yield memoryview(data)
        left -= count


def quantise(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """float32 [out, in] -> packed codes, block-scale codes, tensor scale: nearest code under nearest block scale."""
    rows, width = values.shape
    blocks = values.reshape(rows, width // 16, 16)
    tensor_scale = np.float32(np.abs(values).max() / np.float32(2688))
    codes = np.arange(1, 0x7F, dtype=np.uint8)
    wanted = np.abs(blocks).max(-1) / 6 / tensor_scale
    scales = codes[_nearest(E4M3[codes].astype(np.float64), wanted)]
    scaled = blocks / (E4M3[scales] * tensor_scale)[..., None]
    magnitude = _nearest(np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6]), np.abs(scaled)).astype(np.uint8)
    code = (magnitude | (np.signbit(scaled) << 3).astype(np.uint8)).reshape(rows, width)
    return code[:, 0::2] | code[:, 1::2] << 4, scales, np.array(tensor_scale, "<f4")


def _nearest(points: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.searchsorted((points[1:] + points[:-1]) / 2, values)


def write_folder(folder: Path, config: dict, group: int = 16) -> None:
    """The files beside the weights, as ModelOpt exports them."""
    folder.mkdir(parents=True, exist_ok=True)
    quant = {"quant_algo": "W4A16_NVFP4", "kv_cache_quant_algo": None}
    quant |= {"group_size": group, "exclude_modules": EXCLUDED}
    flat = {
        "config_groups": {"group_0": {"weights": {"dynamic": False, "num_bits": 4, "type": "float",
                                                  "group_size": group},
                                      "targets": ["Linear"]}},
        "ignore": EXCLUDED, "quant_algo": "W4A16_NVFP4", "quant_method": "modelopt",
    }  # fmt: skip
    producer = {"name": "modelopt", "version": "synthetic"}
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {**flat, "producer": producer}}))
    (folder / "hf_quant_config.json").write_text(json.dumps({"producer": producer, "quantization": quant}))
    (folder / "LICENSE").write_text("Synthetic data.\n\nCopyright 2026 Nobody. Do with it as you like.\n")
    (folder / "README.md").write_text(CARD)


def write_full(folder: Path, seed: int = 0) -> Path:
    write_folder(folder, CONFIG)
    random, path, specs = np.random.default_rng(seed), folder / "model.safetensors", full_specs()
    with path.open("wb") as file:
        file.write(encode_header(specs))
        for spec in specs:
            for piece in random_pieces(spec, random):
                file.write(piece)
    assert (len(specs), path.stat().st_size) == (118, FULL_BYTES)
    return path


def write_small(folder: Path, drafter: Path | None = None) -> Path:
    """The embedded drafter (or another bf16 one) with the matrices quantised that NVIDIA's file has quantised."""
    import mlx_dspark

    drafter = drafter or Path(mlx_dspark.__file__).parent / "demo" / "drafter"
    write_folder(folder, json.loads((drafter / "config.json").read_text()))
    tensors: dict[TensorSpec, bytes] = {}
    for name, info in read_folder(drafter).items():
        with info.file.open("rb") as file:
            file.seek(info.begin)
            raw = file.read(info.nbytes)
        if not re.search(r"(^fc|mlp\.\w+_proj|markov_w2)\.weight$", name):
            tensors[TensorSpec(name, info.dtype, info.shape)] = raw
            continue
        values = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(info.shape)
        for part, dtype, data in zip(
            ("", "_scale", "_scale_2"), ("U8", "F8_E4M3", "F32"), quantise(values), strict=True
        ):
            tensors[TensorSpec(f"{name}{part}", dtype, data.shape)] = data.tobytes()
    path = folder / "model.safetensors"
    with path.open("wb") as file:
        file.write(encode_header(tensors))
        for data in tensors.values():
            file.write(data)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dst", type=Path)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    path = write_small(args.dst) if args.small else write_full(args.dst, args.seed)
    print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
