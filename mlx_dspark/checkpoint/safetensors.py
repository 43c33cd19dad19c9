"""Safetensors: where each tensor lies, checked before a byte of data is read; and headers for new files.

Knows the file format only (https://github.com/huggingface/safetensors, "Format"); imports neither mlx nor torch.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from mlx_dspark.errors import TensorError

ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip
MAX_HEADER = 100_000_000
INDEX_NAME = "model.safetensors.index.json"


@dataclass(frozen=True)
class TensorInfo:
    """One tensor on disk: `begin` and `end` are absolute byte offsets in `file`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.begin


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The tensors of one file, in file order. Raises TensorError if the file is damaged in any way."""
    size = _file_size(path)
    try:
        with path.open("rb") as file:
            length, raw = _read_raw(path, file, size)
    except OSError as error:
        raise TensorError(f"{path} cannot be read: {error.strerror}; check that it is a file you may read") from None
    entries = _parse(path, raw)
    tensors = [_entry(path, name, entry, 8 + length) for name, entry in entries.items() if name != "__metadata__"]
    _check_layout(path, tensors, 8 + length, size)
    return {t.name: t for t in tensors}


def _read_raw(path: Path, file: BinaryIO, size: int) -> tuple[int, bytes]:
    """The header's length and bytes."""
    head = file.read(8)
    _refuse_lookalikes(path, head + file.read(64))
    if len(head) < 8:
        raise TensorError(f"{path}: {size} bytes are too few for a safetensors file; copy or download it again")
    length = struct.unpack("<Q", head)[0]
    if length > min(size - 8, MAX_HEADER):
        raise TensorError(
            f"{path}: the header claims {length} bytes, the file has {size}; "
            "it is truncated or not safetensors, so copy or download it again"
        )
    file.seek(8)
    return length, file.read(length)


def read_metadata(path: Path) -> dict[str, str]:
    """The free-form `__metadata__` strings of one file ({} if it has none)."""
    with path.open("rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        found = _parse(path, file.read(length)).get("__metadata__", {})
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


def read_folder(folder: Path) -> dict[str, TensorInfo]:
    """All tensors of a checkpoint folder: one `model.safetensors`, or the shards its index names."""
    index = folder / INDEX_NAME
    if index.is_file():
        return _read_sharded(folder, index)
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        other = sorted(p.name for p in folder.glob("*") if p.suffix in {".bin", ".pt", ".gguf", ".npz", ".safetensors"})
        hint = f"; it holds {', '.join(other[:3])}, which is another packaging" if other else ""
        raise TensorError(f"{folder} has no model.safetensors{hint}; point to a folder with safetensors weights")
    return _merge(read_header(file) for file in files)


def _read_sharded(folder: Path, index: Path) -> dict[str, TensorInfo]:
    try:
        weight_map = json.loads(index.read_text("utf-8"))["weight_map"]
        names = {str(k): str(v) for k, v in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TensorError(f"{index} is no valid shard index ({error!r}); copy or download it again") from None
    for shard in sorted(set(names.values())):
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise TensorError(f"{index} names {shard!r}, which is no safetensors file of its folder")
        if not (folder / shard).is_file():
            raise TensorError(f"{folder / shard} is missing, but {index.name} names it; complete the download")
    tensors = _merge(read_header(folder / shard) for shard in sorted(set(names.values())))
    for name, shard in names.items():
        if name not in tensors or tensors[name].file.name != shard:
            raise TensorError(f"{index} puts tensor {name} into {shard}, which does not hold it; download both again")
    return tensors


def _merge(parts: Iterable[dict[str, TensorInfo]]) -> dict[str, TensorInfo]:
    merged: dict[str, TensorInfo] = {}
    for part in parts:
        for name, info in part.items():
            if name in merged:
                raise TensorError(f"tensor {name} is in both {merged[name].file} and {info.file.name}; remove one")
            merged[name] = info
    return merged


def _file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise TensorError(f"{path} cannot be read: {error.strerror}") from None


def _refuse_lookalikes(path: Path, start: bytes) -> None:
    if start.startswith(b"version https://git-lfs"):
        raise TensorError(f"{path} is a Git LFS pointer, not the weights; run 'git lfs pull' or download the file")
    if start.lstrip().lower().startswith((b"<!doctype", b"<html")):
        raise TensorError(f"{path} is a web page, not weights; download the file itself")


def _parse(path: Path, raw: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for name, value in pairs:
            if name in seen:
                raise TensorError(f"{path}: duplicate key {name!r} in the header; the file is damaged")
            seen[name] = value
        return seen

    try:
        entries = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        if isinstance(error, TensorError):
            raise
        raise TensorError(f"{path}: the header is not valid JSON ({error}); the file is damaged") from None
    if not isinstance(entries, dict):
        raise TensorError(f"{path}: the header is not a JSON object; the file is damaged")
    return entries


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _entry(path: Path, name: str, entry: object, data: int) -> TensorInfo:
    bad = f"{path}: tensor {name} has an invalid header entry"
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise TensorError(f"{bad} (it needs dtype, shape and data_offsets)")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or not isinstance(shape, list) or not all(map(_is_count, shape)):
        raise TensorError(f"{bad} (dtype {dtype!r}, shape {shape!r})")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)):
        raise TensorError(f"{bad} (data_offsets {offsets!r})")
    if dtype not in ITEM_BYTES:
        raise TensorError(f"{path}: tensor {name} has dtype {dtype}, which this version does not know")
    begin, end = offsets
    want = math.prod(shape) * ITEM_BYTES[dtype]
    if end - begin != want:
        raise TensorError(f"{path}: tensor {name} spans {end - begin} bytes, but {dtype} {shape} needs {want}")
    return TensorInfo(name, dtype, tuple(shape), path, data + begin, data + end)


def _check_layout(path: Path, tensors: list[TensorInfo], data: int, size: int) -> None:
    at = data
    for info in sorted(tensors, key=lambda t: (t.begin, t.end)):
        if info.begin != at:
            what = "overlaps the tensor before it" if info.begin < at else f"leaves a gap of {info.begin - at} bytes"
            raise TensorError(f"{path}: tensor {info.name} {what}; the file is damaged")
        at = info.end
    if at > size:
        last = max(tensors, key=lambda t: t.end).name
        raise TensorError(
            f"{path} is truncated by {at - size} bytes (tensor {last} ends past the file); fetch it again"
        )
    if at < size:
        raise TensorError(f"{path} has {size - at} bytes after its last tensor; the file is damaged")


@dataclass(frozen=True)
class TensorSpec:
    """One tensor to be written."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def encode_header(specs: Iterable[TensorSpec], metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes in front of the data, for tensors that follow in this order; padded so that data starts at 8 bytes."""
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for spec in specs:
        if spec.name in entries:
            raise TensorError(f"tensor {spec.name} would be written twice; two tensors of the source get this name")
        entries[spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [at, at + spec.nbytes]}
        at += spec.nbytes
    raw = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    raw += b" " * (-len(raw) % 8)
    if len(raw) > MAX_HEADER:
        raise TensorError(
            f"the header would take {len(raw)} bytes, but readers stop at {MAX_HEADER}; write fewer tensors"
        )
    return struct.pack("<Q", len(raw)) + raw
