"""What tests of the native products share: matrices in every stored form with the float64 values they stand for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from layer_twin import HALF_ULP, native, wide

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Form:
    """How a matrix is stored; bits 0 is dense."""

    bits: int
    group: int = 0
    mode: str = "affine"
    dtype: mx.Dtype = mx.bfloat16  # of dense values, or of scales and biases

    def __str__(self) -> str:
        kind = "dense" if not self.bits else f"{self.mode}{self.bits}-{self.group}"
        return kind if self.mode == "nvfp4" else f"{kind}-{str(self.dtype).rpartition('.')[2]}"


AFFINE4 = Form(4, 64)
NVFP4 = Form(4, 16, "nvfp4")
DENSE = Form(0)
QUANTIZED = (
    AFFINE4,
    Form(8, 64),
    Form(4, 64, dtype=mx.float32),
    Form(4, 32, dtype=mx.float16),
    Form(8, 32, dtype=mx.float32),
    Form(4, 128),
    Form(8, 128, dtype=mx.float16),
    NVFP4,
)
FORMS = (*QUANTIZED, DENSE, Form(0, dtype=mx.float32), Form(0, dtype=mx.float16))


@dataclass(frozen=True)
class Stored:
    """A matrix [.., out, in]: its arrays, and its values in float64."""

    form: Form
    arrays: tuple[mx.array, ...]
    values: Array

    def options(self) -> dict[str, Any]:
        return {"group_size": self.form.group, "bits": self.form.bits, "mode": self.form.mode}

    def expert(self, index: int) -> Stored:
        return Stored(self.form, tuple(a[index] for a in self.arrays), self.values[index])

    def argument(self) -> Any:
        """As `moe` and `mlp` take it."""
        return self.arrays if self.form.bits else self.arrays[0]

    def product(self, x: mx.array, activation: str = "i16", **options: Any) -> mx.array:
        if not self.form.bits:
            return native.mm(x, *self.arrays)
        return native.qmm(x, *self.arrays, **self.options(), activation=activation, **options)

    def gather(self, x: mx.array, ids: mx.array) -> mx.array:
        if not self.form.bits:
            return native.gather_mm(x, *self.arrays, ids)
        w, scales, *biases = self.arrays
        return native.gather_qmm(x, w, scales, biases[0] if biases else None, ids, **self.options())


def normal(*shape: int, dtype: mx.Dtype = mx.float32, seed: int = 0) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)


def stored(form: Form, *shape: int, seed: int = 1) -> Stored:
    """A random matrix of `shape` [.., out, in] in that form."""
    values = normal(*shape, seed=seed) * 0.1
    if not form.bits:
        dense = values.astype(form.dtype)
        return Stored(form, (dense,), wide(dense))
    arrays = mx.quantize(values, group_size=form.group, bits=form.bits, mode=form.mode)
    if form.mode == "nvfp4":
        return Stored(form, tuple(arrays), nvfp4_values(*arrays))
    w, scales, biases = arrays[0], arrays[1].astype(form.dtype), arrays[2].astype(form.dtype)
    return Stored(form, (w, scales, biases), affine_values(w, scales, biases, form.bits, form.group))


def affine_values(w: mx.array, scales: mx.array, biases: mx.array, bits: int, group: int) -> Array:
    words = np.array(w)
    codes = (words[..., None] >> (bits * np.arange(32 // bits, dtype=np.uint32))) & (2**bits - 1)
    codes = codes.reshape(*words.shape[:-1], -1).astype(np.float64)
    return codes * np.repeat(wide(scales), group, -1) + np.repeat(wide(biases), group, -1)


def nvfp4_values(w: mx.array, scales: mx.array) -> Array:
    magnitudes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    words = np.array(w)
    codes = ((words[..., None] >> (4 * np.arange(8, dtype=np.uint32))) & 15).reshape(*words.shape[:-1], -1)
    values = np.where(codes < 8, 1, -1) * magnitudes[codes % 8]
    byte = np.array(scales).astype(np.int64)
    exponent, fraction = (byte >> 3) & 15, byte & 7
    size = np.where(exponent > 0, (8 + fraction) * 2.0 ** (exponent - 10), fraction * 2.0**-9)
    return values * np.repeat(np.where(byte & 128, -size, size), 16, -1)


def relative_error(y: mx.array, x: Array, values: Array) -> float:
    """The largest error of y = x values^T, over what the terms of its sum add up to in size."""
    exact, size = x @ values.T, np.abs(x) @ np.abs(values).T
    error = np.abs(wide(y) - exact) - HALF_ULP[y.dtype] * np.abs(exact)
    return float((error / size).max())


def relu2(x: Array) -> Array:
    return np.asarray(np.maximum(x, 0) ** 2)
