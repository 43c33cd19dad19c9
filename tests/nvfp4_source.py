"""Small NVFP4 checkpoints in the producers' on-disk forms, as plain dictionaries that tests may damage first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from mlx_dspark.checkpoint.safetensors import TensorSpec, encode_header

Tensor = tuple[str, tuple[int, ...], bytes]
CONFIG = {
    "architectures": ["Qwen3DSparkModel"], "model_type": "qwen3", "hidden_size": 32, "num_hidden_layers": 1,
    "text_config": {"dtype": "bfloat16", "quantization_config": None},
}  # fmt: skip
SCALE_2 = np.float32(np.float32(1.3671875) / np.float32(2688))
LICENSE = "OpenModel License\n\nCopyright (c) 2026 Someone.\n"
README = "---\nlicense: other\nlicense_name: openmdw-1.1\nlicense_link: LICENSE\n---\n# Original\n"


def module(
    name: str, rows: int, width: int, *, style: str = "modelopt", group: int = 16, scale: float = SCALE_2, seed: int = 0
) -> dict[str, Tensor]:
    """The three tensors of one quantised matrix, random valid codes."""
    random = np.random.default_rng(seed)
    codes = random.integers(0, 256, (rows, width // 2), np.uint8)
    scales = random.integers(0, 0x7F, (rows, width // group), np.uint8)
    if style == "modelopt":
        packed, key, shape, value = "weight", "weight_scale_2", (), np.float32(scale)
    else:
        packed, key, shape, value = "weight_packed", "weight_global_scale", (1,), np.float32(1) / np.float32(scale)
    return {
        f"{name}.{packed}": ("U8", codes.shape, codes.tobytes()),
        f"{name}.weight_scale": ("F8_E4M3", scales.shape, scales.tobytes()),
        f"{name}.{key}": ("F32", shape, value.tobytes()),
    }


def tensors(style: str = "modelopt", group: int = 16) -> dict[str, Tensor]:
    """Two quantised matrices and four others (BF16, F32 and F16 among them)."""
    random = np.random.default_rng(9)
    found = module("fc", 24, 96, style=style, group=group, seed=1)
    found |= module("layers.0.mlp.up_proj", 40, 32, style=style, group=group, scale=0.0123, seed=2)
    for name, dtype, shape in (
        ("embed_tokens.weight", "BF16", (50, 32)),
        ("norm.weight", "BF16", (33,)),
        ("layers.0.bias", "F32", (5,)),
        ("layers.0.half", "F16", (3, 3)),
    ):
        size = TensorSpec(name, dtype, shape).nbytes
        found[name] = (dtype, shape, random.integers(0, 256, size, np.uint8).tobytes())
    return found


def quantisation(style: str = "modelopt", group: int = 16) -> dict[str, Any]:
    """config.json's quantization_config as the producer writes it."""
    weights = {"num_bits": 4, "type": "float", "group_size": group, "dynamic": False}
    groups = {"group_0": {"weights": weights, "targets": ["Linear"]}}
    if style == "compressed":
        return {
            "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "version": "0.20.1",
            "config_groups": groups, "ignore": ["lm_head", "re:.*embed.*"], "quantization_status": "compressed",
        }  # fmt: skip
    return {
        "quant_method": "modelopt", "quant_algo": "W4A16_NVFP4", "config_groups": groups, "ignore": ["*embed_tokens*"],
        "producer": {"name": "modelopt", "version": "0.47.0"},
    }  # fmt: skip


def hf_quant(group: int = 16, **changes: Any) -> dict[str, Any]:
    values = {"quant_algo": "W4A16_NVFP4", "kv_cache_quant_algo": None, "group_size": group,
              "exclude_modules": ["*embed_tokens*", "*self_attn*"], **changes}  # fmt: skip
    return {"producer": {"name": "modelopt", "version": "0.47.0"}, "quantization": values}


def write_tensors(path: Path, found: dict[str, Tensor]) -> None:
    specs = [TensorSpec(name, dtype, tuple(shape)) for name, (dtype, shape, _) in found.items()]
    path.write_bytes(encode_header(specs) + b"".join(data for _, _, data in found.values()))


def write(
    folder: Path,
    found: dict[str, Tensor] | None = None,
    *,
    style: str = "modelopt",
    group: int = 16,
    config: dict[str, Any] | None = None,
    hf: dict[str, Any] | None = None,
) -> Path:
    """A whole folder. `config` replaces config.json; `hf` hf_quant_config.json (ModelOpt only; {} leaves it out)."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / "model.safetensors", tensors(style, group) if found is None else found)
    config = {**CONFIG, "quantization_config": quantisation(style, group)} if config is None else config
    (folder / "config.json").write_text(json.dumps(config))
    if style == "modelopt" and hf != {}:
        (folder / "hf_quant_config.json").write_text(json.dumps(hf or hf_quant(group)))
    (folder / "LICENSE").write_text(LICENSE)
    (folder / "README.md").write_text(README)
    (folder / "modeling_evil.py").write_text("raise SystemExit('ran')")
    return folder


def write_shards(folder: Path, found: dict[str, Tensor], parts: list[list[str]], total: int | None = None) -> Path:
    """The folder with its weights split by name lists, with an index."""
    write(folder, {})
    (folder / "model.safetensors").unlink()
    names = {}
    for number, part in enumerate(parts, 1):
        file = f"model-{number:05}-of-{len(parts):05}.safetensors"
        write_tensors(folder / file, {name: found[name] for name in part})
        names |= dict.fromkeys(part, file)
    size = sum(len(data) for _, _, data in found.values()) if total is None else total
    index = {"metadata": {"total_size": size}, "weight_map": names}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
