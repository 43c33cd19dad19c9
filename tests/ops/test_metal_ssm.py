"""The Metal walk on the emulator: its twin's values, bits that do not know T, and a self-check that lets no bug by."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest
from metal_emu.emulator import metal_kernel, missing

from mlx_dspark.ops.metal_ssm import (
    STATE_SIZES,
    Kernel,
    KernelFactory,
    checked_walk,
    choose_walk,
    find_fault,
    metal_walk,
)
from mlx_dspark.ops.ssm import ScanInputs, advance, scan_inputs, walk

R = np.random.default_rng(0)
REASON = missing()
emulated = pytest.mark.skipif(REASON is not None, reason=REASON or "")
Sample = tuple[mx.array, ScanInputs, mx.array]


def rnd(*shape: int) -> mx.array:
    return mx.array(R.normal(size=shape).astype(np.float32))


def sample(count: int, groups: int, per_group: int, channels: int, size: int) -> Sample:
    """State, scan and read vectors; b and c are strided halves of one array, as a model's are."""
    by_head = (count, groups, per_group)
    both = rnd(count, groups, 2 * size)
    b, c = mx.split(both, 2, axis=-1)
    scan = scan_inputs(rnd(*by_head, channels), mx.abs(rnd(*by_head)), -mx.abs(rnd(groups, per_group)), b)
    return rnd(groups, per_group, channels, size), scan, c


def part(scan: ScanInputs, begin: int, end: int) -> ScanInputs:
    return ScanInputs(scan.decay[begin:end], scan.inject[begin:end], scan.b[begin:end])


def same_bits(a: mx.array, b: mx.array) -> bool:
    return a.shape == b.shape and np.array_equal(np.array(a).view(np.uint32), np.array(b).view(np.uint32))


def seeded(*changes: tuple[str, str]) -> KernelFactory:
    """The emulator as a device whose kernels come out with these changes."""

    def factory(**arguments: Any) -> Kernel:
        source = arguments["source"]
        for right, wrong in changes:
            assert source.count(right) == 1
            source = source.replace(right, wrong)
        return metal_kernel(**{**arguments, "source": source})

    return factory


def no_library(**_: Any) -> Any:
    raise RuntimeError("[metal::Device] no such\nlibrary")


@emulated
@pytest.mark.parametrize("size", [32, 64, 96, 128, 256])
@pytest.mark.parametrize(
    ("count", "groups", "per_group", "channels"), [(1, 1, 1, 1), (3, 1, 5, 9), (7, 3, 1, 17), (5, 2, 3, 8)]
)
def test_the_kernel_computes_what_its_twin_does(
    count: int, groups: int, per_group: int, channels: int, size: int
) -> None:
    given = sample(count, groups, per_group, channels, size)
    for got, expected in zip(metal_walk(metal_kernel, size)(*given), walk(*given), strict=True):
        assert got.shape == expected.shape
        assert got.dtype == mx.float32
        a, b = np.array(got), np.array(expected)
        assert np.abs(a - b).max() < 2e-6 * np.abs(b).max()


@emulated
@pytest.mark.parametrize("size", [32, 128, 256])
def test_bits_do_not_depend_on_how_many_tokens_come_at_once(size: int) -> None:
    state, scan, c = sample(11, 3, 3, 5, size)
    run = metal_walk(metal_kernel, size)
    y, last = run(state, scan, c)
    for cuts in ((0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11), (0, 4, 9, 11), (0, 8, 11)):
        reads, now = [], state
        for begin, end in pairwise(cuts):
            read, now = run(now, part(scan, begin, end), c[begin:end])
            reads.append(read)
        assert same_bits(mx.concatenate(reads), y)
        assert same_bits(now, last)


@emulated
def test_a_rollback_walks_to_the_bits_a_shorter_block_would_have_left() -> None:
    state, scan, c = sample(6, 3, 3, 5, 64)
    run = metal_walk(metal_kernel, 64)
    for keep in range(7):
        expected = run(state, scan.first(keep), c[:keep])[1] if keep else state
        assert same_bits(advance(state, scan.first(keep), run), expected)


@emulated
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_poison_in_one_head_stays_there(poison: float) -> None:
    state, scan, c = sample(5, 2, 3, 9, 64)
    clean_y, clean_last = map(np.array, metal_walk(metal_kernel, 64)(state, scan, c))
    dirty = np.array(state)
    dirty[1, 2, 4, 63] = poison
    y, last = map(np.array, metal_walk(metal_kernel, 64)(mx.array(dirty), scan, c))
    assert not np.isfinite(y[:, 1, 2, 4]).any()
    assert not np.isfinite(last[1, 2, 4, 63])
    y[:, 1, 2, 4], last[1, 2, 4, 63] = clean_y[:, 1, 2, 4], clean_last[1, 2, 4, 63]
    assert np.array_equal(y, clean_y)
    assert np.array_equal(last, clean_last)


@emulated
def test_what_no_token_changes_keeps_its_bits() -> None:
    """dt = 0 (decay 1, nothing injected) is how a head stands still; the state given is never written to."""
    state, scan, c = sample(4, 2, 3, 5, 96)
    before = np.array(state)
    decay, inject = np.array(scan.decay), np.array(scan.inject)
    decay[:, 0, 1], inject[:, 0, 1] = 1, 0
    _, last = metal_walk(metal_kernel, 96)(state, ScanInputs(mx.array(decay), mx.array(inject), scan.b), c)
    assert same_bits(last[0, 1], mx.array(before[0, 1]))
    assert not same_bits(last[0, 0], mx.array(before[0, 0]))
    assert np.array_equal(np.array(state), before)


def test_a_state_of_another_size_goes_to_the_twin() -> None:
    given = sample(3, 2, 3, 5, 48)
    run = metal_walk(lambda **_: no_library, 64)
    assert all(map(same_bits, run(*given), walk(*given)))


@emulated
@pytest.mark.parametrize("size", [32, 128, 256])
def test_the_self_check_takes_the_right_kernel(size: int) -> None:
    chosen, sentence = choose_walk(metal_kernel, size)
    assert chosen is not walk
    assert sentence == "The SSM walk uses its Metal kernel, which agrees with its twin on this device."
    given = sample(2, 1, 9, 3, size)
    assert same_bits(chosen(*given)[0], metal_walk(metal_kernel, size)(*given)[0])


ADD = "sum = fma(s[j], c[at_entry + 32 * j], sum);"
UNFUSED = "sum = tokens > 1 ? sum + s[j] * c[at_entry + 32 * j] : fma(s[j], c[at_entry + 32 * j], sum);"
STEP = "s[j] = fma(keep, s[j], add * b[at_entry + 32 * j]);"
TOTAL = "sum = simd_sum(sum);"
LEAVE = "last[own + 32 * j] = s[j];"
LONE_BITS = "at once are not the bits of one at a time"


@emulated
@pytest.mark.parametrize(
    ("right", "wrong", "why"),
    [
        ("fma(keep, s[j], add", "fma(1.0f, s[j], add", "read-outs differ from its twin's"),
        ("head / per_group;", "head % groups;", "read-outs differ from its twin's"),
        ("c[at_entry + 32 * j]", "c[at_entry]", "read-outs differ from its twin's"),
        ("inject[at_head * channels + channel]", "inject[at_head * channels]", "read-outs differ from its twin's"),
        ("t < tokens; ++t", "t < min(tokens, 4); ++t", "by more than 1e-05 at 8 tokens"),
        (LEAVE, LEAVE.replace("s[j];", "s[j] + (j == 1 ? 0.01f : 0.0f);"), "state differ"),
        (LEAVE, LEAVE.replace("s[j];", "NAN;"), "state differ"),
        (ADD, UNFUSED, f"read-outs after 3 tokens {LONE_BITS}"),
        (STEP, STEP + " s[j] *= tokens > 3 ? 1.0000001f : 1.0f;", f"read-outs after 8 tokens {LONE_BITS}"),
        (LEAVE, LEAVE.replace("s[j];", "tokens == 8 ? s[j] * 1.0000001f : s[j];"), f"state after 8 tokens {LONE_BITS}"),
        (TOTAL, "sum = simd_sums(sum);", "did not run (body:"),
        ("decay[at_head]", "decay[at_head + heads]", "did not run (body line 21: index"),
        (TOTAL, "if (lane < 9) " + TOTAL, "did not run (simd_sum at body line"),
    ],
)
def test_the_self_check_falls_back_to_the_twin(right: str, wrong: str, why: str) -> None:
    chosen, sentence = choose_walk(seeded((right, wrong)), 64)
    assert chosen is walk
    assert sentence.startswith("The SSM walk uses MLX's own operations: ")
    assert why in sentence
    assert "\n" not in sentence


@emulated
@pytest.mark.parametrize("size", [64, 256])
def test_an_order_of_summation_that_knows_t_is_found(size: int) -> None:
    backwards = ADD.replace("32 * j", "32 * i").replace("s[j]", "s[i]")
    later = f"for (int j = 0; j < OWN; ++j) {{ int i = tokens > 1 ? OWN - 1 - j : j; {backwards} }} {TOTAL}"
    chosen, sentence = choose_walk(seeded((ADD, ""), (TOTAL, later)), size)
    assert chosen is walk
    assert LONE_BITS in sentence


@pytest.mark.parametrize("factory", [no_library, lambda **_: no_library], ids=["building", "launching"])
def test_a_device_that_raises_falls_back(factory: KernelFactory) -> None:
    chosen, sentence = choose_walk(factory, 128)
    assert chosen is walk
    assert "did not run ([metal::Device] no such)" in sentence


def test_outputs_of_another_shape_fall_back() -> None:
    def factory(**_: Any) -> Kernel:
        return lambda **launch: [mx.zeros((1,)) for _ in launch["output_shapes"]]

    assert choose_walk(factory, 128)[0] is walk


@pytest.mark.parametrize("size", [0, 16, 48, 288])
def test_sizes_the_kernel_is_not_for(size: int) -> None:
    chosen, sentence = choose_walk(metal_kernel, size)
    assert chosen is walk
    assert f"not {size}" in sentence
    assert size not in STATE_SIZES


def test_the_twin_has_no_fault_of_its_own() -> None:
    assert find_fault(walk, 64) == ""


def test_off_the_gpu_the_twin_is_used_and_says_so() -> None:
    chosen, sentence = checked_walk(mx.Device(mx.cpu), 128)
    assert chosen is walk
    assert "not a Metal GPU" in sentence


def test_stock_mlx_without_metal_falls_back() -> None:
    if mx.metal.is_available():
        pytest.skip("this machine has Metal, where the kernel itself is tried")
    chosen, sentence = choose_walk(cast(KernelFactory, mx.fast.metal_kernel), 128)
    assert chosen is walk
    assert "No Metal back-end" in sentence
