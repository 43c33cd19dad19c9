"""Native products of one matrix: accuracy, bits that depend on the row alone, bad numbers and bad inputs."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from layer_twin import DTYPES, assert_same_bits, native, needs_native, usable_here, using, wide
from product_twin import (
    AFFINE4,
    DENSE,
    FORMS,
    NVFP4,
    QUANTIZED,
    Form,
    Stored,
    normal,
    nvfp4_values,
    relative_error,
    stored,
)

pytestmark = needs_native

# The largest error over sum |x| (|code scale| + |bias|), as the docstrings state it.
LIMIT = {"i16": 1e-4, "fp32": 1e-6}
OUTLIER_LIMIT = {"i16": 2e-4, "fp32": 1e-6}


def sizes_in(form: Form) -> tuple[int, ...]:
    """Inputs: fewer than a block, no multiple of one, more than the kernels hold at a time."""
    if not form.bits:
        return 1, 7, 16, 130, 1000
    return (max(form.group, 32), 3 * max(form.group, 32), 128, 64 * 67 if form.group <= 64 else 128 * 35)


@pytest.mark.parametrize("activation", ["i16", "fp32"])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_products_match_float64(form: Form, activation: str) -> None:
    for size in sizes_in(form):
        for out in (1, 7, 19, 37):
            matrix = stored(form, out, size)
            for count in (1, 2, 3, 4, 5, 6, 7, 8, 9, 33):
                for dtype in DTYPES if count == 5 else (mx.float32,):
                    x = normal(count, size, dtype=dtype, seed=count)
                    y = matrix.product(x, activation)
                    assert (y.dtype, y.shape) == (dtype, (count, out))
                    assert relative_error(y, wide(x), matrix) < LIMIT[activation]


@pytest.mark.parametrize("outlier", [30.0, 1e2, 1e3, 3e4, 1e6])
@pytest.mark.parametrize("form", QUANTIZED, ids=str)
def test_an_outlier_among_the_inputs_costs_only_its_share(form: Form, outlier: float) -> None:
    matrix = stored(form, 256, 512)
    x = normal(6, 512)
    x[:4, 100] = outlier
    x[1, 110] = -outlier
    x[2, 300] = outlier / 7
    x[4] = mx.square(mx.maximum(x[4], 0))
    for activation, limit in OUTLIER_LIMIT.items():
        assert relative_error(matrix.product(x, activation), wide(x), matrix) < limit


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("size", [1e-33, 1e-20, 1e35])
def test_very_small_and_large_inputs(form: Form, size: float) -> None:
    matrix = stored(form, 9, 256)
    x = normal(2, 256) * size
    assert relative_error(matrix.product(x), wide(x), matrix) < 1e-3 if size == 1e-33 else LIMIT["i16"]


@pytest.mark.parametrize("activation", ["i16", "fp32"])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_row_has_its_bits_at_every_width_and_thread_count(form: Form, activation: str) -> None:
    matrix = stored(form, 203, 640)
    x = normal(64, 640, dtype=mx.bfloat16).astype(mx.float32)
    with using("auto", 1):
        alone = mx.concatenate([matrix.product(x[i : i + 1], activation) for i in range(64)])
        mx.eval(alone)
    for threads in (1, 2, 3):
        with using("auto", threads):
            for width in range(1, 65):
                y = matrix.product(x[64 - width :], activation)
                assert_same_bits(y, alone[64 - width :], f"{width} rows, {threads} threads")


@pytest.mark.parametrize("form", [AFFINE4, DENSE], ids=str)
def test_a_row_has_its_bits_among_thousands(form: Form) -> None:
    matrix = stored(form, 40, 64)
    x = normal(2100, 64)
    some = mx.array([0, 1023, 1024, 1030, 2047, 2048, 2099])
    assert_same_bits(matrix.product(x)[some], matrix.product(x[some]))


@pytest.mark.parametrize("activation", ["i16", "fp32"])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_all_instruction_sets_give_the_same_bits(form: Form, activation: str) -> None:
    usable = [name for name in native.features()["simd_built"] if usable_here(name)]
    if usable == ["portable"]:
        pytest.skip("this CPU runs the portable code alone")
    for size in sizes_in(form):
        matrix = stored(form, 27, size)
        for dtype in DTYPES:
            x = normal(11, size, dtype=dtype) * mx.array([1e-3, 1.0, 50.0, 2e3] * 2 + [7.0] * 3)[:, None].astype(dtype)
            got = {}
            for simd in usable:
                with using(simd, 1):
                    got[simd] = matrix.product(x, activation)
                    mx.eval(got[simd])
            for simd in usable:
                assert_same_bits(got[simd], got["portable"], f"{simd}, {size} inputs, {dtype}")


@pytest.mark.parametrize("simd", ["auto", "portable"])
@pytest.mark.parametrize("activation", ["i16", "fp32"])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_nan_and_infinity_stay_in_their_row(form: Form, activation: str, simd: str) -> None:
    matrix = stored(form, 21, 384)
    x = normal(9, 384)
    clean = matrix.product(x, activation)
    mx.eval(clean)
    x[1, 300] = float("nan")
    x[4, 5] = float("inf")
    x[6, 5] = float("-inf")
    x[6, 200] = float("inf")
    with using(simd, 1):
        y = matrix.product(x, activation)
        mx.eval(y)
    with np.errstate(invalid="ignore"):
        expected = wide(x) @ matrix.values.T
    for row in (1, 4, 6):
        sure = np.abs(matrix.values[:, [5, 200, 300]]).min(1) > 1e-6  # a weight of about 0 times infinity
        np.testing.assert_array_equal(wide(y[row])[sure], expected[row][sure])
        assert not np.isfinite(wide(y[row])).any()
    untouched = mx.array([0, 2, 3, 5, 7, 8])
    assert_same_bits(y[untouched], clean[untouched])


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_views_are_read_as_what_they_show(form: Form) -> None:
    whole = stored(form, 24, 512)
    x = normal(12, 3, 512)
    expected = whole.product(mx.contiguous(x[::2].swapaxes(0, 1)))
    assert_same_bits(whole.product(x[::2].swapaxes(0, 1)), expected)
    assert_same_bits(whole.product(x[::2]), mx.contiguous(expected.swapaxes(0, 1)))
    assert_same_bits(whole.product(mx.broadcast_to(x[0, :1], (5, 512))), mx.repeat(whole.product(x[0, :1]), 5, axis=0))
    half = Stored(form, tuple(a[::2] for a in whole.arrays), whole.values[::2], whole.sizes[::2])
    assert_same_bits(half.product(x), whole.product(x)[..., ::2])
    column_major = Stored(form, tuple(mx.contiguous(a.T).T for a in whole.arrays), whole.values, whole.sizes)
    assert_same_bits(column_major.product(x), whole.product(x))


def test_nvfp4_is_what_mlx_dequantizes() -> None:
    matrix = stored(NVFP4, 33, 256)
    values = mx.dequantize(*matrix.arrays, group_size=16, bits=4, mode="nvfp4", dtype=mx.float32)
    np.testing.assert_array_equal(wide(values), matrix.values)


def test_every_nvfp4_scale_and_code() -> None:
    """All 256 scale bytes with all 16 codes, NaN bytes included, negative scales as they say."""
    scales = mx.arange(256, dtype=mx.uint32).astype(mx.uint8)[:, None]
    codes = mx.array([[0x76543210, 0xFEDCBA98]] * 256, dtype=mx.uint32)
    expected = nvfp4_values(codes, scales)
    expected[[127, 255]] = np.nan
    for simd in ("auto", "portable"):
        with using(simd, 1):
            for activation in ("i16", "fp32"):
                y = native.qmm(mx.eye(16), codes, scales, group_size=16, bits=4, mode="nvfp4", activation=activation)
                np.testing.assert_array_equal(wide(y).T, expected)


def test_alpha_multiplies_before_rounding() -> None:
    matrix = stored(NVFP4, 17, 128)
    x = normal(4, 128, dtype=mx.bfloat16)
    exact = matrix.product(x.astype(mx.float32)) * mx.array(0.0123)
    assert_same_bits(matrix.product(x, alpha=0.0123), exact.astype(mx.bfloat16))


def test_shapes_around_the_rows() -> None:
    matrix = stored(AFFINE4, 8, 64)
    x = normal(2, 3, 4, 64)
    assert_same_bits(matrix.product(x).reshape(24, 8), matrix.product(x.reshape(24, 64)))
    assert matrix.product(x[0, 0, 0]).shape == (8,)
    assert matrix.product(x[:0]).shape == (0, 3, 4, 8)


def test_products_compose_with_lazy_operations() -> None:
    matrix = stored(AFFINE4, 64, 64)
    x = normal(3, 64)
    y = x
    for _ in range(3):
        y = matrix.product(y) + 0.0
    z = x
    for _ in range(3):
        z = matrix.product(z)
        mx.eval(z)
    assert_same_bits(y, z)


def test_bad_inputs_are_refused_in_words() -> None:
    w, scales, biases = stored(AFFINE4, 8, 128).arrays
    x = normal(2, 128)
    for call, words in (
        (lambda: native.qmm(x[:, :64], w, scales, biases), "128 inputs"),
        (lambda: native.qmm(x.astype(mx.int32), w, scales, biases), "float32, bfloat16 or float16"),
        (lambda: native.qmm(x, w.astype(mx.int32), scales, biases), "uint32"),
        (lambda: native.qmm(x, w, scales[:, :1], biases), "2 groups"),
        (lambda: native.qmm(x, w, scales, biases.astype(mx.float16)), "scales' dtype"),
        (lambda: native.qmm(x, w, scales), "need biases"),
        (lambda: native.qmm(x, w, scales, biases, bits=3), "bits"),
        (lambda: native.qmm(x, w, scales, biases, group_size=48), "group_size"),
        (lambda: native.qmm(x, w, scales, biases, mode="mxfp4"), "mode"),
        (lambda: native.qmm(x, w, scales, biases, mode="nvfp4"), "group_size 16"),
        (lambda: native.qmm(x, w, scales, biases, activation="i8"), "activation"),
        (lambda: native.qmm(x, w[None], scales, biases), "2 axes"),
        (lambda: native.mm(x, normal(5, 64)), "64 inputs"),
        (lambda: native.mm(x, normal(5, 128).astype(mx.int8)), "float32, bfloat16 or float16"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
