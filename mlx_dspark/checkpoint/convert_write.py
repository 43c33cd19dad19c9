"""Streams a plan's tensors into one safetensors file and records what was written.

Knows items and bytes; takes a fixed amount of memory whatever the tensors' sizes. Decides nothing about the source.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mlx_dspark.checkpoint.convert_plan import Item, Plan
from mlx_dspark.checkpoint.convert_source import PIECE, Source
from mlx_dspark.checkpoint.nvfp4 import BLOCK, Decoder, repeat_scales
from mlx_dspark.checkpoint.safetensors import encode_header
from mlx_dspark.checkpoint.stream_file import StreamFile
from mlx_dspark.errors import TensorError

Progress = Callable[[int, int], None]
STEP = 16 << 20


@dataclass
class Digests:
    """sha256 of what went in (by tensor name) and of what came out, for one item; empty where hashing is off."""

    sources: dict[str, str] = field(default_factory=dict)
    result: str | None = None


class _Meter:
    """Reports progress about every STEP bytes."""

    def __init__(self, report: Progress | None, total: int):
        self.report, self.total, self.done, self._next = report, total, 0, 0

    def add(self, count: int) -> None:
        self.done += count
        if self.report and (self.done >= self._next or self.done == self.total):
            self.report(self.done, self.total)
            self._next = self.done + STEP


def write_tensors(
    path: Path, plan: Plan, source: Source, metadata: dict[str, str], *, hashes: bool, progress: Progress | None
) -> dict[str, Digests]:
    """Write every item of the plan to `path` and make it durable; digests by result name."""
    meter, digests = _Meter(progress, plan.nbytes), {}
    header = encode_header([item.spec for item in plan.items], metadata)
    with StreamFile(path) as out:
        out.write(header)
        for item in plan.items:
            found = digests[item.spec.name] = Digests()
            write = {"decoded": _decode, "spread": _spread}.get(item.how, _copy)
            write(out, source, item, found if hashes else None, meter)
        if out.position != len(header) + plan.nbytes:
            raise TensorError(
                f"{path}: {out.position} bytes were written where the header promises {len(header) + plan.nbytes}; "
                "this is a fault of the converter, so report it"
            )
    return digests


def _copy(out: StreamFile, source: Source, item: Item, found: Digests | None, meter: _Meter) -> None:
    (info,) = item.sources
    digest = hashlib.sha256()
    for at in range(0, info.nbytes, PIECE):
        view = out.room(min(PIECE, info.nbytes - at))
        source.read_into(info, at, view)
        if found is not None:
            digest.update(view)
        out.advance(view.nbytes)
        meter.add(view.nbytes)
    if found is not None:
        found.result = found.sources[info.name] = digest.hexdigest()


def _decode(out: StreamFile, source: Source, item: Item, found: Digests | None, meter: _Meter) -> None:
    weight, scales, scale = item.sources
    decoder = Decoder(np.float32(item.tensor_scale), item.group, reciprocal=item.reciprocal)
    per = decoder.bytes_per_scale
    codes, blocks = np.empty(BLOCK, np.uint8), np.empty(BLOCK // per, np.uint8)
    hashed = [hashlib.sha256() for _ in range(3)]
    for at in range(0, weight.nbytes, BLOCK):
        count = min(BLOCK, weight.nbytes - at)
        some, few = codes[:count], blocks[: count // per]
        source.read_into(weight, at, some.data)
        source.read_into(scales, at // per, few.data)
        view = out.room(count * 4)
        decoder.decode(some, few, np.frombuffer(view, "<u4"))
        if found is not None:
            for digest, data in zip(hashed, (some.data, few.data, view), strict=True):
                digest.update(data)
        out.advance(view.nbytes)
        meter.add(view.nbytes)
    if found is not None:
        one = hashlib.sha256(source.read(scale)).hexdigest()
        found.sources = {weight.name: hashed[0].hexdigest(), scales.name: hashed[1].hexdigest(), scale.name: one}
        found.result = hashed[2].hexdigest()


def _spread(out: StreamFile, source: Source, item: Item, found: Digests | None, meter: _Meter) -> None:
    (info,) = item.sources
    before, after = hashlib.sha256(), hashlib.sha256()
    for piece in source.pieces(info):
        result = repeat_scales(np.frombuffer(piece, np.uint8), item.times).data
        out.write(result)
        if found is not None:
            before.update(piece)
            after.update(result)
        meter.add(result.nbytes)
    if found is not None:
        found.sources, found.result = {info.name: before.hexdigest()}, after.hexdigest()
