"""The 4-bit product of one row, weights from memory, against the time a plain loop takes to read the same bytes.

    python bench/native_matmul.py [--runs 7] [--gigabytes 2] [--outputs 4096] [--inputs 4096] [--bits 4]

Cycles through matrices that together hold `--gigabytes`, far more than the caches, on one thread and on two. The floor
is a C++ loop that adds up the same buffers as 64-bit words (built with g++ at the start), on as many threads. All four
alternate; the figures are medians of `--runs` passes. Prints gigabytes a second, the share of the floor, what a second
thread brings, and the machine's load before each run. The last line is JSON.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_dspark_cpu as native
import numpy as np

READER = """
#include <cstddef>
#include <cstdint>
extern "C" uint64_t read_sum(const uint64_t* p, size_t words) {
  uint64_t sums[32] = {};
  size_t i = 0;
  for (; i + 32 <= words; i += 32) for (int j = 0; j < 32; ++j) sums[j] += p[i + j];
  uint64_t all = 0;
  for (; i < words; ++i) all += p[i];
  for (uint64_t sum : sums) all += sum;
  return all;
}
"""


def build_reader(folder: str) -> Any:
    source, library = Path(folder, "reader.cpp"), Path(folder, "reader.so")
    source.write_text(READER)
    subprocess.run(["g++", "-O3", "-march=native", "-shared", "-fPIC", source, "-o", library], check=True)
    read = ctypes.CDLL(str(library)).read_sum
    read.argtypes, read.restype = [ctypes.c_void_p, ctypes.c_size_t], ctypes.c_uint64
    return read


Matrix = tuple[mx.array, mx.array, mx.array]


def make_matrices(args: argparse.Namespace) -> list[Matrix]:
    """Distinct buffers of random codes, with bfloat16 scales and biases for groups of 64."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 2**32, (args.outputs, args.inputs * args.bits // 32), np.uint32)
    each = codes.nbytes + args.outputs * args.inputs // 64 * 4
    matrices = []
    for i in range(int(args.gigabytes * 1e9 / each) + 1):
        w = mx.array(np.roll(codes, i, axis=0))
        scales, biases = (mx.random.normal((args.outputs, args.inputs // 64)).astype(mx.bfloat16) for _ in range(2))
        mx.eval(w, scales, biases)
        matrices.append((w, scales, biases))
    return matrices


def seconds(call: Any) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


class Arms:
    """One pass over all matrices, each way."""

    def __init__(self, matrices: list[Matrix], args: argparse.Namespace, read: Any):
        self.matrices, self.bits, self.read = matrices, args.bits, read
        self.x = mx.random.normal((1, args.inputs))
        mx.eval(self.x)
        # Views of MLX's own buffers: what the kernel reads and nothing else.
        self.buffers = [np.asarray(a.view(mx.uint16)) for m in matrices for a in m]
        self.nbytes = sum(b.nbytes for b in self.buffers)
        self.workers = ThreadPoolExecutor(2)

    def floor(self, threads: int) -> None:
        def share(buffers: Sequence[np.ndarray]) -> int:
            return sum(self.read(b.ctypes.data, b.nbytes // 8) for b in buffers)

        if threads == 1:
            share(self.buffers)
        else:
            list(self.workers.map(share, [self.buffers[i::threads] for i in range(threads)]))

    def product(self, threads: int) -> None:
        native.set_threads(threads)
        mx.eval([native.qmm(self.x, *m, bits=self.bits) for m in self.matrices])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--gigabytes", type=float, default=2)
    parser.add_argument("--outputs", type=int, default=4096)
    parser.add_argument("--inputs", type=int, default=4096)
    parser.add_argument("--bits", type=int, default=4, choices=[4, 8])
    args = parser.parse_args()
    mx.set_default_device(mx.cpu)
    with tempfile.TemporaryDirectory() as folder:
        arms = Arms(make_matrices(args), args, build_reader(folder))
        calls = {
            f"{name} {n}": lambda call=call, n=n: call(n)
            for n in (1, 2)
            for name, call in (("floor", arms.floor), ("product", arms.product))
        }
        for call in calls.values():
            call()
        times: dict[str, list[float]] = {name: [] for name in calls}
        loads = []
        for _ in range(args.runs):
            loads.append(os.getloadavg()[0])
            for name, call in calls.items():
                times[name].append(seconds(call))
    rate = {name: arms.nbytes / statistics.median(found) / 1e9 for name, found in times.items()}
    best = {name: arms.nbytes / min(found) / 1e9 for name, found in times.items()}
    result = {
        "gigabytes": arms.nbytes / 1e9,
        "matrices": len(arms.matrices),
        "shape": [args.outputs, args.inputs],
        "bits": args.bits,
        "gb_per_s": rate,
        "best_gb_per_s": best,
        "share_of_floor": {n: rate[f"product {n}"] / rate[f"floor {n}"] for n in (1, 2)},
        "second_thread": {name: rate[f"{name} 2"] / rate[f"{name} 1"] for name in ("floor", "product")},
        "loads": loads,
    }
    print(native.status())
    print("GB/s: " + "  ".join(f"{name} thread{'s' if name[-1] == '2' else ''} {r:.2f}" for name, r in rate.items()))
    print(f"one thread: {result['share_of_floor'][1]:.0%} of the floor; two are {result['second_thread']['product']:.2f} "
          f"x one (the floor's two {result['second_thread']['floor']:.2f} x)")  # fmt: skip
    print(f"load {min(loads):.1f} to {max(loads):.1f}; cores {len(os.sched_getaffinity(0))}")
    print(json.dumps({"bench": "native_matmul", **result}))


if __name__ == "__main__":
    main()
