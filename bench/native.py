"""The accelerator against mlx-lm and against mlx's own ops: decoding, verifying and prefill, alternating in one run.

    python bench/native.py [--runs 7] [--prefill 2048] [--context 64] [--threads N] [--slow-runs 2] [--targets random]

Two targets, both 4-bit: the embedded one and a random nemotron_h (hidden 512, 16 layers, 16 experts of which 4 a token).
Prints milliseconds (medians) of one decoding step and of a verify of k rows, ratios to mlx-lm as it comes, prefill
tokens a second, and the machine's load. The bits of each verify are compared with single steps first; a difference ends
the run with exit code 1 and no speed. Needs mlx-lm and mlx-dspark-cpu. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn

from mlx_dspark.checkpoint.target_config import read_target_config
from mlx_dspark.checkpoint.weights import Weights
from mlx_dspark.models.materialize import materialize
from mlx_dspark.models.nemotron_h import NemotronH
from mlx_dspark.ops.kernels import STOCK, Kernels
from mlx_dspark.ops.native import find_native

DEMO = Path(__file__).parent.parent / "mlx_dspark" / "demo" / "target-4bit"
WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8)
RANDOM = {
    "model_type": "nemotron_h", "vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1024,
    "num_hidden_layers": 16, "max_position_embeddings": 4096, "num_attention_heads": 8, "num_key_value_heads": 2,
    "attention_bias": False, "mamba_num_heads": 16, "mamba_head_dim": 64, "mamba_proj_bias": False,
    "ssm_state_size": 128, "conv_kernel": 4, "n_groups": 2, "mlp_bias": False, "layer_norm_epsilon": 1e-5,
    "use_bias": False, "use_conv_bias": True, "hybrid_override_pattern": "MEMEM*EMEMEM*EME", "head_dim": 64,
    "moe_intermediate_size": 512, "moe_shared_expert_intermediate_size": 512, "n_group": 1, "n_routed_experts": 16,
    "n_shared_experts": 1, "topk_group": 1, "num_experts_per_tok": 4, "norm_topk_prob": True,
    "routed_scaling_factor": 1.0, "time_step_limit": [0.0, float("inf")], "tie_word_embeddings": False,
    "eos_token_id": 2,
}  # fmt: skip


def mlx_lm_model(config: dict[str, Any], folder: Path | None) -> Any:
    """The architecture in mlx-lm, from a folder or with random 4-bit weights."""
    from mlx_lm.models import nemotron_h
    from mlx_lm.utils import load_model

    if folder:
        return load_model(folder)[0]
    mx.random.seed(1)
    model = nemotron_h.Model(nemotron_h.ModelArgs.from_dict(config))
    model.set_dtype(mx.bfloat16)
    for layer in model.layers:
        if layer.block_type == "E":
            gate = layer.mixer.gate
            gate.weight = (mx.random.normal(gate.weight.shape) * 0.05).astype(mx.bfloat16)
            gate.e_score_correction_bias = mx.zeros((config["n_routed_experts"],))
    nn.quantize(model, group_size=64, bits=4)
    mx.eval(model.parameters())
    return model


def write_random(folder: Path) -> Any:
    """The random target as a checkpoint; its mlx-lm model."""
    from mlx.utils import tree_flatten

    model = mlx_lm_model(RANDOM, None)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
    config = {**RANDOM, "quantization": {"group_size": 64, "bits": 4}}
    (folder / "config.json").write_text(json.dumps(config))
    return model


def our_target(folder: Path, kernels: Kernels) -> NemotronH:
    config = read_target_config(folder)
    target = NemotronH.load(config, Weights(folder, config.quantization, mx.float32, kernels=kernels))
    materialize(target)
    return target


class Ours:
    """Steps of our target from one state at `context` tokens."""

    def __init__(self, target: NemotronH, context: int):
        self.target, self.state = target, target.new_state()
        target.prefill(self.state, 0, [5 + i % 900 for i in range(context)])
        mx.eval(self.state.arrays())
        self.start = self.state.snapshot()

    def step(self, ids: list[int]) -> mx.array:
        self.state.restore(self.start)
        mx.eval(self.state.arrays())
        logits = self.target.verify(self.state, [mx.array(ids, mx.int32)]).logits
        mx.eval(logits, self.state.arrays())
        return logits

    def singles(self, ids: list[int]) -> mx.array:
        self.state.restore(self.start)
        return mx.concatenate([self.target.verify(self.state, [mx.array([i], mx.int32)]).logits for i in ids])

    def prefill(self, ids: list[int]) -> None:
        state = self.target.new_state()
        for begin in range(0, len(ids), 256):
            self.target.prefill(state, 0, ids[begin : begin + 256])
            mx.eval(state.arrays())


class Theirs:
    """The same of an mlx-lm model, caches copied before each step."""

    def __init__(self, model: Any, context: int):
        self.model, self.base = model, model.make_cache()
        mx.eval(model(mx.array([[5 + i % 900 for i in range(context)]]), cache=self.base), [c.state for c in self.base])

    def step(self, ids: list[int]) -> mx.array:
        caches = self.model.make_cache()
        for cache, base in zip(caches, self.base, strict=True):
            cache.state = list(base.state)
        logits = self.model(mx.array([ids]), cache=caches)
        mx.eval(logits, [c.state for c in caches])
        return logits

    def prefill(self, ids: list[int]) -> None:
        caches = self.model.make_cache()
        self.model(mx.array([ids]), cache=caches)
        mx.eval([c.state for c in caches])


def seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def differing(ours: Ours) -> list[int]:
    """Widths at which a verify is not its single steps, bit for bit."""
    ids = [20 + i for i in range(max(WIDTHS))]
    single = ours.singles(ids)
    return [k for k in WIDTHS if not mx.array_equal(ours.step(ids[:k]), single[:k])]


def measure(name: str, folder: Path, model: Any, native: Kernels, args: argparse.Namespace) -> dict[str, Any]:
    arms = {
        "native": Ours(our_target(folder, native), args.context),
        "stock": Ours(our_target(folder, STOCK), args.context),
    }
    theirs = Theirs(model, args.context)
    wrong = {arm: differing(ours) for arm, ours in arms.items()}
    if any(wrong.values()):
        return {"wrong": wrong}
    times: dict[str, list[float]] = {}
    for run in range(args.runs):
        arms["native"].step([20])  # the others left the caches theirs
        for k in WIDTHS:
            ids = [20 + i for i in range(k)]
            times.setdefault(f"native {k}", []).append(seconds(lambda ids=ids: arms["native"].step(ids)))
        if run < args.slow_runs:
            times.setdefault("stock 1", []).append(seconds(lambda: arms["stock"].step([20])))
        times.setdefault("mlx-lm 1", []).append(seconds(lambda: theirs.step([20])))
    ids = [5 + i % 900 for i in range(args.prefill)]
    for _ in range(max(1, args.slow_runs)):
        times.setdefault("native prefill", []).append(seconds(lambda: arms["native"].prefill(ids)))
        times.setdefault("mlx-lm prefill", []).append(seconds(lambda: theirs.prefill(ids)))
    middle = {key: statistics.median(found) for key, found in times.items()}
    print(
        f"{name}: ms  "
        + "  ".join(
            f"k={k} {middle[f'native {k}'] * 1e3:.2f} ({middle[f'native {k}'] / middle['native 1']:.2f})"
            for k in WIDTHS
        )
    )
    result = {
        "decode_ms": middle["native 1"] * 1e3,
        "mlx_lm_ms": middle["mlx-lm 1"] * 1e3,
        "stock_ms": middle["stock 1"] * 1e3,
        "decode_to_mlx_lm": middle["mlx-lm 1"] / middle["native 1"],
        "decode_to_stock": middle["stock 1"] / middle["native 1"],
        "verify_ratio": {k: middle[f"native {k}"] / middle["native 1"] for k in WIDTHS},
        "prefill_tok_s": args.prefill / middle["native prefill"],
        "mlx_lm_prefill_tok_s": args.prefill / middle["mlx-lm prefill"],
        "prefill_to_mlx_lm": middle["mlx-lm prefill"] / middle["native prefill"],
    }
    print(f"{name}: " + "  ".join(f"{k} {v:.2f}" for k, v in result.items() if isinstance(v, float)))
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--slow-runs", type=int, default=2, help="runs of what takes seconds")
    parser.add_argument("--prefill", type=int, default=2048)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--threads", type=int, help="threads of the accelerator (default: all it may use)")
    parser.add_argument("--targets", nargs="*", default=["embedded", "random"], choices=["embedded", "random"])
    args = parser.parse_args()
    native, sentence = find_native()
    if native is None:
        raise SystemExit(sentence)
    if args.threads:
        native.module.set_threads(args.threads)
    print(sentence, f"load {os.getloadavg()[0]:.1f}", sep="; ")
    results = {}
    if "embedded" in args.targets:
        results["embedded"] = measure("embedded", DEMO, mlx_lm_model({}, DEMO), native, args)
    if "random" in args.targets:
        with tempfile.TemporaryDirectory() as scratch:
            results["random"] = measure("random", Path(scratch), write_random(Path(scratch)), native, args)
    wrong = {name: found["wrong"] for name, found in results.items() if "wrong" in found}
    load = os.getloadavg()[0]
    print(json.dumps({"bench": "native", "status": sentence, "load": load, "results": results}))
    if wrong:
        print(f"verify is not bit-exact: {wrong}; no speed is valid", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
