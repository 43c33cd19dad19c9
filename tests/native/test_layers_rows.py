"""Native row layers: RMS norm, activations, per-head norm with rope, cache append."""

from __future__ import annotations

import layer_twin as twin
import mlx.core as mx
import numpy as np
import pytest
from layer_twin import DTYPES, assert_close, assert_same_bits, in_every_setting, native, wide

pytestmark = twin.needs_native


def normal(*shape: int, dtype: mx.Dtype = mx.float32, seed: int = 0) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, 8, 33, 257, 512, 2688])
def test_rms_norm_matches_float64(size: int, dtype: mx.Dtype) -> None:
    x, w = normal(3, 5, size, dtype=dtype), normal(size, dtype=dtype, seed=1)
    for weight in (None, w, w.astype(mx.float32)):
        (y,) = in_every_setting(lambda weight=weight: [native.rms_norm(x, weight, 1e-5)])
        expected = twin.rms_norm(wide(x), None if weight is None else wide(weight), 1e-5)
        assert_close(y, expected, 1e-6, 1e-6)


def test_rms_norm_rows_do_not_depend_on_each_other() -> None:
    x, w = normal(64, 515), normal(515, seed=1)
    alone = mx.concatenate([native.rms_norm(x[i : i + 1], w, 1e-5) for i in range(64)])
    for count in range(1, 65):
        assert_same_bits(native.rms_norm(x[:count], w, 1e-5), alone[:count])
    x[3, 7] = float("nan")
    poisoned = native.rms_norm(x, w, 1e-5)
    assert np.isnan(wide(poisoned[3])).all()
    poisoned[3] = alone[3]
    assert_same_bits(poisoned, alone)


def test_rms_norm_of_views_and_of_zero() -> None:
    x, w = normal(40, 6, 33), normal(66, seed=1)
    for view in (x[::3, 1:4], x.transpose(1, 0, 2), x[:, :, ::2], x.swapaxes(1, 2)[..., :5]):
        weight = w[::2][: view.shape[-1]]
        assert_same_bits(native.rms_norm(view, weight, 1e-6), native.rms_norm(mx.array(view), mx.array(weight), 1e-6))
    assert not wide(native.rms_norm(mx.zeros((2, 9)), None, 1e-5)).any()


def test_swiglu_is_accurate_everywhere() -> None:
    magnitude = np.concatenate([np.logspace(-44, 38, 4001), np.linspace(0, 110, 20001)])
    x = mx.array(np.concatenate([magnitude, -magnitude]).astype(np.float32))
    (y,) = in_every_setting(lambda: [native.swiglu(x, mx.ones_like(x))])
    expected = twin.silu(wide(x))
    assert_close(y, expected, 5e-7, 1e-43)  # below -87 the sigmoid is subnormal


def test_activations_at_the_edges() -> None:
    inf, nan = float("inf"), float("nan")
    x = mx.array([inf, -inf, nan, 0.0, -0.0, 88.0, -1e30, 3.4e38])
    y = np.array(native.swiglu(x, mx.ones(8)))
    assert y[0] == inf
    assert y[1] == 0
    assert np.isnan(y[2])
    assert (y[3], y[4], y[5], y[6]) == (0, 0, 88, 0)
    squared = np.array(native.relu2(x))
    assert squared[0] == inf
    assert squared[1] == 0
    assert np.isnan(squared[2])
    assert squared[7] == inf


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_every_half_is_read_and_rounded_exactly(dtype: mx.Dtype) -> None:
    every = mx.arange(1 << 16).astype(mx.uint16).view(dtype)
    (same,) = in_every_setting(
        lambda: [native.qk_norm_rope(every.reshape(64, 2, 512), None, eps=1, theta=1, position=0, rotate=False)]
    )
    assert_same_bits(same.reshape(-1), every)
    (squared,) = in_every_setting(lambda: [native.relu2(every)])
    assert_same_bits(squared, mx.square(mx.maximum(every.astype(mx.float32), 0)).astype(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_activations_match_float64(dtype: mx.Dtype) -> None:
    gate, up = normal(7, 1031, dtype=dtype), normal(7, 1031, dtype=dtype, seed=1)
    (y,) = in_every_setting(lambda: [native.swiglu(gate, up)])
    assert_close(y, twin.silu(wide(gate)) * wide(up), 5e-7, 1e-7)
    assert_close(native.relu2(gate), np.maximum(wide(gate), 0) ** 2, 2e-7, 1e-7)
    assert_same_bits(native.swiglu(gate.T, up.T), y.T)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "dim"), [(1, 2), (3, 10), (8, 64), (2, 128), (5, 96)])
@pytest.mark.parametrize("position", [0, 1, 1000, 999_983])
def test_rope_matches_float64(heads: int, dim: int, position: int, dtype: mx.Dtype) -> None:
    x, w = normal(6, heads, dim, dtype=dtype), normal(dim, dtype=dtype, seed=1)
    for weight in (None, w):
        (y,) = in_every_setting(
            lambda weight=weight: [native.qk_norm_rope(x, weight, eps=1e-6, theta=10000.0, position=position)]
        )
        normed = wide(x) if weight is None else twin.rms_norm(wide(x), wide(weight), 1e-6)
        assert_close(y, twin.rope(normed, 10000.0, position), 1e-6, 1e-6 * np.abs(normed).max())


def test_rope_rows_do_not_depend_on_the_call() -> None:
    x, w = normal(64, 4, 32), normal(32, seed=1)
    rope = lambda rows, at: native.qk_norm_rope(rows, w, eps=1e-6, theta=1e4, position=at)  # noqa: E731
    alone = mx.concatenate([rope(x[i : i + 1], 500 + i) for i in range(64)])
    for count in range(1, 65):
        assert_same_bits(rope(x[:count], 500), alone[:count])
    assert_same_bits(rope(mx.array(x.transpose(1, 0, 2)).transpose(1, 0, 2), 500), alone)
    normed = native.qk_norm_rope(x, w, eps=1e-6, theta=1e4, position=7, rotate=False)
    assert_close(normed, twin.rms_norm(wide(x), wide(w), 1e-6), 1e-6, 1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_append_writes_rows_and_leaves_other_holders_alone(dtype: mx.Dtype) -> None:
    buffer = normal(1, 3, 40, 10, dtype=dtype)
    before, view = mx.array(buffer), buffer[:, :, :20]
    for rows in (normal(5, 3, 10, dtype=dtype, seed=2), normal(5, 6, 10, dtype=dtype, seed=3)[:, ::2]):
        got = native.kv_append(buffer, rows, offset=17)
        expected = mx.array(before)
        expected[:, :, 17:22] = rows.transpose(1, 0, 2)[None]
        assert_same_bits(got, expected)
        assert_same_bits(native.kv_append(mx.array(buffer.T).T, rows, offset=17), expected)
    assert_same_bits(buffer, before)
    assert_same_bits(view, before[:, :, :20])


def test_append_again_and_again_in_one_graph() -> None:
    buffer, rows, seen = mx.zeros((1, 2, 32, 8)), normal(32, 2, 8), []
    for i in range(32):
        buffer = native.kv_append(buffer, rows[i : i + 1], offset=i)
        if i % 5 == 0:
            seen.append((i, buffer[:, :, : i + 1].sum(), mx.array(buffer)))
    mx.eval(buffer, [s[1:] for s in seen])
    assert_same_bits(buffer, rows.transpose(1, 0, 2)[None])
    for i, total, copy in seen:
        assert not np.array(copy[:, :, i + 1 :]).any()
        np.testing.assert_allclose(total.item(), np.array(rows[: i + 1]).sum(), atol=1e-4)


def test_wrong_arguments_are_explained() -> None:
    x = normal(4, 8)
    with pytest.raises(ValueError, match=r"weight must be \[8\], is \[7\] float32"):
        native.rms_norm(x, mx.ones(7), 1e-5)
    with pytest.raises(ValueError, match=r"x must be float32, bfloat16 or float16, is \[4, 8\] int32"):
        native.rms_norm(x.astype(mx.int32), None, 1e-5)
    with pytest.raises(ValueError, match="of one type"):
        native.swiglu(x, x.astype(mx.bfloat16))
    with pytest.raises(ValueError, match="D must be even"):
        native.qk_norm_rope(normal(1, 1, 3), None, eps=1e-6, theta=1e4, position=0)
    with pytest.raises(ValueError, match="must fit the capacity: 3 \\+ 2 > 4"):
        native.kv_append(mx.zeros((1, 1, 4, 8)), x[:2, None], offset=3)
