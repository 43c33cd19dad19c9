"""Every set of kernels does what its twins say, and gives a row the same bits in any company."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlx_dspark.ops import reference
from mlx_dspark.ops.attention import AttentionForm
from mlx_dspark.ops.kernels import STOCK, Kernels, Matrix
from mlx_dspark.ops.linear import QuantizedWeight, quantize
from mlx_dspark.ops.mamba import MambaWeights
from mlx_dspark.ops.moe import Routing
from mlx_dspark.ops.native import find_native
from mlx_dspark.ops.rows import together

NATIVE, WHY = find_native()
R = np.random.default_rng(5)


@pytest.fixture(params=["stock", "native"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    if request.param == "stock":
        return STOCK
    return NATIVE or pytest.skip(WHY)


def rnd(*shape: int) -> np.ndarray:
    return R.normal(size=shape).astype(np.float32)


def close(got: mx.array, expected: np.ndarray, tolerance: float = 2e-5) -> None:
    assert got.shape == expected.shape
    assert np.abs(np.array(got) - expected).max() < tolerance * max(1.0, np.abs(expected).max())


def mamba_weights(groups: int, heads: int, dim: int, size: int, limit: tuple[float, float]) -> MambaWeights:
    inner, conv = groups * heads * dim, groups * heads * dim + 2 * groups * size
    return MambaWeights(
        conv=mx.array(rnd(4, conv) * 0.4), conv_bias=mx.array(rnd(conv)), a=mx.array(-np.abs(rnd(groups, heads))),
        d=mx.array(rnd(groups, heads)), dt_bias=mx.array(rnd(groups * heads)), norm=mx.array(rnd(inner)),
        head_dim=dim, state_size=size, eps=1e-5, dt_limit=limit,
    )  # fmt: skip


def mamba_twin(w: MambaWeights, projected: np.ndarray, window: np.ndarray, ssm: np.ndarray) -> tuple:
    """conv, softplus and clamp, walk, gated norm: from the twins of each."""
    groups, heads = w.a.shape
    count, inner, span = len(projected), w.inner, groups * w.state_size
    z, conv_in, dt = np.split(projected, [inner, 2 * inner + 2 * span], axis=1)
    u = reference.conv_silu(np.concatenate([window, conv_in]), np.array(w.conv), np.array(w.conv_bias))
    x, b, c = np.split(u, [inner, inner + span], axis=1)
    x = x.reshape(count, groups * heads, w.head_dim)
    dt = np.clip(np.log1p(np.exp(dt + np.array(w.dt_bias))), *w.dt_limit)
    shape = (count, groups, w.state_size)
    start = ssm.reshape(-1, w.head_dim, w.state_size)
    y, end = reference.ssm(start, x, dt, np.array(w.a).reshape(-1), b.reshape(shape), c.reshape(shape))
    y = (y + np.array(w.d).reshape(-1)[:, None] * x).reshape(count, inner)
    return reference.gated_group_norm(y, z, np.array(w.norm), groups, w.eps), end.reshape(ssm.shape)


@pytest.mark.parametrize("limit", [(0.0, float("inf")), (0.3, 0.9)], ids=["no limit", "clamped steps"])
@pytest.mark.parametrize("shape", [(1, 2, 8, 16), (2, 3, 16, 32), (2, 1, 64, 128)])
@pytest.mark.parametrize("count", [1, 5, 19])
def test_mamba(kernels: Kernels, count: int, shape: tuple, limit: tuple[float, float]) -> None:
    w = mamba_weights(*shape, limit)
    groups, heads, dim, size = shape
    projected = rnd(count, 2 * w.inner + 2 * groups * size + groups * heads)
    window, ssm = rnd(3, w.conv.shape[1]), rnd(groups, heads, dim, size)
    op = kernels.mamba(w)
    block = op(mx.array(projected), mx.array(window), mx.array(ssm))
    y, end = mamba_twin(w, projected, window, ssm)
    close(block.y, y, 5e-5)
    close(block.ssm, end, 5e-5)
    stepped_window, stepped = mx.array(window), mx.array(ssm)
    for t in range(count):
        one = op(mx.array(projected[t : t + 1]), stepped_window, stepped)
        assert mx.array_equal(one.y[0], block.y[t])
        stepped_window, stepped = one.window, one.ssm
        again = block.replay.after(t + 1)
        assert mx.array_equal(again[0], stepped_window)
        assert mx.array_equal(again[1], stepped)
    assert mx.array_equal(stepped, block.ssm)
    assert mx.array_equal(stepped_window, block.window)


def matrix(rows: int, width: int, bits: int) -> tuple[Matrix, np.ndarray]:
    """A random matrix, dense or packed, and its values."""
    dense = rnd(rows, width)
    if not bits:
        return mx.array(dense), dense
    q = quantize(mx.array(dense), bits)
    return q, np.array(mx.dequantize(q.weight, q.scales, q.biases, group_size=64, bits=bits))


@pytest.mark.parametrize("bits", [0, 4, 8])
@pytest.mark.parametrize("count", [1, 2, 7, 33])
def test_linear_and_mlp(kernels: Kernels, count: int, bits: int) -> None:
    x = rnd(count, 128)
    matrices = [matrix(192, 128, bits), matrix(131, 192, bits)]
    up, down = (kernels.linear(m) for m, _ in matrices)
    inner = x @ matrices[0][1].T
    close(up(mx.array(x)), inner, 5e-5)
    close(kernels.mlp(up, down)(mx.array(x)), np.maximum(inner, 0) ** 2 @ matrices[1][1].T, 1e-4)
    biased = kernels.linear(matrices[0][0], mx.arange(192).astype(mx.float32))
    close(biased(mx.array(x)), inner + np.arange(192, dtype=np.float32), 5e-5)


@pytest.mark.parametrize("bits", [0, 4])
@pytest.mark.parametrize("count", [1, 3, 8, 21])
def test_experts(kernels: Kernels, count: int, bits: int) -> None:
    x, gate, correction = rnd(count, 64), rnd(10, 64), rnd(10) * 0.1
    up, down = rnd(10, 128, 64), rnd(10, 64, 128)
    matrices: list = [mx.array(up), mx.array(down)]
    if bits:
        matrices = [quantize(m.reshape(-1, m.shape[-1]), bits) for m in matrices]
        up, down = (np.array(mx.dequantize(q.weight, q.scales, q.biases, bits=4, group_size=64)) for q in matrices)
        up, down = up.reshape(10, 128, 64), down.reshape(10, 64, 128)
        matrices = [
            QuantizedWeight(*(a.reshape(10, -1, a.shape[-1]) for a in (q.weight, q.scales, q.biases)), 64, bits)
            for q in matrices
        ]
    ids, weights = kernels.route(mx.array(x), mx.array(gate), mx.array(correction), Routing(3, 2.5))
    got = kernels.experts(*matrices)(mx.array(x), ids, weights)
    close(got, reference.experts(x, gate, correction, up, down, 3, 2.5), 1e-4)


@pytest.mark.parametrize(("window", "sinks"), [(0, False), (24, True)])
@pytest.mark.parametrize(("count", "length"), [(1, 1), (1, 40), (5, 33), (8, 300)])
def test_attention(kernels: Kernels, count: int, length: int, window: int, sinks: bool) -> None:
    q, keys, values = rnd(count, 6, 32), rnd(length + 7, 3, 32), rnd(length + 7, 3, 32)
    keys[length:] = values[length:] = np.nan
    sink = rnd(6) if sinks else None
    form = AttentionForm(0.3, window, None if sink is None else mx.array(sink))
    buffers = [mx.array(b.transpose(1, 0, 2)[None].copy()) for b in (keys, values)]
    got = kernels.attend(mx.array(q), *buffers, length, form, together)
    close(got, reference.attention(q, keys[:length], values[:length], 0.3, window, sink))


@pytest.mark.parametrize("position", [0, 7, 4095])
def test_norms_rope_and_swiglu(kernels: Kernels, position: int) -> None:
    x, weight = rnd(5, 3, 32), rnd(32)
    got = kernels.norm_rope(mx.array(x), mx.array(weight), 1e-6, 10_000.0, position)
    close(got, reference.norm_rope(x, weight, 1e-6, 10_000.0, position), 2e-5 + 1e-7 * position)
    close(kernels.rms_norm(mx.array(x), mx.array(weight), 1e-6), reference.rms_norm(x, weight, 1e-6))
    gate, up = rnd(7, 33), rnd(7, 33)
    close(kernels.swiglu(mx.array(gate), mx.array(up)), reference.silu(gate) * up)


def test_a_row_has_its_bits_in_any_company(kernels: Kernels) -> None:
    if kernels is STOCK:
        pytest.skip("mlx's own ops are probed on the device instead (models/probe.py)")
    for bits in (4, 8):
        linear, x = kernels.linear(matrix(67, 256, bits)[0]), mx.array(rnd(64, 256))
        single = mx.concatenate([linear(x[i : i + 1]) for i in range(64)])
        for width in range(1, 65):
            assert mx.array_equal(linear(x[:width]), single[:width])
