"""Floats by rational arithmetic: what the roundings must give, without a float anywhere on the way."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

MAGNITUDES = [Fraction(n, 2) for n in (0, 1, 2, 3, 4, 6, 8, 12)]


def round_to(value: Fraction, bits: int) -> Fraction:
    """Nearest float of `bits` significant bits and 8 exponent bits, ties to even; `round` of a Fraction does that."""
    if value == 0:
        return value
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    if Fraction(2) ** exponent > value:
        exponent -= 1
    quantum = Fraction(2) ** (max(exponent, -126) - (bits - 1))
    return round(value / quantum) * quantum


def e4m3(code: int) -> Fraction:
    exponent, mantissa = code >> 3, code & 7
    return Fraction(mantissa, 512) if exponent == 0 else Fraction(8 + mantissa, 8) * Fraction(2) ** (exponent - 7)


def bf16_bits(value: Fraction) -> int:
    """Bits of a non-negative value that a bfloat16 holds exactly."""
    as_float = np.float32(float(value))
    assert Fraction(float(as_float)) == value
    bits = int(as_float.view(np.uint32))
    assert bits & 0xFFFF == 0
    return bits >> 16
