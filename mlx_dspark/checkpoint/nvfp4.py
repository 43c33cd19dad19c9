"""NVFP4 arithmetic: two 4-bit codes a byte, an E4M3 scale a block, one float32 scale a tensor -> bfloat16.

Knows the bit layouts and the order of roundings; numpy only. Knows no tensor names, files or configs.

ModelOpt stores the tensor scale g and decodes bf16(f32(v * f32(s * g))); compressed-tensors stores its reciprocal G and
decodes bf16(f32(v * f32(s / G))). The sign of zero is kept. bfloat16 is carried as its 16 bits in uint16.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Bits = NDArray[np.uint16]
Table = NDArray[np.uint32]
Floats = NDArray[np.float32]

NAN_CODE = 0x7F  # with either sign; E4M3 has no infinities
BLOCK = 1 << 16  # bytes decoded at a time: index and output stay in the processor's cache


def _e2m1() -> Floats:
    magnitudes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    return np.concatenate([magnitudes, -magnitudes])


def _e4m3() -> Floats:
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    small = mantissa * 2.0**-9
    normal = (8 + mantissa) / 8 * 2.0 ** (exponent - 7)
    value = np.where(exponent == 0, small, normal)
    value = np.where(code & 127 == NAN_CODE, np.nan, value)
    return np.where(code & 128, -value, value).astype(np.float32)


E2M1 = _e2m1()
"""Value of each 4-bit code; code 8 is -0."""
E4M3 = _e4m3()
"""Value of each block-scale code; 0x7F and 0xFF are NaN."""


def round_to_bf16(values: Floats) -> Bits:
    """Round to nearest, ties to even; the bits. NaN is not expected here."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)


def block_factors(tensor_scale: np.float32, *, reciprocal: bool) -> Floats:
    """float32 factor of each of the 256 block-scale codes: s*g, or s/G where the tensor stores the reciprocal."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return np.divide(E4M3, tensor_scale) if reciprocal else np.multiply(E4M3, tensor_scale)


def overflows(tensor_scale: np.float32, *, reciprocal: bool) -> bool:
    """Whether the largest code under the largest block scale leaves bfloat16's range."""
    with np.errstate(over="ignore", under="ignore"):
        factor = block_factors(tensor_scale, reciprocal=reciprocal)[0x7E]
        product = np.multiply(E2M1[7], factor, dtype=np.float32)
    return bool(round_to_bf16(np.array([product], np.float32))[0] & 0x7FFF >= 0x7F80)


def code_table(tensor_scale: np.float32, *, reciprocal: bool = False) -> Bits:
    """bfloat16 bits of every (block scale, 4-bit code): [256, 16]."""
    factors = block_factors(tensor_scale, reciprocal=reciprocal)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return round_to_bf16(np.multiply(factors[:, None], E2M1[None, :], dtype=np.float32))


def pair_table(tensor_scale: np.float32, *, reciprocal: bool = False) -> Table:
    """Both bfloat16 values of every (block scale, byte), flat at scale * 256 + byte; the low nibble comes first."""
    codes = code_table(tensor_scale, reciprocal=reciprocal).astype(np.uint32)
    byte = np.arange(256)
    return (codes[:, byte & 15] | (codes[:, byte >> 4] << np.uint32(16))).astype("<u4").reshape(-1)


class Decoder:
    """Decodes one tensor's bytes in pieces through its pair table; memory does not grow with the tensor."""

    def __init__(self, tensor_scale: np.float32, group: int, *, reciprocal: bool = False):
        self.bytes_per_scale = group // 2
        self._table = pair_table(tensor_scale, reciprocal=reciprocal)
        shape = (BLOCK // self.bytes_per_scale, self.bytes_per_scale)
        self._entry: Bits = np.empty(shape, np.uint16)
        self._index: NDArray[np.intp] = np.empty(shape, np.intp)

    def decode(self, weight: Bytes, scales: Bytes, out: Table) -> None:
        """`out[i]` = the two values of weight byte i; `scales` are those of these bytes."""
        step = BLOCK // self.bytes_per_scale
        for first in range(0, scales.size, step):
            part = scales[first : first + step]
            entry, index = self._entry[: part.size], self._index[: part.size]
            span = slice(first * self.bytes_per_scale, (first + part.size) * self.bytes_per_scale)
            np.add(weight[span].reshape(entry.shape), (part.astype(np.uint16) << 8)[:, None], out=entry)
            index[...] = entry
            np.take(self._table, index.reshape(-1), out=out[span], mode="clip")  # unlike "raise", without a copy


def decode_plainly(
    weight: Bytes, scales: Bytes, tensor_scale: np.float32, group: int, *, reciprocal: bool = False
) -> Bits:
    """The same values by arithmetic on each element, without a table: the slow twin that `--verify` uses."""
    codes = np.empty((weight.size, 2), np.uint8)
    codes[:, 0], codes[:, 1] = weight & 15, weight >> 4
    factors = block_factors(tensor_scale, reciprocal=reciprocal)[scales]
    values = E2M1[codes.reshape(scales.size, group)]
    with np.errstate(under="ignore"):
        np.multiply(values, factors[:, None], out=values)
    return round_to_bf16(values.reshape(-1))


def nan_scales(scales: Bytes) -> NDArray[Any]:
    """Positions of NaN block scales."""
    return np.flatnonzero((scales & 0x7F) == NAN_CODE)


def repeat_scales(scales: Bytes, times: int) -> Bytes:
    """Block scales for blocks `times` smaller: nothing is rounded, each block's scale is written `times` times."""
    return np.repeat(scales, times)
