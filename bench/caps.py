"""The learning cap against fixed ones, by kind, on a pair's held-out prompts: decoding speed beside plain decoding.

    python bench/caps.py [--caps auto,0,2,3,4,5,7] [--prompts 3] [--tokens 128] [--trials 2] [--kinds chat,code,math]

Caps take turns on each prompt and their order turns with every trial, so that a machine that slows down slows all of
them; a speed is tokens over seconds after the first token, a ratio is of sums over the same prompts and trials. Every
text is compared with the plain one: a difference is an error and prints no speed. Then an adversary, whose drafts are
all wrong and cost nothing to make, over --adversary tokens: plain seconds over its seconds. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlx_dspark import Pair, load
from mlx_dspark.decode.params import SamplingParams
from mlx_dspark.decode.round import run_round
from mlx_dspark.engine.settings import GenerateOptions
from mlx_dspark.models.drafter import DraftBlock, DraftRequest, block_of

HERE = Path(__file__).parent.parent / "mlx_dspark" / "demo" / "prompts.jsonl"


class Adversary:
    """The pair's drafter by name and habits; its drafts are wrong, always."""

    def __init__(self, inner: Any, plain: list[int]):
        self.plain, self.name, self.sources = plain, inner.name, inner.sources
        self.taps, self.max_draft, self.context = inner.taps, inner.max_draft, inner.context
        self.new_state, self.copy_state, self.observe = inner.new_state, inner.copy_state, inner.observe

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
        return [self._lie(r) for r in requests]

    def _lie(self, r: DraftRequest) -> DraftBlock:
        return block_of([t + 1 for t in self.plain[r.position + 1 : r.position + 1 + r.count]], self.name)


def adversary(pair: Pair, count: int, trials: int) -> float:
    """Plain seconds over those with an adversary, medians of trials that take turns in both orders."""
    seconds: dict[int | None, list[float]] = {0: [], None: []}
    plain: list[int] = []
    for trial in range(trials + 1):
        caps: list[int | None] = [0, None] if trial % 2 == 0 else [None, 0]
        for cap in caps:
            options = GenerateOptions(max_tokens=count, max_draft=cap, thinking=False)
            ids = pair.prompt_ids("Tell me about two boats.", options)
            session = pair.session(ids, options, SamplingParams(temperature=0))
            session.stops.eos_ids = frozenset()
            if cap is None:
                session.drafter = Adversary(pair.drafter, plain)  # type: ignore[assignment]
            session.prefill()
            run_round(pair.target, [session])
            began = time.perf_counter()
            while session.finish is None:
                run_round(pair.target, [session])
            if trial:
                seconds[cap].append(time.perf_counter() - began)
            assert not plain or session.ids == plain
            plain = session.ids
    return statistics.median(seconds[0]) / statistics.median(seconds[None])


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
    parser.add_argument("--adversary", type=int, default=0, metavar="TOKENS")
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
    lies = adversary(pair, args.adversary, max(9, args.trials)) if args.adversary else None
    if lies is not None:
        print(f"adversary over plain {lies:.3f}")
    print(json.dumps({"load": os.getloadavg()[0], "kinds": report, "adversary": lies}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
