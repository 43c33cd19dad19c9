"""From a folder of NVFP4 tensors to the list of tensors to write; whatever is wrong with the source is refused here.

Reads headers and lays out the result; the quantised modules come checked from `nvfp4_modules`. Writes nothing.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_dspark.checkpoint.convert_source import Source
from mlx_dspark.checkpoint.nvfp4_modules import Module, find_modules
from mlx_dspark.checkpoint.quant_metadata import Claims, read_claims
from mlx_dspark.checkpoint.safetensors import INDEX_NAME, ITEM_BYTES, TensorInfo, TensorSpec, read_folder, read_metadata
from mlx_dspark.errors import ConversionError, TensorError


@dataclass(frozen=True)
class Item:
    """One tensor to write. `how`: copied (same bytes), repacked (same bytes, other form), spread (each block scale
    `times` times) or decoded (from weight and block scales under `tensor_scale`)."""

    spec: TensorSpec
    how: str
    sources: tuple[TensorInfo, ...]
    group: int = 0
    tensor_scale: float = 0.0
    reciprocal: bool = False
    times: int = 1


@dataclass(frozen=True)
class Plan:
    """All that will be written and what was noticed on the way."""

    claims: Claims
    config: dict[str, Any]
    metadata: dict[str, str]
    items: tuple[Item, ...]
    modules: tuple[Module, ...]
    dropped: tuple[TensorInfo, ...]
    warnings: tuple[str, ...]
    parameters: int

    @property
    def nbytes(self) -> int:
        return sum(item.spec.nbytes for item in self.items)


def make_plan(source: Source, format: str) -> Plan:
    """Check the whole source and lay out the output in `format`. Raises ConfigError, TensorError, ConversionError."""
    claims, config = read_claims(source.folder)
    tensors = read_folder(source.folder)
    _check_index(source.folder, tensors)
    source.open({info.file for info in tensors.values()})
    modules, dropped, warnings = find_modules(source, tensors, claims)
    if not modules:
        raise ConversionError(
            f"{source.folder} holds no NVFP4 tensors, so there is nothing to convert; if it is bf16 already, "
            "load it as it is"
        )
    items = _layout(tensors, modules, dropped, format)
    _refuse_clashes(items)
    taken = {i.name for m in modules for i in (m.weight, m.scales, m.scale)} | {i.name for i in dropped}
    parameters = sum(math.prod(m.shape) for m in modules)
    parameters += sum(math.prod(info.shape) for name, info in tensors.items() if name not in taken)
    files = sorted({info.file for info in tensors.values()})
    metadata = {k: v for file in files for k, v in read_metadata(file).items()}
    return Plan(claims, config, metadata, items, tuple(modules), tuple(dropped), tuple(warnings), parameters)


def _check_index(folder: Path, tensors: dict[str, TensorInfo]) -> None:
    """What `read_folder` leaves open: shards without an index, and the index's total."""
    index = folder / INDEX_NAME
    if index.is_file():
        metadata = json.loads(index.read_text("utf-8")).get("metadata")
        said = metadata.get("total_size") if isinstance(metadata, dict) else None
        have = sum(info.nbytes for info in tensors.values())
        if said is not None and said != have:
            raise TensorError(
                f"{index}: total_size is {said}, but the shards hold {have} bytes; fetch the shards again"
            )
        return
    for file in sorted({info.file for info in tensors.values()}):
        part = re.fullmatch(r"(.*)-(\d+)-of-(\d+)\.safetensors", file.name)
        for number in range(1, int(part[3]) + 1) if part else ():
            assert part
            name = f"{part[1]}-{number:0{len(part[2])}d}-of-{part[3]}.safetensors"
            if not (folder / name).is_file():
                raise TensorError(f"{folder / name} is missing, but {file.name} says it exists; complete the download")


def _layout(
    tensors: dict[str, TensorInfo], modules: list[Module], dropped: list[TensorInfo], format: str
) -> tuple[Item, ...]:
    """Items in the source's order, wider dtypes first so that every tensor is aligned to its items."""
    owner = {info.name: m for m in modules for info in (m.weight, m.scales, m.scale)}
    unused = {info.name for info in dropped}
    items: list[Item] = []
    for name, info in sorted(tensors.items(), key=lambda pair: (pair[1].file.name, pair[1].begin)):
        if name in unused:
            continue
        if name not in owner:
            items.append(Item(TensorSpec(name, info.dtype, info.shape), "copied", (info,)))
        elif format == "bf16" and info is owner[name].weight:
            items.append(_decoded(owner[name]))
        elif format != "bf16":
            items.append(_repacked(owner[name], info))
    return tuple(sorted(items, key=lambda item: -ITEM_BYTES[item.spec.dtype]))


def _decoded(m: Module) -> Item:
    spec = TensorSpec(m.part("weight"), "BF16", m.shape)
    return Item(spec, "decoded", (m.weight, m.scales, m.scale), m.group, m.tensor_scale, m.reciprocal)


def _repacked(m: Module, info: TensorInfo) -> Item:
    """MLX's names and shapes for the same bytes; its blocks are 16 values, so wider ones repeat their scale."""
    rows, width = m.shape
    if info is m.weight:
        return Item(TensorSpec(m.part("weight"), "U32", (rows, width // 8)), "repacked", (info,))
    if info is m.scales:
        spec = TensorSpec(m.part("scales"), "U8", (rows, width // 16))
        return Item(spec, "repacked" if m.group == 16 else "spread", (info,), times=m.group // 16)
    return Item(TensorSpec(info.name, "F32", info.shape), "copied", (info,))


def _refuse_clashes(items: tuple[Item, ...]) -> None:
    seen: dict[str, Item] = {}
    for item in items:
        other = seen.setdefault(item.spec.name, item)
        if other is not item:
            raise ConversionError(
                f"{item.sources[0].file}: {item.sources[0].name} and {other.sources[0].name} would both be written as "
                f"{item.spec.name}; remove one of them"
            )
