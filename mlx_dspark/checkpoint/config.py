"""config.json -> TargetConfig or DrafterConfig: frozen, complete, contradictions refused.

Knows key spellings and their meaning; knows no tensor and imports no mlx. A checkpoint's own Python code
(`auto_map`, `model_file`) is never imported.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mlx_dspark.errors import ConfigError

BLOCK_KINDS = {
    "mamba": "M", "linear_attention": "M", "mamba2": "M",
    "attention": "*", "full_attention": "*",
    "moe": "E", "mlp": "-",
}  # fmt: skip
DRAFTER_ARCHITECTURE = "Qwen3DSparkModel"
FOREIGN_KEYS = {"quant_method", "quant_algo", "format"}
TENSOR_SCALES = {"weight_scale_2": False, "weight_global_scale": True}
"""Tensors that hold an NVFP4 matrix's own scale, and whether it is the reciprocal that is stored."""


@dataclass(frozen=True)
class Quantization:
    """How mlx stored the matrices: `overrides` maps a module path to its own settings, or to None if it is dense.

    `tensor_scales` are the tensor names (after the module's) under which NVFP4 matrices have a scale of their own.
    """

    group_size: int
    bits: int
    mode: str = "affine"
    overrides: dict[str, Quantization | None] = field(default_factory=dict)
    tensor_scales: tuple[str, ...] = ()

    def of(self, path: str) -> Quantization | None:
        return self.overrides.get(path, self)


@dataclass(frozen=True)
class TargetConfig:
    """A nemotron_h target. `pattern` has one letter a layer: M mamba, * attention, E experts, - dense MLP."""

    pattern: str
    vocab_size: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    mamba_heads: int
    mamba_head_dim: int
    state_size: int
    groups: int
    conv_kernel: int
    mlp_size: int
    experts: int
    experts_per_token: int
    expert_size: int
    shared_size: int
    latent_size: int | None
    expert_groups: int
    top_groups: int
    normalize_weights: bool
    routed_scale: float
    norm_eps: float
    attention_bias: bool
    projection_bias: bool
    conv_bias: bool
    mlp_bias: bool
    dt_limit: tuple[float, float]
    tied_head: bool
    max_positions: int
    eos_ids: frozenset[int]
    sampling: dict[str, Any]
    quantization: Quantization | None

    @property
    def layers(self) -> int:
        return len(self.pattern)

    @property
    def inner_size(self) -> int:
        return self.mamba_heads * self.mamba_head_dim

    @property
    def conv_size(self) -> int:
        return self.inner_size + 2 * self.groups * self.state_size


@dataclass(frozen=True)
class DrafterConfig:
    """NVIDIA's Qwen3DSparkModel. `taps` are 0-based target layers whose outputs feed `fc`, ascending."""

    taps: tuple[int, ...]
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float
    window: int
    block_size: int
    mask_token: int
    markov_rank: int
    confidence_head: bool
    quantization: Quantization | None

    @property
    def max_draft(self) -> int:
        """Slot 0 is the anchor, so a block of `block_size` slots holds one draft less."""
        return self.block_size - 1


class Keys:
    """Typed access to one JSON object; every complaint names the file and the key."""

    def __init__(self, path: Path, values: dict[str, Any], prefix: str = ""):
        self.path, self.values, self.prefix = path, values, prefix

    def bad(self, key: str, why: str) -> ConfigError:
        return ConfigError(f"{self.path}: {self.prefix}{key} {why}")

    def get(self, key: str, default: Any = None) -> Any:
        value = self.values.get(key)
        return default if value is None else value

    def count(self, key: str, default: int | None = None, *, low: int = 1) -> int:
        value = self.get(key, default)
        if value is None:
            raise self.bad(key, "is missing")
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise self.bad(key, f"is {value!r}, but it must be a whole number of at least {low}")
        return value

    def number(self, key: str, default: float) -> float:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self.bad(key, f"is {value!r}, but it must be a finite number")
        return float(value)

    def switch(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.bad(key, f"is {value!r}, but it must be true or false")
        return value

    def nested(self, key: str) -> Keys:
        value = self.get(key, {})
        if not isinstance(value, dict):
            raise self.bad(key, f"is {value!r}, but it must be an object")
        return Keys(self.path, value, f"{self.prefix}{key}.")

    def same(self, first: str, *others: tuple[Keys, str]) -> Any:
        """The value under `first` or any other spelling; two spellings that differ are refused."""
        found: list[tuple[str, Any]] = []
        for keys, name in ((self, first), *others):
            if keys.values.get(name) is not None:
                found.append((keys.prefix + name, keys.values[name]))
        for name, value in found[1:]:
            if value != found[0][1]:
                raise self.bad(first, f"is {found[0][1]!r} but {name} is {value!r}; they must agree")
        return found[0][1] if found else None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from disk. ConfigError if it is missing, no JSON or no object."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing; point to a complete checkpoint folder") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as JSON ({error}); copy or download it again") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds no JSON object; copy or download it again")
    return value


def is_drafter(config: dict[str, Any]) -> bool:
    """Whether a config.json describes a block drafter of any packaging rather than a target."""
    names = " ".join(map(str, config.get("architectures") or []))
    return any(word in names for word in ("DSpark", "DFlash", "Eagle")) or "dflash_config" in config


def token_ids(path: Path, value: Any) -> frozenset[int]:
    """eos_token_id as a set, whether it is absent, one id or a list."""
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise ConfigError(f"{path}: eos_token_id is {value!r}, but it must be a token id or a list of them")
    return frozenset(ids)


def refuse_foreign(keys: Keys) -> None:
    """Raise ConfigError if the matrices are in another packaging than mlx's."""
    foreign = keys.get("quantization_config")
    if keys.get("quantization") is None and foreign is not None and not _is_mlx(foreign):
        how = foreign.get("quant_method") or foreign.get("quant_algo") if isinstance(foreign, dict) else foreign
        raise keys.bad(
            "quantization_config", f"says {how!r}, which is not read for a target; take an mlx conversion of it"
        )


def _is_mlx(found: Any) -> bool:
    """Whether a `quantization_config` is mlx's own entry under transformers' name."""
    return isinstance(found, dict) and "group_size" in found and not found.keys() & FOREIGN_KEYS


def read_quantization(keys: Keys) -> Quantization | None:
    """mlx's `quantization` entry, per-module overrides included; None where there is none."""
    found = keys.get("quantization")
    if found is None:
        found = keys.get("quantization_config")
        if not _is_mlx(found):
            return None
    if not isinstance(found, dict):
        raise keys.bad("quantization", f"is {found!r}, but it must be an object")
    inner = Keys(keys.path, found, f"{keys.prefix}quantization.")
    overrides: dict[str, Quantization | None] = {}
    for name, value in found.items():
        if isinstance(value, dict):
            overrides[name] = _one_quantization(Keys(keys.path, value, f"{inner.prefix}{name}."))
        elif value is False:
            overrides[name] = None
    base = _one_quantization(inner)
    return replace(base, overrides=overrides, tensor_scales=_tensor_scales(inner))


def _tensor_scales(keys: Keys) -> tuple[str, ...]:
    found = keys.get("tensor_scale", [])
    names = [found] if isinstance(found, str) else found
    if not isinstance(names, list) or not set(names) <= set(TENSOR_SCALES):
        raise keys.bad("tensor_scale", f"is {found!r}; this version reads {' and '.join(TENSOR_SCALES)}")
    return tuple(names)


def _one_quantization(keys: Keys) -> Quantization:
    mode = keys.get("mode", "affine")
    if mode not in ("affine", "nvfp4"):
        raise keys.bad("mode", f"is {mode!r}; this version reads affine and nvfp4")
    bits = keys.count("bits", 4)
    if bits not in (2, 3, 4, 5, 6, 8):
        raise keys.bad("bits", f"is {bits}, but mlx stores 2, 3, 4, 5, 6 or 8 bits")
    return Quantization(keys.count("group_size", 64 if mode == "affine" else 16), bits, mode)
