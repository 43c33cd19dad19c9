"""What a checkpoint's config.json and hf_quant_config.json claim about its quantisation, as one checked form.

Refuses every scheme but NVFP4 by name. Knows no tensors: `nvfp4_modules` decides from those and uses the claims
only to find a contradiction.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from mlx_dspark.checkpoint.config import read_json
from mlx_dspark.errors import ConfigError

MODELOPT_FILE = "hf_quant_config.json"
QUANT_KEYS = ("quantization_config", "compression_config", "quantization")
MODELOPT_ALGOS = ("NVFP4", "W4A16_NVFP4")
PACKED_FORMAT = "nvfp4-pack-quantized"
SUPPORTED = f"supported: {', '.join(MODELOPT_ALGOS)}, MIXED_PRECISION of these, compressed-tensors {PACKED_FORMAT}"


@dataclass(frozen=True)
class Claims:
    """`groups` are the block sizes that may occur; `layer_groups` those of single modules; `excluded` name patterns."""

    algo: str | None
    producer: str | None
    groups: frozenset[int]
    layer_groups: dict[str, int]
    excluded: tuple[str, ...]

    def excludes(self, module: str) -> str | None:
        """The pattern that lists `module` as not quantised, if one does."""
        return next((p for p in self.excluded if _matches(module, p)), None)

    def group_of(self, module: str) -> frozenset[int]:
        """The block sizes the metadata allows for `module`; empty if it says nothing."""
        return frozenset([self.layer_groups[module]]) if module in self.layer_groups else self.groups


def read_claims(folder: Path) -> tuple[Claims, dict[str, Any]]:
    """The claims and the parsed config.json. Raises ConfigError for anything but NVFP4."""
    path = folder / "config.json"
    config = read_json(path)
    found = [(path, f"{where}.", value) for where, value in _quantisations(config, path)]
    if (folder / MODELOPT_FILE).is_file():
        found.append((folder / MODELOPT_FILE, "", read_json(folder / MODELOPT_FILE)))
    parts = [_one(path, where, value) for path, where, value in found]
    _check_agreement(folder, [p.groups for p in parts if p.groups])
    return (
        Claims(
            algo=next((p.algo for p in parts if p.algo), None),
            producer=next((p.producer for p in parts if p.producer), None),
            groups=_common([p.groups for p in parts if p.groups]),
            layer_groups={name: size for p in parts for name, size in p.layer_groups.items()},
            excluded=tuple(pattern for p in parts for pattern in p.excluded),
        ),
        config,
    )


def _common(sizes: list[frozenset[int]]) -> frozenset[int]:
    return sizes[0].intersection(*sizes[1:]) if sizes else frozenset()


def _check_agreement(folder: Path, sizes: list[frozenset[int]]) -> None:
    if sizes and not _common(sizes):
        said = " and ".join(", ".join(map(str, sorted(s))) for s in sizes)
        raise ConfigError(
            f"{folder}: config.json and {MODELOPT_FILE} contradict each other, with group_size {said}; "
            "they do not belong together, so fetch both again"
        )


def without_quantisation(value: Any) -> Any:
    """A config with every quantisation entry left out, nested ones included."""
    if isinstance(value, dict):
        return {k: without_quantisation(v) for k, v in value.items() if k not in QUANT_KEYS}
    return [without_quantisation(v) for v in value] if isinstance(value, list) else value


def _quantisations(config: dict[str, Any], path: Path, prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for key, value in config.items():
        name = f"{prefix}{key}"
        if key == "quantization" and isinstance(value, dict) and "group_size" in value:
            raise ConfigError(
                f"{path}: {name} says the weights are in MLX's own form already; there is nothing to convert, "
                "so load the folder as it is"
            )
        if key in QUANT_KEYS and value is not None:
            if not isinstance(value, dict):
                raise ConfigError(f"{path}: {name} is {value!r}, but it must be an object; fetch the file again")
            yield name, value
        elif isinstance(value, dict):
            yield from _quantisations(value, path, f"{name}.")


def _one(path: Path, where: str, value: dict[str, Any]) -> Claims:
    nested = value.get("quantization")
    inner = {**value, **nested} if isinstance(nested, dict) else value
    method = str(inner.get("quant_method") or "").lower()
    if method == "compressed-tensors" or (not method and inner.get("format")):
        return _compressed(path, where, inner)
    if method not in ("", "modelopt", "modelopt_fp4", "modelopt_mixed"):
        raise ConfigError(f"{path}: {where}quant_method {method!r} is not supported ({SUPPORTED}); use its own tools")
    return _modelopt(path, where, inner)


def _modelopt(path: Path, where: str, inner: dict[str, Any]) -> Claims:
    algo = str(inner["quant_algo"]) if inner.get("quant_algo") else None
    if algo is not None and algo.upper() not in (*MODELOPT_ALGOS, "MIXED_PRECISION"):
        raise ConfigError(f"{path}: {where}quant_algo {algo!r} is not supported ({SUPPORTED}); use another export")
    layers = inner.get("quantized_layers") or {}
    if not isinstance(layers, dict) or not all(isinstance(v, dict) for v in layers.values()):
        raise ConfigError(f"{path}: {where}quantized_layers must map module names to objects; fetch the file again")
    if algo and algo.upper() == "MIXED_PRECISION" and not layers:
        raise ConfigError(
            f"{path}: {where}quant_algo MIXED_PRECISION comes without quantized_layers, so the other schemes in it "
            f"are unknown; fetch {MODELOPT_FILE} too"
        )
    for name, layer in layers.items():
        if str(layer.get("quant_algo")).upper() not in MODELOPT_ALGOS:
            raise ConfigError(
                f"{path}: {where}quantized_layers holds {name} as {layer.get('quant_algo')!r}, which is not supported "
                f"({SUPPORTED}); use an export of this model with NVFP4 alone"
            )
    return Claims(
        algo=algo,
        producer=_producer(inner.get("producer")),
        groups=_groups(path, where, inner),
        layer_groups={n: size for n, v in layers.items() for size in _sizes(path, f"{where}{n}.", v)},
        excluded=_patterns(path, where, inner, "exclude_modules") + _patterns(path, where, inner, "ignore"),
    )


def _compressed(path: Path, where: str, inner: dict[str, Any]) -> Claims:
    groups = inner.get("config_groups")
    groups = groups if isinstance(groups, dict) else {}
    formats = [inner.get("format"), *(g.get("format") for g in groups.values() if isinstance(g, dict))]
    wrong = next((f for f in formats if f is not None and f != PACKED_FORMAT), None)
    if wrong is not None or not any(formats):
        raise ConfigError(f"{path}: {where}format {wrong!r} is not supported ({SUPPORTED}); use another export")
    for key in ("transform_config", "sparsity_config"):
        extra = inner.get(key)
        if extra and not (isinstance(extra, dict) and extra.get("format") == "dense"):
            raise ConfigError(
                f"{path}: {where}{key} is not empty, which changes the weights beyond NVFP4 and is not supported "
                f"({SUPPORTED}); use an export without it"
            )
    version = inner.get("version")
    return Claims(
        algo=PACKED_FORMAT,
        producer=f"compressed-tensors {version}" if version else "compressed-tensors",
        groups=_groups(path, where, inner),
        layer_groups={},
        excluded=_patterns(path, where, inner, "ignore"),
    )


def _groups(path: Path, where: str, inner: dict[str, Any]) -> frozenset[int]:
    """Every block size named: at the top and in the weights of `config_groups`, whose other numbers are checked."""
    sizes = _sizes(path, where, inner)
    configured = inner.get("config_groups")
    for name, group in (configured if isinstance(configured, dict) else {}).items():
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(weights, dict):
            continue
        at = f"{where}config_groups.{name}.weights."
        if weights.get("num_bits", 4) != 4 or weights.get("type", "float") != "float":
            raise ConfigError(
                f"{path}: {at}num_bits {weights.get('num_bits')} of type {weights.get('type')!r} is not NVFP4, "
                f"which has 4 bits of float ({SUPPORTED}); use another export"
            )
        sizes |= _sizes(path, at, weights)
    return sizes


def _sizes(path: Path, where: str, values: dict[str, Any]) -> frozenset[int]:
    size = values.get("group_size")
    if size is None:
        return frozenset()
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ConfigError(f"{path}: {where}group_size is {size!r}, but NVFP4 has 16 or 32; fetch the file again")
    return frozenset([size])


def _patterns(path: Path, where: str, inner: dict[str, Any], key: str) -> tuple[str, ...]:
    found = inner.get(key) or []
    if not isinstance(found, list) or not all(isinstance(p, str) for p in found):
        raise ConfigError(f"{path}: {where}{key} must be a list of module names; fetch the file again")
    return tuple(found)


def _producer(value: Any) -> str | None:
    if not isinstance(value, dict) or not value.get("name"):
        return None
    return " ".join(str(value[k]) for k in ("name", "version") if value.get(k))


def _matches(module: str, pattern: str) -> bool:
    if pattern.startswith("re:"):
        try:
            return re.match(pattern[3:], module) is not None
        except re.error:
            return False
    return fnmatchcase(module, pattern) or module.startswith(f"{pattern}.")
