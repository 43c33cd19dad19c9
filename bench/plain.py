"""Plain decoding, ours against mlx-lm's own loop, on the same target and prompts, alternating in one run.

    python bench/plain.py [--target mlx_dspark/demo/target-4bit] [--prompts 6] [--tokens 48] [--trials 5]
    python bench/plain.py --equal --target FOLDER [--prompts 20] [--tokens 64]

Prints tokens a second and their ratio (medians over trials) against mlx-lm as it comes and, where it differs,
mlx-lm in float32. `--equal` instead counts differing greedy tokens with both in float32. Needs mlx-lm.
The last line is JSON; exit code 1 on a difference.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map

from mlx_dspark import Pair, load
from mlx_dspark.engine.settings import GenerateOptions

DEMO = Path(__file__).parent.parent / "mlx_dspark" / "demo"


def mlx_lm_model(folder: str, float32: bool) -> Any:
    from mlx_lm.utils import load_model

    model, _ = load_model(Path(folder))
    if float32:
        model.update(
            tree_map(lambda a: a.astype(mx.float32) if mx.issubdtype(a.dtype, mx.floating) else a, model.parameters())
        )
        mx.eval(model.parameters())
    return model


def theirs(model: Any, ids: list[int], count: int) -> tuple[list[int], float]:
    """Greedy tokens of mlx-lm's generate_step and the seconds of all but the first."""
    from mlx_lm.generate import generate_step

    tokens, began = [], 0.0
    for token, _ in generate_step(mx.array(ids), model, max_tokens=count):
        if not tokens:
            began = time.perf_counter()
        tokens.append(int(token))
    return tokens, time.perf_counter() - began


def ours(pair: Pair, ids: list[int], count: int) -> tuple[list[int], float]:
    from mlx_dspark.decode.params import SamplingParams
    from mlx_dspark.decode.round import run_round

    session = pair.session(ids, GenerateOptions(max_tokens=count, max_draft=0), SamplingParams(temperature=0))
    session.stops.eos_ids = frozenset()
    session.prefill()
    run_round(pair.target, [session])
    began = time.perf_counter()
    while session.finish is None:
        run_round(pair.target, [session])
    return session.ids[len(ids) :], time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default=str(DEMO / "target-4bit"))
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--equal", action="store_true")
    args = parser.parse_args()
    lines = (DEMO / "prompts.jsonl").read_text("utf-8").splitlines()
    pair = load(args.target, mode="baseline")
    step = max(1, len(lines) // args.prompts)
    prompts = [
        pair.prompt_ids(json.loads(line)["messages"], GenerateOptions()) for line in lines[::step][: args.prompts]
    ]
    if args.equal:
        model = mlx_lm_model(args.target, True)
        differing = sum(
            a != b
            for ids in prompts
            for a, b in zip(theirs(model, ids, args.tokens)[0], ours(pair, ids, args.tokens)[0], strict=True)
        )
        print(json.dumps({"prompts": len(prompts), "tokens": args.tokens, "differing": differing}))
        return 1 if differing else 0
    arms = {"mlx-lm": mlx_lm_model(args.target, False), "mlx-lm float32": mlx_lm_model(args.target, True)}
    speeds: dict[str, list[float]] = {name: [] for name in ("ours", *arms)}
    for trial in range(args.trials):
        ids = prompts[trial % len(prompts)]
        for name, model in arms.items():
            speeds[name].append((args.tokens - 1) / theirs(model, ids, args.tokens)[1])
        speeds["ours"].append((args.tokens - 1) / ours(pair, ids, args.tokens)[1])
    middle = {name: statistics.median(found) for name, found in speeds.items()}
    ratios = {
        name: statistics.median(o / t for o, t in zip(speeds["ours"], speeds[name], strict=True)) for name in arms
    }
    for name, value in middle.items():
        print(f"{name:16s} {value:7.1f} tok/s" + (f"   ours / {name} {ratios[name]:.2f}" if name in ratios else ""))
    print(json.dumps({"tokens_per_second": middle, "ratios": ratios, "trials": args.trials}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
