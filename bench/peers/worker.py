"""One program under test, loaded once, in its own interpreter: JSON lines in, JSON lines out.

    python worker.py NAME TARGET DRAFTER [--float32]

First it writes {"ready": NAME, "version": ..., "arms": [...]}. For each line {"arm": "plain", "ids": [...],
"max_tokens": 64} it writes {"tokens": [...], "seconds": ..., "cpu_seconds": ...}: the whole answer, prompt included,
greedy. `--float32` holds activations in float32, as mlx-dspark does on a CPU by itself. Each adapter uses its
program's public functions as its own command line does. Stands alone, so that `python -I` finds no other package.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from typing import Any, Protocol


class Program(Protocol):
    """A loaded program; `arms` are "plain" and, where it can, "drafted"."""

    arms: tuple[str, ...]

    def answer(self, arm: str, ids: list[int], count: int) -> list[int]:
        """Greedy tokens after the prompt `ids`, at most `count`."""


class Ours:
    """This project."""

    package = "mlx-dspark"
    arms = ("plain", "drafted")

    def __init__(self, target: str, drafter: str, float32: bool):
        from mlx_dspark import load

        self.pair = load(target, drafter, dtype="float32" if float32 else "auto")

    def answer(self, arm: str, ids: list[int], count: int) -> list[int]:
        from mlx_dspark.decode.params import SamplingParams
        from mlx_dspark.decode.round import run_round
        from mlx_dspark.engine.settings import GenerateOptions

        options = GenerateOptions(max_tokens=count, max_draft=0 if arm == "plain" else None)
        session = self.pair.session(ids, options, SamplingParams(temperature=0))
        session.prefill()
        while session.finish is None:
            run_round(self.pair.target, [session])
        return session.ids[len(ids) :]


class MlxLm:
    """mlx-lm: plain decoding, the common reference."""

    package = "mlx-lm"
    arms = ("plain",)

    def __init__(self, target: str, drafter: str, float32: bool):
        from mlx_lm import load

        self.model, self.tokenizer = load(target)
        if float32:
            to_float32(self.model)

    def answer(self, arm: str, ids: list[int], count: int) -> list[int]:
        from mlx_lm import stream_generate

        return [int(part.token) for part in stream_generate(self.model, self.tokenizer, ids, max_tokens=count)]


class PeerDspark:
    """The package of our name on the registry, with its own default cap and lookup setting."""

    package = "mlx-dspark"
    arms = ("plain", "drafted")

    def __init__(self, target: str, drafter: str, float32: bool):
        import mlx.core as mx
        from mlx_dspark.calibrate import (
            apply_cpu_split,
            apply_multirow_attn,
            apply_sdpa_split,
            apply_small_m,
            apply_wide_gemm,
            static_cap,
        )
        from mlx_dspark.load import load_drafter, load_target, lookup_drafts_default, resolve_drafter_window

        names = {"target_repo": target, "drafter_repo": drafter}
        self.target, self.tokenizer = load_target(target, require_tap=True)
        self.drafter, _ = load_drafter(drafter)
        self.drafter.ctx_window = resolve_drafter_window(None, target)
        if float32:
            to_float32(self.target.model)
            to_float32(self.drafter)
        apply_small_m(self.target, self.drafter, **names)
        apply_sdpa_split(self.target, target_repo=target)
        apply_multirow_attn(self.target, self.drafter)
        if mx.metal.is_available():  # for prefill on a GPU; on a CPU to try them takes many minutes
            apply_wide_gemm(self.target, self.drafter, target_repo=target)
            apply_cpu_split(self.target, self.drafter, target_repo=target)
        self.cap = static_cap(self.target, self.drafter, mode="dspark", **names)
        self.lookup = lookup_drafts_default(target)
        print(f"mlx-dspark 0.20.3 chose cap {self.cap}, lookup drafts {self.lookup}", file=sys.stderr)

    def answer(self, arm: str, ids: list[int], count: int) -> list[int]:
        from mlx_dspark.generate import greedy_generate, speculative_generate

        if arm == "plain":
            return list(greedy_generate(self.target, self.tokenizer, prompt_ids=ids, max_new_tokens=count).token_ids)
        found = speculative_generate(
            self.target, self.tokenizer, self.drafter, prompt_ids=ids, max_new_tokens=count,
            max_draft_tokens=self.cap, lookup_drafts=self.lookup,
        )  # fmt: skip
        return list(found.token_ids)


class MlxVlm:
    """mlx-vlm with its own policy for the width of a verify."""

    package = "mlx-vlm"
    arms = ("plain", "drafted")

    def __init__(self, target: str, drafter: str, float32: bool):
        from mlx_vlm import load
        from mlx_vlm.speculative.drafters import load_drafter, validate_drafter_compatibility

        self.model, self.processor = load(target)
        self.drafter, self.kind = load_drafter(drafter, kind=None)
        if float32:
            to_float32(self.model)
            to_float32(self.drafter)
        validate_drafter_compatibility(self.model, self.drafter, self.kind)

    def answer(self, arm: str, ids: list[int], count: int) -> list[int]:
        import mlx.core as mx
        from mlx_vlm import stream_generate

        drafting = {"draft_model": self.drafter, "draft_kind": self.kind} if arm == "drafted" else {}
        parts = stream_generate(
            self.model, self.processor, "", input_ids=mx.array([ids]), max_tokens=count, temperature=0.0, **drafting
        )
        last = None
        for part in parts:
            last = part
        return list(last.token_ids or []) if last else []


PROGRAMS: dict[str, Any] = {"ours": Ours, "mlx-lm": MlxLm, "mlx-dspark": PeerDspark, "mlx-vlm": MlxVlm}


def to_float32(model: Any) -> None:
    """Hold every floating parameter in float32 (quantised matrices keep their bits; their scales widen)."""
    import mlx.core as mx
    from mlx.utils import tree_map

    def widened(a: mx.array) -> mx.array:
        return a.astype(mx.float32) if mx.issubdtype(a.dtype, mx.floating) else a

    model.update(tree_map(widened, model.parameters()))
    mx.eval(model.parameters())


def main() -> None:
    name, target, drafter = sys.argv[1:4]
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what programs print is no protocol
    found = PROGRAMS[name]
    program: Program = found(target, drafter, "--float32" in sys.argv)
    ready = {"ready": name, "version": importlib.metadata.version(found.package), "arms": program.arms}
    print(json.dumps(ready), file=out)
    for line in sys.stdin:
        job = json.loads(line)
        began, cpu = time.perf_counter(), time.process_time()
        tokens = program.answer(job["arm"], job["ids"], job["max_tokens"])
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        print(json.dumps({"tokens": [int(t) for t in tokens], "seconds": seconds, "cpu_seconds": cpu}), file=out)


if __name__ == "__main__":
    main()
