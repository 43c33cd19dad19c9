"""Proves a converted folder against its source: every tensor re-read on both sides and compared value by value.

Decodes by the arithmetic of `nvfp4.decode_plainly`, not by the table that wrote the file. Writes nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mlx_dspark.checkpoint.config import read_json
from mlx_dspark.checkpoint.convert_plan import Item, Plan
from mlx_dspark.checkpoint.convert_source import PIECE, Source
from mlx_dspark.checkpoint.model_card import result_config
from mlx_dspark.checkpoint.nvfp4 import Bytes, decode_plainly
from mlx_dspark.checkpoint.quant_metadata import MODELOPT_FILE
from mlx_dspark.checkpoint.safetensors import TensorInfo, read_folder
from mlx_dspark.errors import ConversionError


def verify_folder(dst: Path, plan: Plan, source: Source, progress: Callable[[int, int], None] | None = None) -> None:
    """Raises ConversionError at the first tensor, config entry or recorded hash that is not as the source demands."""
    found = read_folder(dst)
    _check_names(dst, plan, found)
    hashes, done = _recorded_hashes(dst), 0
    with Source(dst) as result:
        result.open({info.file for info in found.values()})
        for item in plan.items:
            info, digest = found[item.spec.name], hashlib.sha256()
            for at in range(0, info.nbytes, PIECE):
                have = np.empty(min(PIECE, info.nbytes - at), np.uint8)
                result.read_into(info, at, have.data)
                want = _expected(source, item, at, have.size)
                if not np.array_equal(have, want):
                    raise ConversionError(_difference(dst, item, at, have, want))
                digest.update(have.data)
                done += have.size
                if progress:
                    progress(done, plan.nbytes)
            if hashes.get(item.spec.name, digest.hexdigest()) != digest.hexdigest():
                raise ConversionError(
                    f"{dst / 'conversion.json'} records another sha256 for {item.spec.name} "
                    "than its bytes have; convert again"
                )


def _check_names(dst: Path, plan: Plan, found: dict[str, TensorInfo]) -> None:
    wanted = {item.spec.name: item.spec for item in plan.items}
    for name in sorted(wanted.keys() ^ found.keys()):
        which = "is missing from" if name in wanted else "is in no plan for the source, but in"
        raise ConversionError(f"tensor {name} {which} {dst}; it was not made from this source, so convert again")
    for name, spec in wanted.items():
        info = found[name]
        if (info.dtype, info.shape) != (spec.dtype, spec.shape):
            raise ConversionError(
                f"{dst}: tensor {name} is {info.dtype} {list(info.shape)}, but the source gives {spec.dtype} "
                f"{list(spec.shape)}; convert again"
            )
    if (dst / MODELOPT_FILE).exists():
        raise ConversionError(f"{dst / MODELOPT_FILE} makes readers treat the result as quantised; remove it")
    if not any(item.how == "decoded" for item in plan.items):
        wanted_config = result_config(plan, "mlx-nvfp4")
    else:
        wanted_config = result_config(plan, "bf16")
    config = read_json(dst / "config.json")
    for key in sorted(wanted_config.keys() | config.keys()):
        if json.dumps(config.get(key)) != json.dumps(wanted_config.get(key)):
            raise ConversionError(f"{dst / 'config.json'}: {key} is not what the source gives; convert again")


def _recorded_hashes(dst: Path) -> dict[str, str]:
    path = dst / "conversion.json"
    if not path.is_file():
        return {}
    tensors: Any = read_json(path).get("tensors")
    try:
        return {str(t["name"]): str(t["result"]["sha256"]) for t in tensors if "sha256" in t["result"]}
    except (TypeError, KeyError):
        raise ConversionError(f"{path} is no report of this tool; convert again") from None


def _expected(source: Source, item: Item, at: int, count: int) -> Bytes:
    """Bytes `at` to `at + count` of the result, derived from the source anew. PIECE is a multiple of every block."""
    if item.how == "decoded":
        weight, scales, _ = item.sources
        first, size = at // 4, count // 4
        per = item.group // 2
        bits = decode_plainly(
            _read(source, weight, first, size),
            _read(source, scales, first // per, size // per),
            np.float32(item.tensor_scale),
            item.group,
            reciprocal=item.reciprocal,
        )
        return np.asarray(bits.astype("<u2").view(np.uint8), np.uint8)
    if item.how == "spread":
        first, end = at // item.times, -(-(at + count) // item.times)
        few = _read(source, item.sources[0], first, end - first)
        return np.repeat(few, item.times)[at - first * item.times :][:count]
    return _read(source, item.sources[0], at, count)


def _read(source: Source, info: TensorInfo, at: int, count: int) -> Bytes:
    data = np.empty(count, np.uint8)
    source.read_into(info, at, data.data)
    return data


def _difference(dst: Path, item: Item, at: int, have: Bytes, want: Bytes) -> str:
    where = int(np.flatnonzero(have != want)[0])
    return (
        f"{dst}: tensor {item.spec.name} differs from the source at byte {at + where} (it has {have[where]:#04x}, the "
        f"source gives {want[where]:#04x}); the result is damaged or from another source, so convert again"
    )
