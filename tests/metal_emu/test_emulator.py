"""A right kernel gives what Metal would: launches, attributes, threadgroup memory, simd functions, narrow floats."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import pytest
from metal_emu.emulator import Kernel, metal_kernel, missing

R = np.random.default_rng(0)
REASON = missing()
needs_clang = pytest.mark.skipif(REASON is not None, reason=REASON or "")


def kernel(source: str, inputs: Sequence[str] = ("x",), header: str = "") -> Kernel:
    return metal_kernel("test", inputs, ["y"], source, header)


def one(source: str, x: mx.array, group: int, dtype: mx.Dtype | None = None) -> np.ndarray:
    """y of a kernel over one thread an entry of x."""
    (y,) = kernel("uint i = thread_position_in_grid.x;\n" + source)(
        inputs=[x], output_shapes=[x.shape], output_dtypes=[dtype or x.dtype], grid=(x.size, 1, 1),
        threadgroup=(group, 1, 1),
    )  # fmt: skip
    return np.array(y)


def test_a_machine_without_the_compiler_is_told_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    reason = missing()
    assert reason is not None
    assert "clang++" in reason or "Linux" in reason


@needs_clang
def test_templates_header_scalars_and_shapes() -> None:
    source = """
        uint3 p = thread_position_in_grid;
        int at = p.z * x_strides[0] + p.y * x_strides[1] + p.x * x_strides[2];
        y[at] = TWICE ? twice(T(x[at])) + by + N * x_ndim + x_shape[0] : T(0);
    """
    x = R.normal(size=(2, 3, 5)).astype(np.float32)
    transposed = mx.array(x.transpose(2, 0, 1)).transpose(1, 2, 0)
    (y,) = kernel(source, ["x", "by"], "template <class T> T twice(T v) { return v + v; }")(
        inputs=[transposed, mx.array(0.5)],
        template=[("T", mx.float32), ("N", 7), ("TWICE", True)],
        output_shapes=[x.shape],
        output_dtypes=[mx.float32],
        grid=(5, 3, 2),
        threadgroup=(4, 2, 1),
    )
    assert np.array_equal(np.array(y), x + x + np.float32(0.5) + 21 + 2)


@needs_clang
def test_threads_know_their_place_at_uneven_edges() -> None:
    source = """
        uint3 p = thread_position_in_grid, g = threadgroup_position_in_grid, i = thread_position_in_threadgroup;
        uint3 most = dispatch_threads_per_threadgroup, here = threads_per_threadgroup;
        int at = 7 * (p.x + threads_per_grid.x * p.y);
        y[at] = g.x * most.x + i.x == p.x && g.y * most.y + i.y == p.y;
        y[at + 1] = here.x * 10 + here.y;
        y[at + 2] = thread_index_in_threadgroup == i.x + here.x * i.y;
        y[at + 3] = simdgroup_index_in_threadgroup * 32 + thread_index_in_simdgroup == thread_index_in_threadgroup;
        y[at + 4] = threadgroups_per_grid.x * 10 + threadgroups_per_grid.y;
        y[at + 5] = simdgroups_per_threadgroup;
        y[at + 6] = threads_per_simdgroup;
    """
    (y,) = kernel(source, [])(
        inputs=[], output_shapes=[(5, 10, 7)], output_dtypes=[mx.int32], grid=(10, 5, 1), threadgroup=(8, 9, 1)
    )
    got = np.array(y)
    assert (got[..., [0, 2, 3]] == 1).all()
    assert (got[..., 4] == 21).all()
    assert (got[..., 6] == 32).all()
    assert (got[:, :8, 1] == 85).all()
    assert (got[:, 8:, 1] == 25).all()
    assert (got[:, :8, 5] == 2).all()
    assert (got[:, 8:, 5] == 1).all()


@needs_clang
def test_threadgroup_memory_and_barriers() -> None:
    source = """
        threadgroup float sums[64];
        threadgroup float* mine = sums + thread_index_in_threadgroup;
        *mine = x[i];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint half_way = 32; half_way > 0; half_way /= 2) {
            if (thread_index_in_threadgroup < half_way) *mine += mine[half_way];
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        y[i] = sums[0];
    """
    x = R.integers(-9, 9, 256).astype(np.float32)
    assert np.array_equal(one(source, mx.array(x), 64), x.reshape(4, 64).sum(1).repeat(64))


@needs_clang
@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("simd_sum(x[i])", lambda a: np.full_like(a, a.sum())),
        ("simd_max(x[i])", lambda a: np.full_like(a, a.max())),
        ("metal::simd_min(x[i])", lambda a: np.full_like(a, a.min())),
        ("simd_prefix_inclusive_sum(x[i])", np.cumsum),
        ("simd_prefix_exclusive_sum(x[i])", lambda a: np.cumsum(a) - a),
        ("simd_shuffle(x[i], 2)", lambda a: np.full_like(a, a[2])),
        ("simd_broadcast_first(x[i])", lambda a: np.full_like(a, a[0])),
        ("simd_shuffle_xor(x[i], 3)", lambda a: a[np.arange(len(a)) ^ 3]),
        ("simd_shuffle_down(x[i], 3)", lambda a: np.concatenate([a[3:], a[-3:]])),
        ("simd_shuffle_up(x[i], 3)", lambda a: np.concatenate([a[:3], a[:-3]])),
        ("simd_sum(simd_max(x[i]) - x[i])", lambda a: np.full_like(a, (a.max() - a).sum())),
    ],
)
def test_simd_functions(call: str, expected: object) -> None:
    x = R.integers(-99, 99, 76).astype(np.float32)
    assert callable(expected)
    parts = [expected(part) for part in (x[:32], x[32:64], x[64:])]
    assert np.array_equal(one(f"y[i] = {call};", mx.array(x), 76), np.concatenate(parts))


@needs_clang
def test_vectors() -> None:
    source = """
        float4 v = float4(x[i], 2.0f, -1.0f, 0.5f);
        v = simd_shuffle_xor(v, 1);
        float4 weights = float4(float2(int2(1, 2)), 3.0f, 4.0f) + float4(1.0f);
        y[i] = dot(v.wzyx, weights) + float(as_type<uint>(1.0f) >> 23);
    """
    x = R.integers(-99, 99, 32).astype(np.float32)
    assert np.array_equal(one(source, mx.array(x), 32), 2 * 0.5 - 3 + 4 * 2 + 5 * x[np.arange(32) ^ 1] + 127)


@needs_clang
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_narrow_floats_round_as_mlx_does(dtype: mx.Dtype) -> None:
    every = mx.arange(65536, dtype=mx.uint32).astype(mx.uint16).view(dtype)
    wide = one("y[i] = x[i];", every, 1024, mx.float32)
    assert np.array_equal(wide, np.array(every.astype(mx.float32)), equal_nan=True)
    halfway = [1.0 + 2**-11, 1.0 + 3 * 2**-11, 65519.0, 65520.0, 1e-8, 2**-25, 3 * 2**-25, 6.1e-5, 0.0, -0.0, np.inf]
    floats = np.concatenate([R.normal(size=500) * 10.0 ** R.integers(-9, 6, 500), halfway]).astype(np.float32)
    (y,) = kernel("uint i = thread_position_in_grid.x; y[i] = x[i];")(
        inputs=[mx.array(floats)], output_shapes=[floats.shape], output_dtypes=[dtype], grid=(len(floats), 1, 1),
        threadgroup=(64, 1, 1),
    )  # fmt: skip
    assert bool(mx.all(y.view(mx.uint16) == mx.array(floats).astype(dtype).view(mx.uint16)))


@needs_clang
@pytest.mark.parametrize("dtype", [mx.bool_, mx.int8, mx.uint16, mx.int64, mx.uint32])
def test_integers_pass_unchanged(dtype: mx.Dtype) -> None:
    x = mx.array([0, 1, 0, 1, 1, 0, 0, 1]).astype(dtype)
    assert np.array_equal(one("y[i] = x[7 - i];", x, 8), np.array(x)[::-1])


@needs_clang
@pytest.mark.parametrize(("start", "expected"), [(None, [np.nan, 2, np.nan]), (-1.0, [-1, 2, -1])])
def test_outputs_start_as_nan_or_as_told(start: float | None, expected: list[float]) -> None:
    (y,) = kernel("y[1] = 2;", [])(
        inputs=[], output_shapes=[(3,)], output_dtypes=[mx.float32], grid=(1, 1, 1), threadgroup=(1, 1, 1),
        init_value=start,
    )  # fmt: skip
    assert np.array_equal(np.array(y), expected, equal_nan=True)


@needs_clang
def test_a_buffer_s_name_moves_for_its_own_thread_only() -> None:
    x = mx.arange(10)
    assert one("x += i; y[i] = i < 9 ? *(x + 1) : x[0];", x, 4).tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 9]
