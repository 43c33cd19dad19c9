"""The native table look-up and the native pick of the likeliest, against mlx's own ops."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from layer_twin import assert_same_bits, in_every_setting, native, needs_native

from mlx_dspark.ops.kernels import STOCK
from mlx_dspark.ops.linear import QuantizedEmbedding, QuantizedWeight, quantize
from mlx_dspark.ops.native import NativeEmbedding, NativeKernels

pytestmark = needs_native


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
@pytest.mark.parametrize("bits", [0, 4, 8])
@pytest.mark.parametrize(("rows", "width"), [(9, 64), (50, 192)])
def test_rows_of_a_table_have_the_bits_of_mlx(rows: int, width: int, bits: int, dtype: mx.Dtype) -> None:
    table = (mx.random.normal((rows, width), key=mx.random.key(rows)) * 3).astype(dtype)
    held = quantize(table, bits) if bits else table
    own = NativeKernels(native).embedding(held)
    assert isinstance(own, NativeEmbedding)
    for ids in ([0], [rows - 1, 3, 3, 0], list(range(rows))):
        for kind in (mx.int32, mx.uint32):
            (found,) = in_every_setting(lambda ids=ids, kind=kind: [own(mx.array(ids, kind))])  # type: ignore[misc]
            assert_same_bits(found, STOCK.embedding(held)(mx.array(ids)))


def test_a_table_it_has_no_kernel_for_keeps_mlx_own_op() -> None:
    packed = quantize(mx.ones((4, 64)), 4)
    half = mx.ones((4, 64), mx.float16)
    scaled = QuantizedWeight(packed.weight, packed.scales, packed.biases, 64, 4, tensor_scale=mx.array(2.0))
    kernels = NativeKernels(native)
    assert isinstance(kernels.embedding(scaled), QuantizedEmbedding)
    assert_same_bits(kernels.embedding(half)(mx.array([1])), half[1:2])
    with pytest.raises(ValueError, match="ids must be integers"):
        native.embed(mx.zeros(2), mx.ones((4, 64)))


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16], ids=str)
@pytest.mark.parametrize(("rows", "size"), [(1, 1), (3, 15), (8, 16), (8, 4099), (40, 6000)])
def test_the_first_of_the_largest(rows: int, size: int, dtype: mx.Dtype) -> None:
    x = (mx.random.normal((rows, size), key=mx.random.key(size)) * 2).astype(dtype)
    x = mx.concatenate([x, x], axis=1)  # every largest number twice
    (found,) = in_every_setting(lambda: [NativeKernels(native).likeliest(x)])
    assert found.dtype == mx.int32
    assert found.tolist() == np.argmax(np.array(x.astype(mx.float32)), axis=1).tolist() == STOCK.likeliest(x).tolist()


def test_a_number_that_is_none_is_never_the_likeliest() -> None:
    x = np.full((3, 40), -np.inf, np.float32)
    x[0, :] = np.nan
    x[0, 33] = -5
    x[1, 20] = np.inf
    assert native.likeliest(mx.array(x)).tolist() == [33, 20, 0]
    with pytest.raises(ValueError, match="x must be"):
        native.likeliest(mx.zeros(4))
