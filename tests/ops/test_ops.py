"""Each op against its slow twin at odd sizes, and row by row against itself."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlx_dspark.ops import attention, conv, moe, norm, reference, rows, ssm
from mlx_dspark.ops.linear import DenseLinear, QuantizedLinear, quantize

R = np.random.default_rng(0)


def rnd(*shape: int) -> np.ndarray:
    return R.normal(size=shape).astype(np.float32)


def close(got: mx.array, expected: np.ndarray, tolerance: float = 2e-5) -> None:
    assert got.shape == expected.shape
    assert np.abs(np.array(got) - expected).max() < tolerance * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize("count", [1, 2, 7, 13])
def test_norms(count: int) -> None:
    x, gate, weight = rnd(count, 60), rnd(count, 60), rnd(60)
    close(norm.rms_norm(mx.array(x), mx.array(weight), 1e-5), reference.rms_norm(x, weight, 1e-5))
    got = norm.gated_group_norm(mx.array(x), mx.array(gate), mx.array(weight), 4, 1e-5)
    close(got, reference.gated_group_norm(x, gate, weight, 4, 1e-5))


@pytest.mark.parametrize(("count", "taps"), [(1, 4), (5, 4), (9, 3), (3, 2)])
def test_conv(count: int, taps: int) -> None:
    inputs, weight, bias = rnd(taps - 1 + count, 37), rnd(taps, 37), rnd(37)
    got = conv.conv_silu(mx.array(inputs), mx.array(weight), mx.array(bias))
    close(got, reference.conv_silu(inputs, weight, bias))


@pytest.mark.parametrize(("count", "groups", "per", "p", "n"), [(1, 1, 1, 3, 5), (6, 2, 3, 5, 7), (17, 4, 1, 2, 9)])
def test_ssm_walk(count: int, groups: int, per: int, p: int, n: int) -> None:
    heads = groups * per
    x, dt, a = rnd(count, heads, p), np.abs(rnd(count, heads)), -np.abs(rnd(heads))
    b, c, state = rnd(count, groups, n), rnd(count, groups, n), rnd(heads, p, n)
    by_group = (groups, per)
    scan = ssm.scan_inputs(
        mx.array(x.reshape(count, *by_group, p)),
        mx.array(dt.reshape(count, *by_group)),
        mx.array(a.reshape(by_group)),
        mx.array(b),
    )
    start = mx.array(state.reshape(*by_group, p, n))
    y, end = ssm.walk(start, scan, mx.array(c))
    expected_y, expected_end = reference.ssm(state, x, dt, a, b, c)
    close(y.reshape(count, heads, p), expected_y)
    close(end.reshape(heads, p, n), expected_end)
    assert bool(mx.all(ssm.advance(start, scan) == end))


@pytest.mark.parametrize(
    ("count", "total", "heads", "kv"), [(1, 1, 3, 1), (1, 40, 4, 2), (5, 33, 6, 3), (8, 300, 8, 2)]
)
@pytest.mark.parametrize("way", [rows.together, rows.one_by_one])
def test_attention(count: int, total: int, heads: int, kv: int, way: rows.Rows) -> None:
    q, keys, values = rnd(count, heads, 12), rnd(total, kv, 12), rnd(total, kv, 12)
    packed = [mx.array(v.transpose(1, 0, 2)[None]) for v in (keys, values)]
    form = attention.AttentionForm(0.3)
    close(attention.attend(mx.array(q), *packed, form, way), reference.attention(q, keys, values, 0.3))


@pytest.mark.parametrize("total", [8, 9, 23, 24, 25, 32, 60])
def test_attention_in_a_window_with_sinks(total: int) -> None:
    q, keys, values, sinks = rnd(8, 6, 12), rnd(total, 3, 12), rnd(total, 3, 12), rnd(6)
    packed = [mx.array(v.transpose(1, 0, 2)[None]) for v in (keys, values)]
    form = attention.AttentionForm(0.3, 24, mx.array(sinks))
    close(attention.attend(mx.array(q), *packed, form), reference.attention(q, keys, values, 0.3, 24, sinks))


@pytest.mark.parametrize("position", [0, 1, 4095, 100_000])
def test_norm_rope(position: int) -> None:
    x, weight = rnd(5, 3, 16), rnd(16)
    got = norm.norm_rope(mx.array(x), mx.array(weight), 1e-6, 10_000.0, position)
    close(got, reference.norm_rope(x, weight, 1e-6, 10_000.0, position), 2e-5 + 1e-7 * position)


@pytest.mark.parametrize("count", [1, 3, 8, 21])
def test_experts(count: int) -> None:
    x, gate, correction = rnd(count, 20), rnd(10, 20), rnd(10) * 0.1
    up, down = rnd(10, 15, 20), rnd(10, 20, 15)
    ids, weights = moe.route(mx.array(x), mx.array(gate), mx.array(correction), moe.Routing(3, 2.5))
    inner = moe.relu2(moe.DenseExperts(mx.array(up))(mx.array(x)[:, None, :], ids))
    got = (moe.DenseExperts(mx.array(down))(inner, ids) * weights[..., None]).sum(axis=1)
    close(got, reference.experts(x, gate, correction, up, down, 3, 2.5))


@pytest.mark.parametrize("way", [rows.together, rows.padded, rows.one_by_one])
@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 17])
def test_ways_of_meeting_rows_agree(way: rows.Rows, count: int) -> None:
    x, weight = rnd(count, 64), rnd(33, 64)
    for op in (DenseLinear(mx.array(weight)), QuantizedLinear(quantize(mx.array(weight), 4))):
        assert bool(mx.all(way(op, mx.array(x)) == rows.together(op, mx.array(x))))


def test_poison_in_one_row_stays_there() -> None:
    x = rnd(5, 64)
    x[2] = np.nan
    y = np.array(DenseLinear(mx.array(rnd(9, 64)))(mx.array(x)))
    assert np.isnan(y[2]).all()
    assert not np.isnan(y[[0, 1, 3, 4]]).any()
