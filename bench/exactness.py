"""Is drafted decoding token for token the same as plain decoding? Counts differing tokens, prompt by prompt.

    python bench/exactness.py --prompts FILE [--model demo] [--drafter demo-drafter] [--max-tokens 128]
                              [--limit N] [--modes dspark,lookup] [--caps 1,3,7] [--context N]

Every prompt is decoded plainly, greedy and at temperature 1 with a seed, then with every drafter and cap. Each
prompt is prefilled once; every run starts from its snapshot. `--context` puts the other prompts' text in front until
the prompt has N tokens. The last line is JSON; exit code 1 on a difference.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from mlx_dspark import load
from mlx_dspark.decode.params import SamplingParams
from mlx_dspark.decode.round import run_round
from mlx_dspark.engine.pair import Pair
from mlx_dspark.engine.settings import GenerateOptions
from mlx_dspark.models.drafter import Drafter, NoDrafter
from mlx_dspark.models.lookup import Lookup
from mlx_dspark.models.state import Snapshot

SAMPLINGS = {"greedy": SamplingParams(temperature=0), "t1": SamplingParams(temperature=1.0, top_p=1.0, seed=1234)}


def decode(
    pair: Pair,
    drafter: Drafter,
    draft_state: object,
    start: Snapshot,
    ids: list[int],
    max_tokens: int,
    cap: int,
    how: str,
) -> tuple[list[int], int]:
    """Tokens and rounds of one run that begins at the snapshot."""
    options = GenerateOptions(max_tokens=max_tokens, max_draft=cap)
    session = pair.session(ids, options, SAMPLINGS[how])
    session.drafter = drafter
    session.state.restore(start)
    session.draft_state = draft_state
    rounds = 0
    while session.finish is None:
        run_round(pair.target, [session])
        rounds += 1
    return session.ids[len(ids) :], rounds


def padding(pair: Pair, prompts: list[dict], count: int) -> list[int]:
    """`count` tokens of the prompts' own text, repeated as needed."""
    text = "\n".join(str(message["content"]) for prompt in prompts for message in prompt["messages"])
    ids = pair.tokenizer.encode(text)
    return (ids * (count // len(ids) + 1))[:count] if count > 0 else []


def observed(drafter: Drafter, ids: list[int], taps: dict) -> object:
    """A fresh drafter state that has seen the prompt."""
    state = drafter.new_state()
    drafter.observe(state, ids, 0, taps)
    return state


def check_prompt(
    pair: Pair, drafters: dict[str, Drafter], ids: list[int], args: argparse.Namespace, totals: dict
) -> None:
    state = pair.target.new_state()
    layers = sorted({t for d in drafters.values() for t in d.taps})
    taps = pair.target.prefill(state, 0, ids[:-1], layers) if len(ids) > 1 else {}
    start = state.snapshot()
    for how in SAMPLINGS:
        plain, _ = decode(pair, NoDrafter(), None, start, ids, args.max_tokens, 0, how)
        for name, drafter in drafters.items():
            for cap in args.caps:
                seen = observed(drafter, ids[:-1], {k: v for k, v in taps.items() if k in drafter.taps})
                got, rounds = decode(pair, drafter, seen, start, ids, args.max_tokens, cap, how)
                differing = sum(a != b for a, b in zip(plain, got, strict=False)) + abs(len(plain) - len(got))
                entry = totals.setdefault(
                    f"{name} cap {cap} {how}", {"prompts": 0, "tokens": 0, "rounds": 0, "differing": 0}
                )
                for key, value in (("prompts", 1), ("tokens", len(got)), ("rounds", rounds), ("differing", differing)):
                    entry[key] += value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--drafter", default="demo-drafter")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--modes", default="dspark,lookup")
    parser.add_argument("--caps", default="1,3,7")
    parser.add_argument("--context", type=int, default=0)
    args = parser.parse_args()
    args.caps = [int(c) for c in args.caps.split(",")]
    pair = load(args.model, args.drafter)
    drafters = {n: d for n, d in (("dspark", pair.drafter), ("lookup", Lookup())) if n in args.modes.split(",")}
    prompts = [json.loads(line) for line in args.prompts.read_text("utf-8").splitlines()][: args.limit]
    totals: dict[str, dict[str, int]] = {}
    began = time.time()
    for number, prompt in enumerate(prompts, 1):
        options = GenerateOptions(thinking=prompt.get("enable_thinking"))
        ids = pair.prompt_ids(prompt["messages"], options)
        check_prompt(pair, drafters, padding(pair, prompts, args.context - len(ids)) + ids, args, totals)
        bad = sum(t["differing"] for t in totals.values())
        print(
            f"{number}/{len(prompts)} prompts, {bad} differing tokens, {time.time() - began:.0f} s",
            file=sys.stderr,
            flush=True,
        )
    for name, total in totals.items():
        print(f"{name:24s} {total['prompts']:4d} prompts {total['tokens']:7d} tokens {total['differing']:5d} differing "
              f"accept length {total['tokens'] / total['rounds']:.3f}")  # fmt: skip
    differing = sum(t["differing"] for t in totals.values())
    print(
        json.dumps(
            {
                "exact": differing == 0,
                "differing": differing,
                "model": args.model,
                "probe": pair.widths.exact,
                "kernels": pair.names["kernels"],
                "context": args.context,
                "runs": totals,
            }
        )
    )
    return 0 if differing == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
