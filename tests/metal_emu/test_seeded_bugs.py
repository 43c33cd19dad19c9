"""Kernels with one bug each: the emulator says what is wrong, and where the compiler or a meeting point knows it."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from metal_emu.emulator import CompileError, KernelFault, OrderDependence, metal_kernel, missing

REASON = missing()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")

# Each of two threadgroups sums 64 entries of x: lanes within a simdgroup, then the two simdgroups' sums.
SUM = """
    threadgroup float sums[2];
    uint i = thread_position_in_grid.x;
    float sum = simd_sum(x[i]);
    if (thread_index_in_simdgroup == 0) sums[simdgroup_index_in_threadgroup] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_index_in_threadgroup == 0) y[threadgroup_position_in_grid.x] = sums[0] + sums[1];
"""
BARRIER = "    threadgroup_barrier(mem_flags::mem_threadgroup);\n"
X = np.random.default_rng(0).integers(-9, 9, 128).astype(np.float32)


def run(source: str, group: int = 64) -> np.ndarray:
    (y,) = metal_kernel("sum", ["x"], ["y"], source)(
        inputs=[mx.array(X)], output_shapes=[(2,)], output_dtypes=[mx.float32], grid=(128, 1, 1),
        threadgroup=(group, 1, 1),
    )  # fmt: skip
    return np.array(y)


def seeded(right: str, wrong: str) -> str:
    assert SUM.count(right) == 1
    return SUM.replace(right, wrong)


def test_the_kernel_is_right_before_bugs_are_seeded() -> None:
    assert np.array_equal(run(SUM), X.reshape(2, 64).sum(1))


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        ("simd_sum(x[i])", "simd_sums(x[i])", r"body:4:.*undeclared identifier 'simd_sums'"),
        ("grid.x;\n    float", "grid.x\n    float", r"body:3:.*expected ';'"),
        ("float sum =", "x[i] = 0; float sum =", r"body:4:.*const"),
        ("uint i =", "const device float* p = x; uint i =", r"body:3:.*no viable conversion"),
        ("float sum =", "float unset; float sum = unset +", r"body:4:.*uninitialized"),
    ],
    ids=["unknown identifier", "missing semicolon", "write to an input", "raw device pointer", "never set"],
)
def test_what_a_compiler_sees(right: str, wrong: str, says: str) -> None:
    with pytest.raises(CompileError, match=says):
        run(seeded(right, wrong))


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        ("x[i]", "x[i + 1]", r"body line 4: index 128 of x, which holds 128, in thread \(127, 0, 0\)"),
        ("x[i]", "x[int(i) - 1]", r"body line 4: index -1 of x"),
        ("y[thread", "y[1 + thread", r"body line 7: index 2 of y, which holds 2"),
        ("sums[simdgroup", "sums[1 + simdgroup", r"past the end of an array, in thread \(32, 0, 0\)"),
        ("simd_sum(x[i])", "simd_shuffle(x[i], i + 1)", r"body line 4: simd_shuffle from lane 32 of 32"),
        ("x[i]", "x[i / (i / 200)]", r"divided by zero"),
    ],
    ids=["one past the input", "before the input", "past the output", "past an array", "no such lane", "zero"],
)
def test_indices_outside(right: str, wrong: str, says: str) -> None:
    with pytest.raises(KernelFault, match=says):
        run(seeded(right, wrong))


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        ("float sum =", "if (i % 32 == 5) return;\n float sum =", r"simd_sum at body line 5 .* \(5, 0, 0\) has ended"),
        (
            "simd_sum(x[i])",
            "i < 7 ? simd_sum(x[i]) : 0",
            r"simd_sum at body line 4 is not reached .* \(7, 0, 0\) waits",
        ),
        ("simd_sum(x[i])", "i < 7 ? simd_sum(x[i]) : simd_sum(x[i])", r"simd_sum at body line 4 is not reached"),
        (BARRIER, "if (i != 40) " + BARRIER, r"barrier at body line 6 .* whole threadgroup: .* \(40, 0, 0\) has ended"),
        (BARRIER, f"if (i < 32) {{ {BARRIER} }} else {BARRIER}", r"not reached by its whole threadgroup"),
    ],
    ids=["a lane gone", "some lanes only", "two calls", "a thread gone", "two barriers"],
)
def test_threads_that_cannot_meet(right: str, wrong: str, says: str) -> None:
    with pytest.raises(KernelFault, match=says):
        run(seeded(right, wrong))
    assert np.array_equal(run(SUM), X.reshape(2, 64).sum(1)), "a fault leaves nothing behind"


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (BARRIER, ""),
        ("y[threadgroup_position_in_grid.x] =", "y[0] ="),
        ("if (thread_index_in_simdgroup == 0) sums", "sum = x[i]; sums"),
    ],
    ids=["missing barrier", "two groups, one output", "all lanes write"],
)
def test_races(right: str, wrong: str) -> None:
    with pytest.raises(OrderDependence, match="y depends on the order of threads"):
        run(seeded(right, wrong))


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("if (thread_index_in_simdgroup == 0) sums", "if (i == 0 || i == 64) sums"),
        ("sums[0] +", "own[thread_index_in_threadgroup + 1] +"),
    ],
    ids=["threadgroup memory", "an array of a thread's own"],
)
def test_memory_never_set_reads_as_nan(right: str, wrong: str) -> None:
    assert np.isnan(run("float own[2]; own[0] = 0;" + seeded(right, wrong))).all()


def test_more_than_a_gpu_has() -> None:
    with pytest.raises(KernelFault, match="36000 bytes"):
        run("threadgroup float a[9000]; a[thread_index_in_threadgroup] = x[0]; y[0] = a[0];")
    with pytest.raises(KernelFault, match="1025 threads"):
        metal_kernel("wide", [], ["y"], "y[0] = 0;")(
            inputs=[], output_shapes=[(1,)], output_dtypes=[mx.float32], grid=(2000, 1, 1), threadgroup=(1025, 1, 1)
        )
