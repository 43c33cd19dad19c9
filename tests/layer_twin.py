"""What tests of the native layers share: float64 twins of the layers in plain numpy, and bit comparison.

The twins follow the definitions, row by row; they know nothing of the kernels' blocks or lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

try:
    import mlx_dspark_cpu as native

    WHY_NOT = "" if native.available() else native.status()
except ImportError:
    native = None
    WHY_NOT = "mlx-dspark-cpu is not installed"

needs_native = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
DTYPES = (mx.float32, mx.bfloat16, mx.float16)
HALF_ULP = {mx.float32: 0.0, mx.bfloat16: 2.0**-8, mx.float16: 2.0**-11}  # relative, of the output's rounding

Arrays = Sequence[mx.array]


def wide(a: mx.array) -> np.ndarray[Any, Any]:
    """Any array as float64."""
    return np.array(a.astype(mx.float32)).astype(np.float64)


def bits(a: mx.array) -> np.ndarray[Any, Any]:
    """The patterns of an array's numbers; all NaN count as one."""
    unsigned = {4: mx.uint32, 2: mx.uint16}[a.dtype.size]
    raw = np.array(mx.contiguous(a).view(unsigned))
    if mx.issubdtype(a.dtype, mx.floating):
        raw[np.isnan(np.array(a.astype(mx.float32)))] = 0x7FC0
    return raw


def assert_same_bits(a: mx.array, b: mx.array, what: str = "") -> None:
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(bits(a), bits(b), err_msg=what)


def usable_here(simd: str) -> bool:
    """Has this CPU the instruction set?"""
    try:
        native.set_simd(simd)
    except ValueError:
        return False
    native.set_simd("auto")
    return True


@contextmanager
def using(simd: str, threads: int) -> Iterator[None]:
    native.set_simd(simd)
    native.set_threads(threads)
    try:
        yield
    finally:
        native.set_simd("auto")
        native.set_threads(0)


def in_every_setting(run: Callable[[], Arrays]) -> Arrays:
    """Results of `run`, after checking that every instruction set and 1 or 2 threads give the same bits."""
    first: Arrays = ()
    usable = [s for s in native.features()["simd_built"] if s == "portable" or native.features()["simd"] == s]
    for simd in usable:
        for threads in (1, 2, 3):
            with using(simd, threads):
                got = run()
                mx.eval(got)
            first = first or got
            for a, b in zip(first, got, strict=True):
                assert_same_bits(a, b, f"{simd}, {threads} threads")
    return first


def assert_close(got: mx.array, expected: np.ndarray[Any, Any], relative: float, absolute: float = 0.0) -> None:
    """Within the stated error of the float64 value plus the rounding of the output's type."""
    np.testing.assert_allclose(wide(got), expected, rtol=relative + HALF_ULP[got.dtype] * 1.01, atol=absolute)


def sigmoid(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-x)))


def silu(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(x * sigmoid(x))


def rms_norm(x: np.ndarray[Any, Any], weight: np.ndarray[Any, Any] | None, eps: float) -> np.ndarray[Any, Any]:
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    return np.asarray(y if weight is None else y * weight)


def rope(x: np.ndarray[Any, Any], theta: float, position: int) -> np.ndarray[Any, Any]:
    """x [T, H, D]: complex rotation of (x[i], x[i + D/2])."""
    half = x.shape[-1] // 2
    frequency = theta ** (-np.arange(half) * 2.0 / x.shape[-1])
    turn = np.exp(1j * (position + np.arange(len(x)))[:, None] * frequency)[:, None, :]
    y = (x[..., :half] + 1j * x[..., half:]) * turn
    return np.concatenate([y.real, y.imag], axis=-1)


def attention(
    q: np.ndarray[Any, Any], keys: np.ndarray[Any, Any], values: np.ndarray[Any, Any], length: int, scale: float,
    window: int = 0, sinks: np.ndarray[Any, Any] | None = None,
) -> np.ndarray[Any, Any]:  # fmt: skip
    """q [T, Hq, D], keys and values [Hkv, capacity, D]."""
    count, heads = q.shape[:2]
    out = np.zeros_like(q)
    for t in range(count):
        position = length - count + t
        seen = slice(max(0, position + 1 - window) if window else 0, position + 1)
        for h in range(heads):
            kv = h // (heads // len(keys))
            logits = keys[kv, seen] @ q[t, h] * scale
            sink = -np.inf if sinks is None else sinks[h]
            top = max(logits.max(), sink)
            weights = np.exp(logits - top)
            out[t, h] = weights @ values[kv, seen] / (weights.sum() + np.exp(sink - top))
    return out


def mamba(p: dict[str, Any], eps: float, dt_min: float, dt_max: float) -> tuple[np.ndarray[Any, Any], ...]:
    """y, window, state of float64 inputs named as the call's arguments."""
    state, (groups, heads, channels, size) = p["state"].copy(), p["state"].shape
    inner = groups * heads * channels
    conv = inner + 2 * groups * size
    z, conv_in, raw = np.split(p["projected"], [inner, inner + conv], axis=1)
    rows, taps = np.concatenate([p["window"], conv_in]), len(p["conv_weight"])
    ys = []
    for t in range(len(z)):
        u = (rows[t : t + taps] * p["conv_weight"]).sum(0) + (0 if p["conv_bias"] is None else p["conv_bias"])
        x, b, c = np.split(silu(u), [inner, inner + groups * size])
        dt = np.clip(np.logaddexp(raw[t] + p["dt_bias"], 0), dt_min, dt_max).reshape(groups, heads)
        x, b, c = x.reshape(groups, heads, channels), b.reshape(groups, size), c.reshape(groups, size)
        state = np.exp(dt * p["a"])[..., None, None] * state + np.einsum("grp,gn->grpn", dt[..., None] * x, b)
        y = np.einsum("grpn,gn->grp", state, c) + p["d"][..., None] * x
        gated = (y.reshape(inner) * silu(z[t])).reshape(groups, -1)
        ys.append(rms_norm(gated, None, eps).reshape(inner) * p["norm"])
    return np.array(ys), rows[len(z) :], state


def route(
    x: np.ndarray[Any, Any], gate: np.ndarray[Any, Any], correction: np.ndarray[Any, Any], top: int, scale: float,
    normalize: bool, groups: int, top_groups: int,
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:  # fmt: skip
    ids, weights = [], []
    for row in x:
        scores = sigmoid(gate @ row)
        ranks = (scores + correction).reshape(groups, -1)
        if groups > 1:
            best_two = np.sort(ranks, axis=1)[:, -2:].sum(1)
            ranks[np.argsort(-best_two, kind="stable")[top_groups:]] = 0
        chosen = np.argsort(-ranks.reshape(-1), kind="stable")[:top]
        weight = scores[chosen]
        if normalize and top > 1:
            weight = weight / (weight.sum() + 1e-20)
        ids.append(chosen)
        weights.append(weight * scale)
    return np.array(ids), np.array(weights)
