"""Runs the body of an `mx.fast.metal_kernel` on the CPU, to catch what can be caught without a GPU.

`metal_kernel` takes the arguments of `mx.fast.metal_kernel` and what it returns takes those of MLX's kernels, so
either can be handed to code that builds and launches one. Every launch runs under several schedules of its threads,
whose outputs must agree bit for bit. Outputs and threadgroup memory start as NaN. See docs/metal.md for what this
cannot show.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from metal_emu.compiler import CompileError, load, missing
from metal_emu.translate import TYPES, Argument, Template, translate
from numpy.typing import NDArray

__all__ = ["CompileError", "KernelFault", "OrderDependence", "metal_kernel", "missing"]

SCHEDULES = (0, 1, 2, 3)  # in order, backwards, two shuffles
POISON = 0xFF
Bytes = NDArray[np.uint8]
Size = tuple[int, int, int]


class KernelFault(Exception):
    """A kernel indexed outside a buffer or an array, or its threads can never meet."""


class OrderDependence(Exception):
    """Two schedules gave different bits: a race, or a barrier too few."""


@dataclass(frozen=True)
class Kernel:
    """A kernel ready to launch; the emulator's counterpart of what `mx.fast.metal_kernel` returns."""

    input_names: Sequence[str]
    output_names: Sequence[str]
    source: str
    header: str

    def __call__(
        self,
        *,
        inputs: Sequence[mx.array],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[mx.Dtype],
        grid: Size,
        threadgroup: Size,
        template: Template = (),
        init_value: float | None = None,
    ) -> list[mx.array]:
        """Outputs of one launch. Raises CompileError, KernelFault or OrderDependence."""
        ins = [Argument(n, x.dtype, x.shape) for n, x in zip(self.input_names, inputs, strict=True)]
        outs = [Argument(n, d, tuple(s)) for n, d, s in
                zip(self.output_names, output_dtypes, output_shapes, strict=True)]  # fmt: skip
        library = load(translate(self.source, self.header, template, ins, outs))
        given = [_bytes(x) for x in inputs]
        blank = [_blank(out, init_value) for out in outs]
        results = []
        for schedule in SCHEDULES:
            buffers = [x.copy() for x in (*given, *blank)]
            _run(library, buffers, [math.prod(a.shape) for a in (*ins, *outs)], (grid, threadgroup), schedule)
            results.append(buffers[len(ins) :])
        for other in results[1:]:
            for out, a, b in zip(outs, results[0], other, strict=True):
                if a.tobytes() != b.tobytes():
                    raise OrderDependence(f"{out.name} depends on the order of threads: a race or a missing barrier")
        return [mx.array(r).view(o.dtype).reshape(o.shape) for r, o in zip(results[0], outs, strict=True)]


def metal_kernel(
    name: str,
    input_names: Sequence[str],
    output_names: Sequence[str],
    source: str,
    header: str = "",
    ensure_row_contiguous: bool = True,
    atomic_outputs: bool = False,
) -> Kernel:
    """The arguments of `mx.fast.metal_kernel`; strided inputs and atomic outputs are not emulated."""
    if not ensure_row_contiguous or atomic_outputs:
        raise NotImplementedError(f"{name}: strided inputs and atomic outputs are not emulated")
    return Kernel(input_names, output_names, source, header)


def _run(
    library: ctypes.CDLL, buffers: Sequence[Bytes], counts: Sequence[int], size: tuple[Size, Size], schedule: int
) -> None:
    pointers = (ctypes.c_void_p * len(buffers))(*(b.ctypes.data for b in buffers))
    sizes = (ctypes.c_size_t * len(buffers))(*counts)
    grid, threadgroup = ((ctypes.c_uint * 3)(*s) for s in size)
    fault = library.emu_run(pointers, sizes, grid, threadgroup, ctypes.c_int(schedule))
    if fault is not None:
        raise KernelFault(fault.decode())


def _bytes(x: mx.array) -> Bytes:
    assert x.dtype in TYPES, f"{x.dtype} is not emulated"
    flat = mx.contiguous(x).reshape(-1)
    return np.array(flat.astype(mx.uint8) if x.dtype == mx.bool_ else flat.view(mx.uint8))


def _blank(out: Argument, init_value: float | None) -> Bytes:
    if init_value is not None:
        return _bytes(mx.full(out.shape, init_value, out.dtype))
    return np.full(math.prod(out.shape) * out.dtype.size, POISON, np.uint8)
