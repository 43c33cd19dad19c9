"""Native attention of few rows over long caches."""

from __future__ import annotations

from typing import Any

import layer_twin as twin
import mlx.core as mx
import numpy as np
import pytest
from layer_twin import DTYPES, assert_close, assert_same_bits, in_every_setting, native, wide

pytestmark = twin.needs_native

CONTEXTS = [1, 2, 63, 64, 65, 300, 511, 512, 513, 1500, 4000]
NAN = float("nan")


def cache(
    length: int, kv_heads: int, dim: int, dtype: mx.Dtype = mx.float32, spare: int = 9
) -> tuple[mx.array, mx.array]:
    """Keys and values [1, kv_heads, length + spare, dim], NaN beyond the length."""
    parts = []
    for seed in (1, 2):
        rows = mx.random.normal((1, kv_heads, length, dim), key=mx.random.key(seed))
        parts.append(mx.concatenate([rows, mx.full((1, kv_heads, spare, dim), NAN)], axis=2).astype(dtype))
    return parts[0], parts[1]


def queries(rows: int, heads: int, dim: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.random.normal((rows, heads, dim), key=mx.random.key(3)).astype(dtype)


def expected_of(q: mx.array, k: mx.array, v: mx.array, length: int, scale: float, **more: Any) -> np.ndarray[Any, Any]:
    return twin.attention(wide(q), wide(k)[0], wide(v)[0], length, scale, **more)


@pytest.mark.parametrize("length", CONTEXTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_matches_float64(length: int, dtype: mx.Dtype) -> None:
    rows = min(length, 5)
    q, (k, v) = queries(rows, 8, 64, dtype), cache(length, 2, 64, dtype)
    (y,) = in_every_setting(lambda: [native.attend(q, k, v, length=length, scale=0.125)])
    assert_close(y, expected_of(q, k, v, length, 0.125), 2e-6, 2e-6)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"), [(1, 1, 1), (3, 3, 7), (6, 2, 20), (7, 1, 33), (32, 2, 128), (5, 5, 256)]
)
@pytest.mark.parametrize(("rows", "length"), [(1, 1), (7, 7), (3, 130), (33, 600)])
def test_odd_shapes_match_float64(heads: int, kv_heads: int, dim: int, rows: int, length: int) -> None:
    q, (k, v) = queries(rows, heads, dim), cache(length, kv_heads, dim, mx.bfloat16)
    (y,) = in_every_setting(lambda: [native.attend(q, k, v, length=length, scale=dim**-0.5)])
    assert_close(y, expected_of(q, k, v, length, dim**-0.5), 3e-6, 3e-6)


@pytest.mark.parametrize("window", [1, 2, 63, 64, 65, 500, 1024, 5000])
@pytest.mark.parametrize("length", [5, 300, 1500])
def test_window_and_sinks(window: int, length: int) -> None:
    q, (k, v) = queries(5, 8, 32), cache(length, 2, 32)
    sinks = mx.random.normal((8,), key=mx.random.key(4)) * 3
    (y,) = in_every_setting(lambda: [native.attend(q, k, v, length=length, scale=0.2, window=window, sinks=sinks)])
    assert_close(y, expected_of(q, k, v, length, 0.2, window=window, sinks=wide(sinks)), 2e-6, 2e-6)


@pytest.mark.parametrize("window", [0, 100])
@pytest.mark.parametrize("length", [64, 300, 1500, 4000])
def test_a_row_has_the_same_bits_at_every_width_capacity_and_length(length: int, window: int) -> None:
    """However many rows come with it, however long the buffer, and whether or not later positions exist."""
    q, (k, v) = queries(64, 8, 32, mx.bfloat16), cache(length, 2, 32, mx.bfloat16)
    whole = native.attend(q, k, v, length=length, scale=0.2, window=window)
    for count in [*range(1, 64, 1 if length <= 300 else 9)]:
        first = native.attend(q[:count], k, v, length=length - 64 + count, scale=0.2, window=window)
        assert_same_bits(first, whole[:count])
        last = native.attend(q[-count:], k, v, length=length, scale=0.2, window=window)
        assert_same_bits(last, whole[-count:])
    roomy = [mx.concatenate([a, mx.full((1, 2, 700, 32), NAN, mx.bfloat16)], axis=2) for a in (k, v)]
    assert_same_bits(native.attend(q, *roomy, length=length, scale=0.2, window=window), whole)


def test_keys_a_row_does_not_see_may_hold_anything() -> None:
    q, (k, v) = queries(3, 4, 32), cache(200, 2, 32)
    clean = native.attend(q, k, v, length=200, scale=0.2, window=50)
    k[:, :, :148], v[:, :, :148] = NAN, float("inf")  # row 0 sees [148, 198)
    assert_same_bits(native.attend(q, k, v, length=200, scale=0.2, window=50), clean)
    v[:, :, 199] = NAN  # only row 2 sees it
    y = native.attend(q, k, v, length=200, scale=0.2, window=50)
    assert_same_bits(y[:2], clean[:2])
    assert np.isnan(wide(y[2])).all()


def test_nan_stays_in_its_row_and_head() -> None:
    q, (k, v) = queries(5, 4, 32), cache(100, 2, 32)
    clean = native.attend(q, k, v, length=100, scale=0.2)
    q[2, 1, 5] = NAN
    y = native.attend(q, k, v, length=100, scale=0.2)
    assert np.isnan(wide(y[2, 1])).all()
    y[2, 1] = clean[2, 1]
    assert_same_bits(y, clean)
    k[0, 1, 20, 3] = NAN
    y = native.attend(queries(5, 4, 32), k, v, length=100, scale=0.2)
    assert_same_bits(y[:, :2], clean[:, :2])
    assert np.isnan(wide(y[:, 2:])).all()


def test_extreme_logits() -> None:
    """One key far above the others is the answer; logits of -inf weigh nothing; sinks may swallow everything."""
    k, v = cache(700, 1, 8)
    q = mx.ones((1, 1, 8))
    k[0, 0, :700], k[0, 0, 3] = -1e37, 1e4
    expected = wide(v[0, 0, 3])
    np.testing.assert_array_equal(wide(native.attend(q, k, v, length=700, scale=1.0))[0, 0], expected)
    k[0, 0, :3] = -float("inf")
    k[0, 0, 600:700] = -float("inf")
    np.testing.assert_array_equal(wide(native.attend(q, k, v, length=700, scale=1.0))[0, 0], expected)
    swallowed = native.attend(q, k, v, length=700, scale=1.0, sinks=mx.array([1e6]))
    assert not wide(swallowed).any()
    without = native.attend(q, k, v, length=700, scale=1.0, sinks=mx.array([-float("inf")]))
    np.testing.assert_array_equal(wide(without)[0, 0], expected)


def test_views_of_a_cache_are_read_in_place() -> None:
    q, (k, v) = queries(5, 8, 32), cache(600, 2, 32)
    plain = native.attend(q, k, v, length=600, scale=0.2)
    assert_same_bits(native.attend(q, k[:, :, :600], v[:, :, :600], length=600, scale=0.2), plain)
    swapped = [mx.array(a.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for a in (k, v)]
    assert_same_bits(native.attend(q, *swapped, length=600, scale=0.2), plain)
    spread = [mx.array(a.transpose(0, 1, 3, 2)).transpose(0, 1, 3, 2) for a in (k, v)]
    assert_same_bits(native.attend(q, *spread, length=600, scale=0.2), plain)
    turned = mx.array(q.transpose(1, 0, 2)).transpose(1, 0, 2)
    assert_same_bits(native.attend(turned, k, v, length=600, scale=0.2), plain)
    offset = [mx.concatenate([a, a], axis=1)[:, 2:4] for a in (k, v)]
    assert_same_bits(native.attend(q, *offset, length=600, scale=0.2), plain)


def test_prefill_equals_row_by_row() -> None:
    """A long prompt at once, on every setting, against one row at a time."""
    q, (k, v) = queries(700, 4, 32), cache(1300, 2, 32)
    (whole,) = in_every_setting(lambda: [native.attend(q, k, v, length=1300, scale=0.2)])
    for t in range(0, 700, 37):
        alone = native.attend(q[t : t + 1], k, v, length=601 + t, scale=0.2)
        assert_same_bits(alone, whole[t : t + 1])


def test_wrong_arguments_are_explained() -> None:
    q, (k, v) = queries(5, 8, 32), cache(20, 2, 32)
    for more, words in [
        ({"q": q[:, :7]}, r"q's heads \(7\) must be a multiple of the kv heads \(2\)"),
        ({"q": q[..., :31]}, r"keys must be \[1, kv heads, capacity, 31\], is \[1, 2, 29, 32\]"),
        ({"values": v[:, :, :4]}, r"values must be \[1, 2, 29, 32\], is \[1, 2, 4, 32\]"),
        ({"values": v.astype(mx.bfloat16)}, "keys and values must be of one type"),
        ({"length": 4}, r"length must be from T to the capacity \(29\), is 4"),
        ({"length": 30}, "is 30"),
        ({"window": -1}, "window must be 0"),
        ({"sinks": mx.zeros(3)}, r"sinks must be \[8\], is \[3\]"),
    ]:
        with pytest.raises(ValueError, match=words):
            native.attend(**{"q": q, "keys": k, "values": v, "length": 20, "scale": 1.0, **more})
