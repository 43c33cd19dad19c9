"""The learning cap against fixed ones, by kind, on a pair's held-out prompts: decoding speed beside plain decoding.

    python bench/caps.py [--caps auto,0,2,3,4,5,7] [--prompts 3] [--tokens 128] [--trials 2] [--kinds chat,code,math]

Caps take turns on each prompt and their order turns with every trial, so that a machine that slows down slows all of
them; a speed is tokens over seconds after the first token, a ratio is of sums over the same prompts and trials. Every
text is compared with the plain one: a difference is an error and prints no speed. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from mlx_dspark import load

HERE = Path(__file__).parent.parent / "mlx_dspark" / "demo" / "prompts.jsonl"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--drafter")
    parser.add_argument("--file", type=Path, default=HERE)
    parser.add_argument("--kinds", default="chat,code,math")
    parser.add_argument("--caps", default="auto,0,2,3,4,5,7")
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--trials", type=int, default=2)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--lookup", action="store_true")
    parser.add_argument("--no-calibrate", action="store_true")
    args = parser.parse_args()
    pair = load(args.model, args.drafter, lookup_drafts=args.lookup, calibrate=not args.no_calibrate)
    prompts = [json.loads(line) for line in args.file.read_text("utf-8").splitlines()]
    caps, report = args.caps.split(","), {}
    for kind in args.kinds.split(","):
        mine = [p for p in prompts if p["kind"] == kind]
        mine = mine[:: max(1, len(mine) // args.prompts)][: args.prompts]
        seconds, tokens, lengths = dict.fromkeys(caps, 0.0), dict.fromkeys(caps, 0), dict.fromkeys(caps, 0)
        for trial in range(args.trials):
            for index, prompt in enumerate(mine):
                settings = {"max_tokens": args.tokens, "temperature": args.temperature, "seed": index}
                settings["thinking"] = prompt.get("enable_thinking")
                plain = pair.generate(prompt["messages"], max_draft=0, **settings)
                turn = (trial + index) % len(caps)
                for cap in caps[turn:] + caps[:turn]:
                    found = pair.generate(prompt["messages"], max_draft=cap if cap == "auto" else int(cap), **settings)
                    if found.tokens != plain.tokens:
                        print(f"{kind}, cap {cap}: the text differs from plain decoding; no speed is given")
                        return 1
                    seconds[cap] += found.decode_seconds
                    tokens[cap] += found.completion_tokens - 1
                    lengths[cap] += found.rounds
        speed = {cap: tokens[cap] / seconds[cap] for cap in caps}
        fixed = max((speed[cap] for cap in caps if cap != "auto"), default=0.0)
        ratios = {cap: speed[cap] / speed.get("0", speed[cap]) for cap in caps}
        report[kind] = {"speed": speed, "ratios": ratios, "auto_over_best": speed.get("auto", 0.0) / fixed}
        print(f"{kind:5s} " + "  ".join(f"{cap} {ratios[cap]:.2f}x ({tokens[cap] / lengths[cap]:.2f})" for cap in caps)
              + f"   auto / best fixed {report[kind]['auto_over_best']:.3f}")  # fmt: skip
    print(json.dumps({"load": os.getloadavg()[0], "kinds": report}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
