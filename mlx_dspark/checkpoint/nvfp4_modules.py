"""The NVFP4 matrices of a folder, module by module, every part of them checked.

Reads headers, tensor scales and block scales, so that nothing is found out later. Decides from the tensors; the
metadata can only contradict. Serves the converter and the loader alike; writes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mlx_dspark.checkpoint import nvfp4
from mlx_dspark.checkpoint.convert_source import Source
from mlx_dspark.checkpoint.quant_metadata import Claims, read_claims
from mlx_dspark.checkpoint.safetensors import TensorInfo, read_folder
from mlx_dspark.errors import ConversionError, TensorError

SCALE_PARTS = (
    "weight_scale", "weight_scale_2", "weight_global_scale", "input_scale", "input_global_scale", "weight_zero_point",
)  # fmt: skip
OTHER_MATHS = ("pre_quant_scale", "svdquant_lora_a", "svdquant_lora_b")
UNUSED = ("input_scale", "input_global_scale")


@dataclass(frozen=True)
class Module:
    """A quantised matrix: its packed bytes, block scales and tensor scale (its reciprocal in compressed-tensors)."""

    name: str
    weight: TensorInfo
    scales: TensorInfo
    scale: TensorInfo
    tensor_scale: float
    group: int
    reciprocal: bool

    @property
    def shape(self) -> tuple[int, int]:
        return self.weight.shape[0], self.weight.shape[1] * 2

    def part(self, suffix: str) -> str:
        return f"{self.name}.{suffix}" if self.name else suffix


def find_modules(
    source: Source, tensors: dict[str, TensorInfo], claims: Claims
) -> tuple[list[Module], list[TensorInfo], list[str]]:
    """Quantised modules by name, tensors a weight-only reading has no use for, warnings; the source's files are open.

    Raises TensorError or ConversionError for anything that is not whole NVFP4.
    """
    modules, unused, warnings = [], [], []
    for name in sorted(_module_names(tensors)):
        module, left = _module(source, tensors, name)
        _check_claims(source.folder, claims, module)
        warnings += _check_scales(source, module)
        modules.append(module)
        unused += left
    return modules, unused, warnings


def read_modules(folder: Path) -> tuple[dict[str, Module], list[str]]:
    """`find_modules` of a folder that is to be loaded as it is: modules by name, and the names without a use."""
    claims, _ = read_claims(folder)
    tensors = read_folder(folder)
    with Source(folder) as source:
        source.open({info.file for info in tensors.values()})
        modules, unused, _ = find_modules(source, tensors, claims)
    return {m.name: m for m in modules}, [info.name for info in unused]


def _module_names(tensors: dict[str, TensorInfo]) -> Iterator[str]:
    """Names of modules that are quantised in any way; whatever is not NVFP4 is refused by `_module`."""
    seen = set()
    for name, info in tensors.items():
        module, _, part = name.rpartition(".")
        if part in OTHER_MATHS:
            raise ConversionError(
                f"{info.file}: {name} changes the maths of its matrix (AWQ or SVDQuant), which is not supported; "
                "use a plain NVFP4 export"
            )
        packed = part == "weight_packed" or (part == "weight" and info.dtype in ("U8", "I8", "F8_E4M3", "F8_E5M2"))
        if packed or part in SCALE_PARTS:
            seen.add(module)
        elif part.endswith(("_scale", "_scale_2", "_scale_inv")) and part not in ("k_scale", "v_scale", "q_scale"):
            raise ConversionError(
                f"{info.file}: {name} belongs to a quantised tensor of another packaging (experts, FP8 blocks), "
                "which is not supported; use an export with one matrix a module"
            )
    yield from seen


def _module(source: Source, tensors: dict[str, TensorInfo], name: str) -> tuple[Module, list[TensorInfo]]:
    """The parts of one quantised module, all checked; and those that a weight-only result has no use for."""
    names = {p: f"{name}.{p}".lstrip(".") for p in ("weight", "weight_packed", *SCALE_PARTS)}
    parts = {part: tensors[full] for part, full in names.items() if full in tensors}
    file, present = next(iter(parts.values())).file, ", ".join(sorted(parts))
    if "weight_packed" in parts and "weight" in parts:
        raise ConversionError(
            f"{file}: {name} has both weight and weight_packed, which get one name; remove one of them"
        )
    kind, key = ("weight_packed", "weight_global_scale") if "weight_packed" in parts else ("weight", "weight_scale_2")
    weight = parts.get(kind)
    if weight is None:
        raise TensorError(f"{file}: {name} has no weight (present: {present}); the file is incomplete, fetch it again")
    _refuse_other_families(name, weight, parts.get("weight_scale"))
    if "weight_zero_point" in parts:
        raise ConversionError(f"{file}: {name} has a weight_zero_point, which NVFP4 does not have; use an NVFP4 export")
    for part in ("weight_scale", key):
        if part not in parts:
            raise TensorError(f"{file}: {name} has no {part} (present: {present}); the file is incomplete or not NVFP4")
    surplus = {"weight_scale_2", "weight_global_scale"} & parts.keys() - {key}
    if surplus:
        raise ConversionError(f"{file}: {name} has {key} and {surplus.pop()}, which contradict each other; remove one")
    scales, scale = parts["weight_scale"], parts[key]
    group = _group(name, weight, scales)
    value = _tensor_scale(source, name, scale, reciprocal=kind == "weight_packed")
    module = Module(name, weight, scales, scale, value, group, kind == "weight_packed")
    return module, [parts[p] for p in UNUSED if p in parts]


def _refuse_other_families(name: str, weight: TensorInfo, scales: TensorInfo | None) -> None:
    what = f"{weight.file}: {name}"
    if scales is not None and weight.dtype == "U8" and scales.dtype in ("U8", "F8_E8M0"):
        raise ConversionError(
            f"{what} looks like MXFP4 ({scales.dtype} block scales, E8M0), which is not supported; use an NVFP4 export"
        )
    if weight.dtype.startswith("F8"):
        raise ConversionError(f"{what} is FP8 (weight {weight.dtype}), which is not supported; use an NVFP4 export")
    if weight.dtype != "U8":
        raise ConversionError(
            f"{what} has scales, but its weight is {weight.dtype} where NVFP4 has U8; the parts do not belong "
            "together, so fetch the file again or use an NVFP4 export"
        )
    if len(weight.shape) != 2:
        raise ConversionError(
            f"{what} has a packed weight of shape {list(weight.shape)}, but only matrices [out, in/2] are supported; "
            "stacked experts need an export with one matrix a module"
        )
    if scales is not None and scales.dtype != "F8_E4M3":
        raise ConversionError(f"{what} has {scales.dtype} block scales where NVFP4 has F8_E4M3; use an NVFP4 export")


def _group(name: str, weight: TensorInfo, scales: TensorInfo) -> int:
    """Values a block, from the shapes: 16, or 32 in some ModelOpt presets."""
    rows, width = weight.shape[0], weight.shape[1] * 2
    for group in (16, 32):
        if rows and width and width % group == 0 and scales.shape == (rows, width // group):
            return group
    raise TensorError(
        f"{weight.file}: {name} has weight {list(weight.shape)}, so weight_scale must be [{rows}, {width}/16] "
        f"(or /32) with no remainder and at least one row, but it is {list(scales.shape)}; padded or tiled scales "
        "come from another export"
    )


def _tensor_scale(source: Source, name: str, info: TensorInfo, *, reciprocal: bool) -> float:
    part = info.name.rpartition(".")[2]
    what = f"{info.file}: {name}"
    if info.dtype != "F32" or math.prod(info.shape) != 1:
        raise TensorError(
            f"{what} has {part} {info.dtype} {list(info.shape)}, but it must be one F32; use an NVFP4 export"
        )
    value = np.frombuffer(source.read(info), "<f4")[0]
    if not np.isfinite(value) or value <= 0:
        raise TensorError(f"{what} has {part} = {value}, which is not a positive finite number; fetch the file again")
    if nvfp4.overflows(value, reciprocal=reciprocal):
        raise TensorError(
            f"{what} has {part} = {value}, under which the largest code overflows bf16; the value must be wrong"
        )
    if not reciprocal and value > 1:
        raise TensorError(
            f"{what} has {part} = {value}, but ModelOpt writes values below 1; it looks like compressed-tensors' "
            "reciprocal under ModelOpt's name, so use the original export"
        )
    if reciprocal and value < 1:
        raise TensorError(
            f"{what} has {part} = {value}, but compressed-tensors writes the reciprocal, above 1; it looks like "
            "ModelOpt's scale under another name, so use the original export"
        )
    return float(value)


def _check_claims(folder: Path, claims: Claims, module: Module) -> None:
    allowed = claims.group_of(module.name)
    if allowed and module.group not in allowed:
        raise ConversionError(
            f"{folder}: the metadata says group_size {', '.join(map(str, sorted(allowed)))}, but the scales of "
            f"{module.name} have one block per {module.group} values; weights and config do not belong together"
        )
    pattern = claims.excludes(module.name)
    if pattern is not None:
        raise ConversionError(
            f"{folder}: the metadata excludes {pattern!r} from quantisation, but {module.name} is quantised; "
            "weights and config do not belong together"
        )


def _check_scales(source: Source, module: Module) -> list[str]:
    """Raise if a block scale is NaN; a warning if some are negative (their values stay defined)."""
    per_row, bad, first, negative, at = module.scales.shape[1], 0, -1, 0, 0
    for piece in source.pieces(module.scales):
        codes = np.frombuffer(piece, np.uint8)
        where = nvfp4.nan_scales(codes)
        if where.size and first < 0:
            first = at + int(where[0])
        bad += where.size
        negative += int(np.count_nonzero(codes & 0x80))
        at += codes.size
    if bad:
        raise TensorError(
            f"{module.scales.file}: {module.scales.name} holds {bad} NaN block scales, the first at row "
            f"{first // per_row} block {first % per_row}; the file is damaged, fetch it again"
        )
    return (
        [f"{module.scales.name} has {negative} negative block scales, which ModelOpt never writes"] if negative else []
    )
