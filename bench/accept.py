"""Accept length by kind on a pair's held-out prompts, greedy: tokens a round, bonus included.

    python bench/accept.py [--prompts mlx_dspark/demo/prompts.jsonl] [--every 2] [--cap 7] [--max-tokens 128]

The first token belongs to the prompt. Prints per kind the mean over rounds and the share of drafts kept by position; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from mlx_dspark import load
from mlx_dspark.engine.result import Tally

HERE = Path(__file__).parent.parent / "mlx_dspark" / "demo" / "prompts.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--drafter", default="demo-drafter")
    parser.add_argument("--prompts", type=Path, default=HERE)
    parser.add_argument("--every", type=int, default=2, help="use every n-th prompt of a kind")
    parser.add_argument("--cap", type=int, default=7)
    parser.add_argument("--max-tokens", type=int, default=128)
    args = parser.parse_args()
    pair = load(args.model, args.drafter)
    prompts = [json.loads(line) for line in args.prompts.read_text("utf-8").splitlines()]
    found = {}
    for kind in dict.fromkeys(p["kind"] for p in prompts):
        proposed, accepted, rounds, tokens = [0] * args.cap, [0] * args.cap, 0, 0
        for prompt in [p for p in prompts if p["kind"] == kind][:: args.every]:
            tally = Tally()
            thinking = prompt.get("enable_thinking")
            result = pair.generate(
                prompt["messages"],
                tally=tally,
                max_tokens=args.max_tokens,
                max_draft=args.cap,
                thinking=thinking,
                temperature=0,
            )
            rounds, tokens = rounds + result.rounds, tokens + result.completion_tokens - 1
            for i, (a, p) in enumerate(zip(tally.accepted_at, tally.proposed_at, strict=True)):
                accepted[i] += a
                proposed[i] += p if i == 0 else tally.accepted_at[i - 1]
        shares = [a / p if p else 0.0 for a, p in zip(accepted, proposed, strict=True)]
        found[kind] = {"rounds": rounds, "tokens": tokens, "accept_length": tokens / rounds, "per_position": shares}
        print(
            f"{kind:6s} {rounds:5d} rounds, accept length {tokens / rounds:.3f}, by position "
            + " ".join(f"{s:.2f}" for s in shares)
        )
    print(json.dumps({"cap": args.cap, "model": args.model, "kinds": found}))


if __name__ == "__main__":
    main()
