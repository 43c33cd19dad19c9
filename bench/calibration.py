"""Are the survival estimates calibrated? Fits the priors on every second prompt and judges the estimates on the others.

    python bench/calibration.py [--prompts FILE ...] [--max-tokens 128] [--rounds FILE] [--write]

Decodes each prompt with full blocks, greedily and at temperature 1, and notes each draft's margin and whether it stood.
Then runs the estimator over the held-out half as decoding would: prompts in a shuffled order, every number before the
round it is about. Prints, by position i, the expected calibration error (10 equal bins) of the predicted chance that at
least i drafts stand. --rounds keeps what was decoded; --write puts the priors, fitted on the same half, into
mlx_dspark/decode/priors.py. The last line is JSON; exit code 1 if an error exceeds 0.05.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlx_dspark import load
from mlx_dspark.decode.cap import FixedCap, Outcome
from mlx_dspark.decode.params import SamplingParams
from mlx_dspark.decode.round import run_round
from mlx_dspark.decode.survival import Experience, Prior, Survival
from mlx_dspark.engine.settings import GenerateOptions
from mlx_dspark.models.drafter import DraftBlock

ROOT = Path(__file__).parent.parent / "mlx_dspark"
KNOTS = (0.0, 0.5, 1.0, 2.0, 3.0, 4.5, 6.0, 8.0, 11.0)
LIMIT, BINS, DOUBT = 0.05, 10, 4.0
Run = dict[str, Any]
"""One answer: source, sampled, index, and blocks of (margins or None, drafts that stood, drafts decided)."""


class Recorder(FixedCap):
    """Verifies whole blocks and notes what stood."""

    def __init__(self, drafts: int):
        super().__init__(drafts)
        self.blocks: list[tuple[list[float] | None, int, int, int]] = []

    def trim(self, block: DraftBlock) -> DraftBlock:
        self._ids = block.ids()
        self._margins = block.confidence.read(len(block)) if block.confidence else None
        return super().trim(block)

    def observe(self, outcome: Outcome) -> None:
        if self._ids:
            pairs = list(zip(self._ids, outcome.tokens, strict=False))
            stood = next((i for i, (draft, token) in enumerate(pairs) if draft != token), len(pairs))
            self.blocks.append((self._margins, stood, min(len(pairs), stood + 1), len(self._ids)))


def collect(files: Sequence[Path], max_tokens: int) -> list[Run]:
    runs: list[Run] = []
    for mode in ("dspark", "lookup"):
        pair = load("demo", mode=mode, calibrate=False)
        for file in files:
            for index, line in enumerate(file.read_text("utf-8").splitlines()):
                prompt = json.loads(line)
                options = GenerateOptions(max_tokens=max_tokens, max_draft=7, thinking=prompt.get("enable_thinking"))
                for temperature in (0.0, 1.0):
                    ids = pair.prompt_ids(prompt["messages"], options)
                    session = pair.session(ids, options, SamplingParams(temperature=temperature, seed=index))
                    session.cap = recorder = Recorder(7)
                    session.prefill()
                    while session.finish is None:
                        run_round(pair.target, [session])
                    sampled = temperature > 0
                    runs.append({"source": mode, "sampled": sampled, "index": index, "blocks": recorder.blocks})
    return runs


def decided(runs: Sequence[Run]) -> Iterator[tuple[int, float | None, bool]]:
    """(position, margin, stood) of each draft whose predecessors stood."""
    for run in runs:
        for margins, stood, known, _ in run["blocks"]:
            yield from ((i, margins[i] if margins else None, i < stood) for i in range(known))


def fit(runs: Sequence[Run]) -> Prior:
    """Log-odds that rise with the margin, by straight lines between knots, plus one number a position."""
    drafts = list(decided(runs))
    at = np.array([d[0] for d in drafts])
    stood = np.array([d[2] for d in drafts], float)
    places = int(at.max()) + 1
    rates = [(stood[at == i].sum() + 1) / ((at == i).sum() + 2) for i in range(places)]
    blind = tuple(round(float(np.log(r / (1 - r))), 2) for r in rates)
    if drafts[0][1] is None:
        return Prior(blind=blind, doubt=1.0)
    margins = np.clip([d[1] for d in drafts], 0, KNOTS[-1])
    hats = np.stack([np.interp(margins, KNOTS, row) for row in np.eye(len(KNOTS))], axis=1)
    seen = hats.sum(axis=0) > 0
    knots, hats = tuple(k for k, s in zip(KNOTS, seen, strict=True) if s), hats[:, seen]
    design = np.concatenate([hats, np.eye(places)[at][:, 1:]], axis=1)
    weights = np.zeros(design.shape[1])
    for _ in range(30):  # Newton's steps of a logistic regression with a weak ridge
        chance = 1 / (1 + np.exp(-design @ weights))
        slope = design.T @ (stood - chance) - 0.5 * weights
        curve = design.T @ (design * (chance * (1 - chance))[:, None]) + 0.5 * np.eye(len(weights))
        weights = weights + np.linalg.solve(curve, slope)
    odds = np.maximum.accumulate(weights[: len(knots)])
    rounded = [tuple(round(float(w), 2) for w in part) for part in (odds, weights[len(knots) :])]
    return Prior(knots, rounded[0], (0.0, *rounded[1]), blind, DOUBT)


def judge(prior: Prior, runs: Sequence[Run]) -> tuple[list[float], int]:
    """Expected calibration error by position of the chance that so many drafts stand, and the number of blocks."""
    runs = random.Random(1).sample(list(runs), len(runs))
    experience, found = Experience(prior), [([], []) for _ in range(7)]
    for run in runs:
        survival = Survival(experience)
        for margins, stood, known, count in run["blocks"]:
            odds = survival.odds(margins or [None] * count)
            standing = 1.0
            for i, chance in enumerate(survival.chances(odds)):
                standing *= chance
                if stood < known or i < known:
                    found[i][0].append(standing)
                    found[i][1].append(i < stood)
            survival.learn([(i, odds[i], i < stood) for i in range(known)])
    return [error(np.array(p), np.array(y, float)) for p, y in found], len(found[0][0])


def error(predicted: np.ndarray, true: np.ndarray) -> float:
    bins = np.minimum((predicted * BINS).astype(int), BINS - 1)
    parts = [(bins == b) for b in range(BINS)]
    return float(sum(p.mean() * abs(predicted[p].mean() - true[p].mean()) for p in parts if p.any()))


def write(priors: dict[tuple[str, bool], Prior]) -> None:
    lines = ["PRIORS: dict[tuple[str, bool], Prior] = {"]
    for key, prior in priors.items():
        lines += [
            f"    {key!r}: Prior(",
            *(f"        {n}={getattr(prior, n)!r}," for n in prior.__dataclass_fields__),
            "    ),",
        ]
    path = ROOT / "decode" / "priors.py"
    text = path.read_text("utf-8")
    begin, end = text.index("PRIORS:"), text.index("\n\n\ndef ")
    path.write_text(text[:begin] + "\n".join([*lines, "}"]).replace("'", '"') + text[end:], "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, nargs="+", default=[ROOT / "demo" / "prompts.jsonl"])
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=Path)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if args.rounds and args.rounds.exists():
        runs = json.loads(args.rounds.read_text("utf-8"))
    else:
        runs = collect(args.prompts, args.max_tokens)
        if args.rounds:
            args.rounds.write_text(json.dumps(runs), "utf-8")
    priors, report = {}, {}
    for source in ("dspark", "lookup"):
        for sampled in (False, True):
            mine = [r for r in runs if (r["source"], r["sampled"]) == (source, sampled)]
            prior = priors[source, sampled] = fit([r for r in mine if r["index"] % 2 == 0])
            errors, blocks = judge(prior, [r for r in mine if r["index"] % 2])
            name = f"{source} {'sampled' if sampled else 'greedy'}"
            report[name] = {"blocks": blocks, "errors": errors}
            print(f"{name:15s} {blocks:5d} blocks, by position " + " ".join(f"{e:.3f}" for e in errors))
    if args.write:
        write(priors)
    print(json.dumps(report))
    return int(max(max(r["errors"]) for r in report.values()) > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
