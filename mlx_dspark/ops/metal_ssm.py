"""The walk of `ops/ssm.py` as one Metal kernel for T tokens, and the check that lets it be used on a device.

The state is read once, kept in registers while the tokens pass, and written once. A simdgroup owns one channel of
one head: lane l holds state entries l, l + 32, ..., so each lane sums its own and the 32 sums are added by
`simd_sum`, in an order that knows nothing of T. Fused multiply-adds are written out: no compiler has a choice left
that could make a token's bits depend on how many come with it.

Knows nothing of models: whoever loads one asks `checked_walk` and passes the walk on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import mlx.core as mx

from mlx_dspark.ops.ssm import ScanInputs, Walk, scan_inputs, walk

Kernel = Callable[..., Sequence[mx.array]]
KernelFactory = Callable[..., Kernel]  # mx.fast.metal_kernel, or what takes its arguments and runs kernels elsewhere

LANES = 32
ROWS = 8  # simdgroups a threadgroup: 256 threads, which any Apple GPU takes
STATE_SIZES = range(LANES, 257, LANES)
CHECKED_COUNTS = (1, 3, 8)
TOLERANCE = 1e-5  # of the largest value: another order of summation in float32, up to 256 terms

SOURCE = """
constexpr int OWN = N / 32;
const int tokens = inject_shape[0];
const int groups = inject_shape[1];
const int per_group = inject_shape[2];
const int channels = inject_shape[3];
const uint lane = thread_index_in_simdgroup;
const uint channel = thread_position_in_grid.y;
const uint head = thread_position_in_grid.z;
const uint group = head / per_group;
const uint heads = groups * per_group;
const uint own = (head * channels + channel) * N + lane;

float s[OWN];
for (int j = 0; j < OWN; ++j) {
    s[j] = state[own + 32 * j];
}
for (int t = 0; t < tokens; ++t) {
    const uint at_head = t * heads + head;
    const uint at_entry = (t * groups + group) * N + lane;
    const float keep = decay[at_head];
    const float add = inject[at_head * channels + channel];
    float sum = 0.0f;
    for (int j = 0; j < OWN; ++j) {
        s[j] = fma(keep, s[j], add * b[at_entry + 32 * j]);
        sum = fma(s[j], c[at_entry + 32 * j], sum);
    }
    sum = simd_sum(sum);
    if (lane == 0) {
        y[at_head * channels + channel] = sum;
    }
}
for (int j = 0; j < OWN; ++j) {
    last[own + 32 * j] = s[j];
}
"""


def metal_walk(factory: KernelFactory, state_size: int) -> Walk:
    """A walk that runs the kernel on states [G, R, P, state_size] and the twin on any other; float32, T >= 1.

    `state_size` is one of STATE_SIZES. The kernel is compiled at its first use; what that raises is the device's.
    """
    assert state_size in STATE_SIZES, state_size
    kernel = factory(
        name="mlx_dspark_ssm_walk",
        input_names=["state", "decay", "inject", "b", "c"],
        output_names=["y", "last"],
        source=SOURCE,
    )

    def run(state: mx.array, scan: ScanInputs, c: mx.array) -> tuple[mx.array, mx.array]:
        groups, per_group, channels, size = state.shape
        if size != state_size:
            return walk(state, scan, c)
        y, last = kernel(
            inputs=[state, scan.decay, scan.inject, scan.b, c],
            template=[("N", state_size)],
            grid=(LANES, channels, groups * per_group),
            threadgroup=(LANES, ROWS, 1),
            output_shapes=[(len(scan), groups, per_group, channels), state.shape],
            output_dtypes=[mx.float32, mx.float32],
        )
        return y, last

    return run


def checked_walk(device: mx.Device, state_size: int) -> tuple[Walk, str]:
    """The walk for models of `state_size` on `device`, and a sentence saying which it is and why."""
    if device.type != mx.gpu or not mx.metal.is_available():
        return walk, "The SSM walk uses MLX's own operations: this device is not a Metal GPU."
    with mx.stream(device):
        return choose_walk(cast(KernelFactory, mx.fast.metal_kernel), state_size)


def choose_walk(factory: KernelFactory, state_size: int) -> tuple[Walk, str]:
    """The kernel built by `factory` if it passes `find_fault` where it runs, else the twin; and a sentence on it."""
    if state_size not in STATE_SIZES:
        reason = f"the Metal kernel takes states of 32, 64, ... 256 entries, not {state_size}"
    else:
        try:
            candidate = metal_walk(factory, state_size)
            reason = find_fault(candidate, state_size)
        except Exception as error:
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            reason = f"the Metal kernel did not run ({first[:200]})"
        if not reason:
            return candidate, "The SSM walk uses its Metal kernel, which agrees with its twin on this device."
    return walk, f"The SSM walk uses MLX's own operations: {reason}."


def find_fault(candidate: Walk, state_size: int) -> str:
    """What keeps `candidate` from standing in for `walk`, in words; empty if nothing does.

    On fixed random inputs at each of CHECKED_COUNTS: read-outs and state within TOLERANCE of the twin's, and
    the bits of all tokens at once those of one at a time.
    """
    state, scan, c = _sample(state_size, max(CHECKED_COUNTS))
    for count in CHECKED_COUNTS:
        tokens = "1 token" if count == 1 else f"{count} tokens"
        found = candidate(state, scan.first(count), c[:count])
        expected = walk(state, scan.first(count), c[:count])
        for what, got, twin in zip(("read-outs", "state"), found, expected, strict=True):
            if not _near(got, twin):
                return f"the Metal kernel's {what} differ from its twin's by more than {TOLERANCE:g} at {tokens}"
        single = _one_by_one(candidate, state, scan.first(count), c)
        for what, got, one in zip(("read-outs", "state"), found, single, strict=True):
            if not _same_bits(got, one):
                return f"the Metal kernel's {what} after {tokens} at once are not the bits of one at a time"
    return ""


def _sample(state_size: int, count: int) -> tuple[mx.array, ScanInputs, mx.array]:
    """Nine heads of 11 channels: a full and a partly filled threadgroup each.

    No array is under 8 elements, which MLX would bind differently and so compile another kernel for.
    """
    groups, per_group, channels = 3, 3, 11
    by_head = (count, groups, per_group)
    keys = mx.random.split(mx.random.key(11), 6)

    def normal(key: int, *shape: int) -> mx.array:
        return mx.random.normal(shape, key=keys[key])

    state = normal(0, groups, per_group, channels, state_size)
    x, dt, a = normal(1, *by_head, channels), mx.abs(normal(2, *by_head)), -mx.abs(normal(3, groups, per_group))
    b, c = normal(4, count, groups, state_size), normal(5, count, groups, state_size)
    return state, scan_inputs(x, dt, a, b), c


def _one_by_one(candidate: Walk, state: mx.array, scan: ScanInputs, c: mx.array) -> tuple[mx.array, mx.array]:
    reads = []
    for t in range(len(scan)):
        one = ScanInputs(scan.decay[t : t + 1], scan.inject[t : t + 1], scan.b[t : t + 1])
        y, state = candidate(state, one, c[t : t + 1])
        reads.append(y)
    return mx.concatenate(reads), state


def _near(got: mx.array, expected: mx.array) -> bool:
    """False for NaN too."""
    limit = TOLERANCE * mx.max(mx.abs(expected))
    return got.shape == expected.shape and bool(mx.all(mx.abs(got - expected) <= limit))


def _same_bits(a: mx.array, b: mx.array) -> bool:
    return a.shape == b.shape and bool(
        mx.array_equal(mx.contiguous(a).view(mx.uint32), mx.contiguous(b).view(mx.uint32))
    )
