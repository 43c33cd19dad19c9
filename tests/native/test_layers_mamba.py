"""The native Mamba-2 mixer and its replay."""

from __future__ import annotations

from typing import Any

import layer_twin as twin
import mlx.core as mx
import numpy as np
import pytest
from layer_twin import DTYPES, assert_close, assert_same_bits, in_every_setting, native, wide

pytestmark = twin.needs_native

EPS = 1e-5
Sizes = tuple[int, int, int, int, int]  # groups, heads of a group, channels, state size, taps


def inputs(sizes: Sizes, tokens: int, dtype: mx.Dtype = mx.float32, bias: bool = True, seed: int = 0) -> dict[str, Any]:
    groups, heads, channels, size, taps = sizes
    inner, conv = groups * heads * channels, groups * heads * channels + 2 * groups * size
    keys = iter(mx.random.split(mx.random.key(seed), 10))
    draw = lambda *shape: mx.random.normal(shape, key=next(keys))  # noqa: E731
    return {
        "projected": draw(tokens, inner + conv + groups * heads).astype(dtype),
        "window": draw(taps - 1, conv).astype(dtype),
        "state": draw(groups, heads, channels, size),
        "conv_weight": (draw(taps, conv) / taps**0.5).astype(dtype),
        "conv_bias": draw(conv).astype(dtype) if bias else None,
        "a": -mx.exp(draw(groups, heads)),
        "d": draw(groups, heads),
        "dt_bias": draw(groups * heads) - 2,
        "norm": 1 + 0.1 * draw(inner).astype(dtype),
    }


def run(p: dict[str, Any], **options: Any) -> tuple[mx.array, mx.array, mx.array]:
    return native.mamba(*p.values(), eps=EPS, **options)


def replay(p: dict[str, Any], keep: int, **options: Any) -> tuple[mx.array, mx.array]:
    (found,) = native.mamba_replay([block(p)], keep=[keep], **options)
    return tuple(found)


def block(p: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(value for name, value in p.items() if name not in ("d", "norm"))


def in_chunks(p: dict[str, Any], chunks: list[int]) -> list[mx.array]:
    p, ys, at = dict(p), [], 0
    projected = p["projected"]
    for count in chunks:
        p["projected"] = projected[at : at + count]
        y, p["window"], p["state"] = run(p)
        ys.append(y)
        at += count
    assert at == len(projected)
    return [mx.concatenate(ys), p["window"], p["state"]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sizes", [(2, 4, 64, 64, 4), (1, 3, 5, 7, 2), (3, 1, 9, 20, 4), (1, 2, 130, 16, 7)])
@pytest.mark.parametrize("tokens", [1, 2, 5, 67])
def test_matches_float64(sizes: Sizes, tokens: int, bias: bool, dtype: mx.Dtype) -> None:
    p = inputs(sizes, tokens, dtype, bias)
    y, window, state = in_every_setting(lambda: run(p))
    exact = {name: None if value is None else wide(value) for name, value in p.items()}
    expected_y, expected_window, expected_state = twin.mamba(exact, EPS, 0, np.inf)
    assert_close(state, expected_state, 5e-6, 5e-6)
    assert_close(y, expected_y, 2e-5, 2e-5)
    np.testing.assert_array_equal(wide(window), expected_window)
    assert (y.dtype, window.dtype, state.dtype) == (dtype, dtype, mx.float32)


def test_step_sizes_are_clipped() -> None:
    p = inputs((2, 2, 8, 16, 4), 6)
    y, _, state = run(p, dt_min=0.05, dt_max=0.2)
    expected_y, _, expected_state = twin.mamba({k: wide(v) for k, v in p.items()}, EPS, 0.05, 0.2)
    assert_close(y, expected_y, 2e-5, 2e-5)
    assert_close(state, expected_state, 5e-6, 5e-6)
    for got, again in zip(replay(p, 6, dt_min=0.05, dt_max=0.2), run(p, dt_min=0.05, dt_max=0.2)[1:], strict=True):
        assert_same_bits(got, again)


@pytest.mark.parametrize("sizes", [(2, 8, 64, 128, 4), (1, 3, 5, 7, 3)])
def test_tokens_may_come_in_any_chunks(sizes: Sizes) -> None:
    """On enough work for threads to share, too."""
    p = inputs(sizes, 140, mx.bfloat16)
    whole = in_every_setting(lambda: list(run(p)))
    for chunks in ([1] * 140, [5, 4, 3] * 11 + [8], [64, 1, 63, 12], [139, 1], [2] * 70):
        for got, expected in zip(in_chunks(p, chunks), whole, strict=True):
            assert_same_bits(got, expected)


def test_a_row_has_the_same_bits_at_every_width() -> None:
    p = inputs((2, 4, 16, 24, 4), 64)
    projected, alone = p["projected"], in_chunks(p, [1] * 64)[0]
    for count in range(1, 65):
        p["projected"] = projected[:count]
        assert_same_bits(run(p)[0], alone[:count])


@pytest.mark.parametrize("tokens", [8, 70])
def test_replay_leaves_what_walking_leaves(tokens: int) -> None:
    p = inputs((2, 4, 20, 24, 4), tokens, mx.bfloat16)
    kept = dict(p)
    for keep in {0, 1, 2, 3, 5, tokens - 1, tokens}:
        window, state = in_every_setting(lambda keep=keep: list(replay(p, keep)))
        if keep == 0:
            expected = [p["window"], p["state"]]
        else:
            kept["projected"] = p["projected"][:keep]
            expected = list(run(kept)[1:])
        assert_same_bits(window, expected[0])
        assert_same_bits(state, expected[1])


def test_the_state_before_stays_as_it_was() -> None:
    p = inputs((2, 4, 64, 64, 4), 5)
    before = mx.array(p["state"])
    mx.eval(before)
    first = run(p)
    mx.eval(first)
    assert_same_bits(p["state"], before)
    assert_same_bits(run(p)[2], first[2])


def test_a_chain_of_steps_in_one_graph() -> None:
    """Nobody but the next step holds a state here, so its memory is passed on."""
    p = inputs((2, 4, 64, 64, 4), 30)
    whole = run(p)
    mx.eval(whole)
    chunked = in_chunks(p, [1] * 30)
    for got, expected in zip(chunked, whole, strict=True):
        assert_same_bits(got, expected)


def test_views_are_read_as_they_are() -> None:
    p = inputs((2, 2, 8, 16, 4), 6)
    expected = run(p)
    strided = {
        name: value if value is None else mx.array(value.T).T if value.ndim > 1 else mx.stack([value, value], 1)[:, 0]
        for name, value in p.items()
    }
    for got, want in zip(run(strided), expected, strict=True):
        assert_same_bits(got, want)


def test_nan_reaches_only_later_tokens_and_its_own_heads() -> None:
    p = inputs((2, 2, 8, 16, 4), 6)
    clean, _, clean_state = run(p)
    poisoned = dict(p, projected=mx.array(p["projected"]))
    inner = 32
    poisoned["projected"][3, inner + 3] = float("nan")  # x of head 0 in group 0
    y, _, state = run(poisoned)
    assert_same_bits(y[:3], clean[:3])
    assert_same_bits(y[:, 16:], clean[:, 16:])  # the other group
    assert np.isnan(wide(y)[3:, :16]).all()  # the norm of the group
    assert_same_bits(state[0, 1], clean_state[0, 1])
    assert_same_bits(state[1], clean_state[1])


def test_extreme_step_sizes() -> None:
    p = inputs((1, 2, 4, 8, 4), 2)
    p["dt_bias"] = mx.array([-200.0, 200.0])  # steps of nothing, and steps that forget everything
    y, _, state = run(p)
    expected_y, _, expected_state = twin.mamba({k: wide(v) for k, v in p.items()}, EPS, 0, np.inf)
    assert_close(y, expected_y, 2e-5, 2e-5)
    assert_close(state, expected_state, 5e-6, 5e-6)
    assert_same_bits(state[0, 0], p["state"][0, 0])


def test_wrong_arguments_are_explained() -> None:
    p = inputs((2, 2, 8, 16, 4), 3)
    for name, value, words in [
        ("projected", p["projected"][:, :-1], r"projected \(for this state\) must be \[3, 132\], is \[3, 131\]"),
        ("window", p["window"][1:], r"window must be \[3, 96\], is \[2, 96\]"),
        ("window", p["window"].astype(mx.bfloat16), "window and projected must be of one type"),
        ("state", p["state"].astype(mx.bfloat16), "state must be float32"),
        ("a", p["a"].reshape(-1), r"a must be \[2, 2\], is \[4\]"),
        ("norm", p["norm"][:5], r"norm must be \[32\], is \[5\]"),
        ("conv_weight", p["conv_weight"][:1], "must have 2 to 16 taps"),
    ]:
        with pytest.raises(ValueError, match=words):
            run(dict(p, **{name: value}))
    with pytest.raises(ValueError, match=r"keep must be from 0 to the tokens in projected \(3\), is 4"):
        replay(p, 4)


@pytest.mark.parametrize("count", [2, 7])
def test_blocks_replayed_together_have_the_bits_they_have_alone(count: int) -> None:
    """Few are done one after the other, many side by side; with and without a bias, some not walked at all."""
    blocks = [inputs((2, 4, 16, 24, 4), 5 + i, bias=i % 2 == 0, seed=i) for i in range(count)]
    keep = [(3 * i + 1) % (6 + i) for i in range(count)]
    together = in_every_setting(
        lambda: [a for pair in native.mamba_replay([block(p) for p in blocks], keep=keep) for a in pair]
    )
    alone = [a for p, k in zip(blocks, keep, strict=True) for a in replay(p, k)]
    for a, b in zip(together, alone, strict=True):
        assert_same_bits(a, b)
    with pytest.raises(ValueError, match="keep must be from 0 to the tokens in projected"):
        native.mamba_replay([block(blocks[0])], keep=[6])
    with pytest.raises(ValueError, match="one number a block"):
        native.mamba_replay([block(blocks[0])], keep=[])
