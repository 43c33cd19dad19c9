"""The decode tables against exact rational arithmetic, and against independent definitions of both small floats."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from exact import MAGNITUDES, bf16_bits, e4m3, round_to

from mlx_dspark.checkpoint import nvfp4


def exact_codes(scale: np.float32, *, reciprocal: bool) -> np.ndarray:
    """[256, 16] bits by rational arithmetic, signs by logic; NaN scales are left 0."""
    table, tensor_scale = np.zeros((256, 16), np.uint16), Fraction(float(scale))
    for code in range(0x7F):
        s = e4m3(code)
        factor = round_to(s / tensor_scale if reciprocal else s * tensor_scale, 24)
        for magnitude, v in enumerate(MAGNITUDES):
            bits = bf16_bits(round_to(round_to(v * factor, 24), 8))
            for sign in (0, 1):
                table[code | sign << 7, magnitude] = bits | sign << 15
                table[code | sign << 7, magnitude | 8] = bits | (1 - sign) << 15
    return table


def check_all_pairs(scale: np.float32, *, reciprocal: bool = False) -> None:
    """All 256 x 256 (block scale, byte) pairs, both values of each."""
    exact = exact_codes(scale, reciprocal=reciprocal)
    byte = np.arange(256)
    want = np.stack([exact[:, byte & 15], exact[:, byte >> 4]], -1)
    got = nvfp4.pair_table(scale, reciprocal=reciprocal).view("<u2").reshape(256, 256, 2)
    valid = np.array([s for s in range(256) if s & 0x7F != 0x7F])
    assert np.array_equal(got[valid], want[valid])
    assert (np.abs(got[[0x7F, 0xFF]] & 0x7FFF)[..., 0] > 0x7F80).all()


def scales(count: int) -> list[np.float32]:
    """bf16 maxima over both normalisations, random float32, and the smallest."""
    mantissas = (np.arange(128, 256) / 128).astype(np.float32)
    random = np.random.default_rng(3)
    other = np.exp2(random.uniform(-24, 0, 60)).astype(np.float32)
    edges = np.array([1.0, 2.0**-10, 0.37, 2.0**-126, 2.0**-149, 1e-40], np.float32)
    known = np.array([175, 245, 133, 161, 203, 217], np.float32) / np.float32(128) / np.float32(2688)
    every = [*known, *edges, *(mantissas / np.float32(2688)), *other, *(mantissas[::4] / np.float32(1536))]
    return every[:count]


@pytest.mark.parametrize("scale", scales(12))
def test_equals_exact_arithmetic_on_all_pairs(scale: np.float32) -> None:
    check_all_pairs(scale)


@pytest.mark.slow
def test_equals_exact_arithmetic_for_many_tensor_scales() -> None:
    many = scales(300)
    assert len(many) >= 200
    for scale in many:
        check_all_pairs(scale)


@pytest.mark.parametrize("scale", scales(6))
def test_the_reciprocal_form_divides(scale: np.float32) -> None:
    check_all_pairs(np.float32(1) / scale, reciprocal=True)


@pytest.mark.slow
def test_the_reciprocal_form_divides_for_many_tensor_scales() -> None:
    many = [np.float32(1) / scale for scale in scales(300) if scale > 1e-30]
    assert len(many) >= 200
    for scale in many:
        check_all_pairs(scale, reciprocal=True)


def test_the_order_of_roundings_is_visible() -> None:
    """For this scale bf16(f32(v * s * g)) differs, so the tests above tell the orders apart."""
    scale = np.float32(175 / 128) / np.float32(2688)
    once = nvfp4.E2M1[None, :].astype(np.float64) * nvfp4.E4M3[:0x7F, None] * float(scale)
    other = nvfp4.round_to_bf16(once.astype(np.float32))
    assert (other != nvfp4.code_table(scale)[:0x7F]).any()


@pytest.mark.parametrize("columns", [16, 32, 48])
@pytest.mark.parametrize("scale", [2.0**-10, 0.37])
@pytest.mark.parametrize("code", [0x01, 0x38, 0x7E])
def test_every_code_nibble_order_and_sign(columns: int, scale: float, code: int) -> None:
    """Even columns are low nibbles; equal to float64 rounded once here; -0 stays -0."""
    row = np.resize(np.arange(16, dtype=np.uint8), columns)
    packed = (row[0::2] | row[1::2] << 4).astype(np.uint8)
    blocks = np.full(columns // 16, code, np.uint8)
    out = np.empty(packed.size, "<u4")
    nvfp4.Decoder(np.float32(scale), 16).decode(packed, blocks, out)
    value = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    exact = value[row] * {0x01: 2.0**-9, 0x38: 1.0, 0x7E: 448.0}[code] * float(np.float32(scale))
    want = [bf16_bits(round_to(abs(Fraction(x)), 8)) | (0x8000 if np.signbit(x) else 0) for x in exact]
    assert out.view("<u2").tolist() == want
    assert out.view("<u2")[8] == 0x8000


@pytest.mark.parametrize("group", [16, 32])
@pytest.mark.parametrize("count", [1, 3, nvfp4.BLOCK // 16 + 1])
def test_pieces_and_the_slow_twin_agree(group: int, count: int) -> None:
    random = np.random.default_rng(group + count)
    packed = random.integers(0, 256, count * group // 2, np.uint8)
    blocks = random.integers(0, 0x7F, count, np.uint8)
    for reciprocal, scale in ((False, np.float32(0.0007)), (True, np.float32(1234.5))):
        out = np.empty(packed.size, "<u4")
        nvfp4.Decoder(scale, group, reciprocal=reciprocal).decode(packed, blocks, out)
        plain = nvfp4.decode_plainly(packed, blocks, scale, group, reciprocal=reciprocal)
        assert np.array_equal(out.view("<u2"), plain)


def test_overflow_is_foreseen() -> None:
    limit = np.float32(2.0**128 / 2688)
    assert not nvfp4.overflows(np.float32(limit * 0.99), reciprocal=False)
    assert nvfp4.overflows(np.float32(limit), reciprocal=False)
    assert nvfp4.overflows(np.float32(3e38), reciprocal=False)
    assert nvfp4.overflows(np.float32(1e-37), reciprocal=True)


def test_nan_scales_are_found_and_repeats_are_exact() -> None:
    codes = np.array([0, 0x7F, 0x80, 0xFF, 0x7E], np.uint8)
    assert nvfp4.nan_scales(codes).tolist() == [1, 3]
    assert nvfp4.repeat_scales(codes, 2).tolist() == [0, 0, 0x7F, 0x7F, 0x80, 0x80, 0xFF, 0xFF, 0x7E, 0x7E]
