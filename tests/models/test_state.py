"""After a rollback every byte of state is what one-by-one decoding leaves, whatever the rejected tail was."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlx_dspark import Pair
from mlx_dspark.models.nemotron_h import NemotronH
from mlx_dspark.models.state import KVCache, Row, State


def valid_bytes(row: Row) -> list[bytes]:
    """The state of one row as bytes; of keys and values only the valid part."""
    found = []
    for cache in row.layers:
        if isinstance(cache, KVCache):
            parts = [cache.keys[:, :, : cache.length], cache.values[:, :, : cache.length]]
        else:
            parts = [] if cache is None else cache.arrays()
        found += [np.array(mx.contiguous(p).view(mx.uint8)).tobytes() for p in parts]
    return found


def poison(row: Row) -> None:
    """NaN wherever the rejected tail may have left something."""
    for cache in row.layers:
        if isinstance(cache, KVCache):
            cache.keys[:, :, cache.length :] = float("nan")
            cache.values[:, :, cache.length :] = float("nan")


def random_rounds(target: NemotronH, rows: int, rounds: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    state, single = target.new_state(rows), target.new_state(rows)
    for _ in range(rounds):
        widths = rng.integers(1, 9, rows)
        keep = [int(rng.integers(0, w + 1)) for w in widths]
        blocks = [rng.integers(0, 250, w) for w in widths]
        verified = target.verify(state, [mx.array(b, mx.int32) for b in blocks], (0,))
        target.rollback(state, verified.trace, keep)
        begin = 0
        for index, (block, kept) in enumerate(zip(blocks, keep, strict=True)):
            poison(state.rows[index])
            for i in range(kept):
                row = State([single.rows[index]])
                logits = target.verify(row, [mx.array(block[i : i + 1], mx.int32)]).logits
                assert bool(mx.all(logits[0] == verified.logits[begin + i]))
            begin += len(block)
        assert state.lengths == single.lengths
        for left, right in zip(state.rows, single.rows, strict=True):
            assert valid_bytes(left) == valid_bytes(right)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("form", ["fp32", "bf16", "4-bit"])
def test_rollback_leaves_what_single_steps_leave(pair_of, form: str, rows: int) -> None:
    random_rounds(pair_of(form).target, rows, 12, seed=rows)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 3])
def test_rollback_over_many_rounds(pair_of, rows: int) -> None:
    for seed in range(20):
        random_rounds(pair_of("fp32").target, rows, 50, seed)


def test_snapshot_and_restore_continue_as_if_never_stopped(pair_of) -> None:
    target = pair_of("4-bit").target
    state = target.new_state()
    target.prefill(state, 0, range(20))
    snapshot = state.snapshot()
    first = target.verify(state, [mx.arange(5, dtype=mx.int32)]).logits
    mx.eval(first)
    target.verify(state, [mx.arange(40, 46, dtype=mx.int32)])
    state.restore(snapshot)
    assert state.lengths == [20] == [snapshot.length]
    again = target.verify(state, [mx.arange(5, dtype=mx.int32)]).logits
    assert bool(mx.all(first == again))


def test_reported_bytes_are_those_of_every_layer(pair_of) -> None:
    pair: Pair = pair_of("fp32")
    c, state = pair.config, pair.target.new_state()
    pair.target.prefill(state, 0, range(10))
    mamba = (c.mamba_heads * c.mamba_head_dim * c.state_size + (c.conv_kernel - 1) * c.conv_size) * 4
    kv = 2 * c.kv_heads * c.head_dim * 4
    counts = {k: c.pattern.count(k) for k in "M*"}
    assert state.snapshot().nbytes == counts["M"] * mamba + counts["*"] * kv * 10
    verified = pair.target.verify(state, [mx.arange(3, dtype=mx.int32)])
    assert verified.trace.nbytes > counts["M"] * mamba


def test_the_probe_finds_this_device_exact(pair_of) -> None:
    for form in ("fp32", "bf16", "4-bit"):
        widths = pair_of(form).widths
        assert widths.exact, widths.describe()
        assert set(widths.exact_at) >= {"head", "mamba", "attention"}
