"""Each native layer against the MLX operations it replaces, at the shapes of two small models.

    python bench/native_layers.py [--threads 1] [--runs 7] [--only mamba] [--simd portable] [--clock cpu]

`small`: hidden 512, 16 Mamba heads of 64 with state 128 in 2 groups, attention 8/2 x 64, 16 experts; `demo`: hidden 256,
8 Mamba heads of 64 with state 64, attention 8/2 x 32. T rows at once; attention and appends over `context` positions.
A run evaluates graphs of LAYERS calls, each on a state or cache of its own that is replaced as in decoding; stock and
native runs alternate; the medians are per call and include building the graph. The last line is JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import mlx_dspark_cpu as native

from mlx_dspark.ops.attention import attend, attend_window
from mlx_dspark.ops.conv import conv_silu
from mlx_dspark.ops.moe import Routing, relu2, route
from mlx_dspark.ops.norm import gated_group_norm, rms_norm, silu
from mlx_dspark.ops.ssm import scan_inputs, softplus, walk

Call = Callable[[], Any]
Case = tuple[str, Call, Call]
MODELS = {
    "small": {"hidden": 512, "mamba": (2, 8, 64, 128), "attention": (8, 2, 64), "experts": 16},
    "demo": {"hidden": 256, "mamba": (2, 4, 64, 64), "attention": (8, 2, 32), "experts": 16},
}
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
TAPS, EPS, LAYERS = 4, 1e-5, 7


def normal(*shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    a = mx.random.normal(shape).astype(dtype)
    mx.eval(a)
    return a


def mamba_cases(shape: tuple[int, int, int, int], rows: int, dtype: mx.Dtype) -> Iterator[Case]:
    groups, heads, channels, size = shape
    inner, span = groups * heads * channels, groups * size
    conv, total = inner + 2 * span, groups * heads
    projected, window = normal(rows, inner + conv + total, dtype=dtype), normal(TAPS - 1, conv, dtype=dtype)
    norm, held, owned = normal(inner, dtype=dtype), *([normal(*shape) for _ in range(LAYERS)] for _ in range(2))
    turn = itertools.count()
    weight, bias = normal(TAPS, conv, dtype=dtype), normal(conv, dtype=dtype)
    a, d, dt_bias = -mx.exp(normal(groups, heads)), normal(groups, heads), normal(total) - 2
    mx.eval(a)

    def stock() -> Any:
        z, conv_in, raw = mx.split(projected, [inner, inner + conv], axis=-1)
        inputs = mx.concatenate([window, conv_in])
        u = conv_silu(inputs, weight, bias).astype(mx.float32)
        x, b, c = mx.split(u, [inner, inner + span], axis=-1)
        x = x.reshape(rows, groups, heads, channels)
        dt = softplus(raw.astype(mx.float32) + dt_bias).reshape(rows, groups, heads)
        i = next(turn) % LAYERS
        y, held[i] = walk(held[i], scan_inputs(x, dt, a, b.reshape(rows, groups, size)), c.reshape(rows, groups, size))
        y = (y + d[..., None] * x).reshape(rows, inner).astype(dtype)
        return gated_group_norm(y, z, norm, groups, EPS), inputs[rows:], held[i]

    def own() -> Any:
        i = next(turn) % LAYERS
        y, after, owned[i] = native.mamba(projected, window, owned[i], weight, bias, a, d, dt_bias, norm, eps=EPS)
        return y, after, owned[i]

    def again() -> Any:
        i, keep = next(turn) % LAYERS, max(1, rows // 2)
        block = (projected, window, owned[i], weight, bias, a, dt_bias)
        ((after, owned[i]),) = native.mamba_replay([block], keep=[keep])
        return after, owned[i]

    yield "mamba", stock, own
    yield "mamba_replay (half)", stock, again


def attention_cases(shape: tuple[int, int, int], rows: int, context: int, dtype: mx.Dtype) -> Iterator[Case]:
    heads, kv_heads, dim = shape
    q, scale, sinks = normal(rows, heads, dim, dtype=dtype), dim**-0.5, normal(heads, dtype=dtype)
    keys, values = (normal(1, kv_heads, context + 100, dim, dtype=dtype) for _ in range(2))
    position, window = mx.arange(context), 1024
    mask = position[None, :] <= position[-rows:, None]
    mask = mask & (position[None, :] > position[-rows:, None] - window)
    mx.eval(mask)
    seen = slice(max(0, context - window - rows + 1), context)
    yield (
        f"attend {context}",
        lambda: attend(q, keys[:, :, :context], values[:, :, :context], scale),
        lambda: native.attend(q, keys, values, length=context, scale=scale),
    )
    yield (
        f"attend {context} window, sinks",
        lambda: attend_window(q, keys[:, :, seen], values[:, :, seen], scale, mask[:, seen], sinks),
        lambda: native.attend(q, keys, values, length=context, scale=scale, window=window, sinks=sinks),
    )


def append_case(shape: tuple[int, int, int], rows: int, dtype: mx.Dtype) -> Case:
    _, kv_heads, dim = shape
    k, v = normal(rows, kv_heads, dim, dtype=dtype), normal(rows, kv_heads, dim, dtype=dtype)
    buffers = lambda: [normal(1, kv_heads, 4096, dim, dtype=dtype) for _ in range(2 * LAYERS)]  # noqa: E731
    held, owned, turn = buffers(), buffers(), itertools.count()

    def stock() -> Any:
        i = next(turn) % LAYERS * 2
        for j, new in enumerate((k, v)):
            held[i + j][:, :, 100 : 100 + rows] = new.transpose(1, 0, 2)[None]
        return held[i : i + 2]

    def own() -> Any:  # the list alone holds the buffers, so they are written in place
        i = next(turn) % LAYERS * 2
        for j, new in enumerate((k, v)):
            owned[i + j] = native.kv_append(owned[i + j], new, offset=100)
        return owned[i : i + 2]

    return "kv_append 4096", stock, own


def row_cases(model: dict[str, Any], rows: int, dtype: mx.Dtype) -> Iterator[Case]:
    hidden, (heads, _, dim), experts = model["hidden"], model["attention"], model["experts"]
    x, w = normal(rows, hidden, dtype=dtype), normal(hidden, dtype=dtype)
    yield "rms_norm", lambda: rms_norm(x, w, EPS), lambda: native.rms_norm(x, w, EPS)
    gate, up = normal(rows, 2 * hidden, dtype=dtype), normal(rows, 2 * hidden, dtype=dtype)
    yield "swiglu", lambda: silu(gate) * up, lambda: native.swiglu(gate, up)
    yield "relu2", lambda: relu2(gate), lambda: native.relu2(gate)
    router, correction, routing = normal(experts, hidden), normal(experts), Routing(4, 1.0)
    yield (
        "route",
        lambda: route(x, router, correction, routing),
        lambda: native.route(x, router, correction, top=4, scale=1.0),
    )
    q, head_norm = normal(rows, heads, dim, dtype=dtype), normal(dim, dtype=dtype)
    yield (
        "qk_norm_rope",
        lambda: mx.fast.rope(
            rms_norm(q, head_norm, EPS).transpose(1, 0, 2)[None],
            dim,
            traditional=False,
            base=1e4,
            scale=1.0,
            offset=700,
        ),
        lambda: native.qk_norm_rope(q, head_norm, eps=EPS, theta=1e4, position=700),
    )


def cases(model: dict[str, Any], rows: int, dtype: mx.Dtype) -> Iterator[Case]:
    yield from mamba_cases(model["mamba"], rows, dtype)
    for context in (64, 1500, 4000):
        yield from attention_cases(model["attention"], rows, max(context, rows), dtype)
    yield append_case(model["attention"], rows, dtype)
    yield from row_cases(model, rows, dtype)


def once(call: Call, steps: int, clock: Callable[[], float]) -> float:
    begin = clock()
    for _ in range(steps):
        mx.eval([call() for _ in range(LAYERS)])
    return (clock() - begin) / (steps * LAYERS) * 1e6


def measure(stock: Call, own: Call, runs: int, clock: Callable[[], float]) -> tuple[float, float]:
    """Median microseconds a call of alternating runs."""
    once(stock, 1, clock), once(own, 1, clock)
    times = [(once(stock, 1, clock), once(own, 4, clock)) for _ in range(runs)]
    return statistics.median(t[0] for t in times), statistics.median(t[1] for t in times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 5, 8])
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--simd", default="auto")
    parser.add_argument("--clock", default="wall", choices=list(CLOCKS))
    args = parser.parse_args()
    mx.set_default_device(mx.cpu)
    native.set_threads(args.threads)
    native.set_simd(args.simd)
    print(f"{native.status()}; {args.dtype}, {args.clock} time, load {os.getloadavg()[0]:.1f}")
    print(f"{'model':6s} {'case':28s} {'T':>4s} {'stock us':>10s} {'native us':>10s} {'ratio':>7s}")
    found = []
    for name in args.models:
        for rows in args.rows:
            for case, stock, own in cases(MODELS[name], rows, getattr(mx, args.dtype)):
                if args.only not in case:
                    continue
                a, b = measure(stock, own, args.runs, CLOCKS[args.clock])
                print(f"{name:6s} {case:28s} {rows:4d} {a:10.1f} {b:10.1f} {a / b:7.1f}", flush=True)
                found.append({"model": name, "case": case, "rows": rows, "stock_us": a, "native_us": b})
    print(json.dumps({"threads": args.threads, "dtype": args.dtype, "load": os.getloadavg()[0], "cases": found}))


if __name__ == "__main__":
    main()
