"""Ours against its peers on the embedded pair: end-to-end tokens a second, alternating in one run.

    python bench/peers/compare.py FOLDER [--install] [--only mlx-lm,mlx-vlm] [--trials 3] [--per-kind 3]
                                  [--max-tokens 64] [--float32] [--json FILE]

FOLDER holds one virtual environment a peer; `--install` makes and fills those that are missing (nothing is fetched
without it). Every program keeps its model loaded; loading, calibration and a rehearsal are not timed. Prompts are the
embedded pair's held-out ones, the same token ids for all, greedy. A ratio is ours over theirs in tokens a second,
plain with plain and drafted with drafted, median over trials. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
DEMO = ROOT / "mlx_dspark" / "demo"
PINS = {"mlx-lm": "mlx-lm==0.32.2", "mlx-dspark": "mlx-dspark==0.20.3", "mlx-vlm": "mlx-vlm==0.7.10"}
MLX = "mlx[cpu]" if sys.platform.startswith("linux") else "mlx"


class Worker:
    """A program in its own process. The peer named mlx-dspark is imported by our name too: hence own interpreters,
    `-I` (no PYTHONPATH, no current folder) and an own HOME, where it keeps its calibration."""

    def __init__(self, name: str, folder: Path, float32: bool):
        self.name = name
        home = folder / "home"
        home.mkdir(parents=True, exist_ok=True)
        python = [sys.executable] if name == "ours" else [str(folder / name / "bin" / "python"), "-I"]
        env = {**os.environ, "HF_HUB_OFFLINE": "1"}
        env |= {"PYTHONPATH": str(ROOT)} if name == "ours" else {"HOME": str(home)}
        command = [*python, str(HERE / "worker.py"), name, str(DEMO / "target-4bit"), str(DEMO / "drafter")]
        self.process = subprocess.Popen(
            command + (["--float32"] if float32 else []), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=(folder / f"{name}.log").open("w"), text=True, env=env, cwd=ROOT if name == "ours" else folder,
        )  # fmt: skip
        self.log = folder / f"{name}.log"
        self.ready = self.read()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended (exit code {self.process.wait()}); see {self.log}")
        return json.loads(line)

    def answer(self, arm: str, ids: list[int], count: int) -> dict[str, Any]:
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"arm": arm, "ids": ids, "max_tokens": count}) + "\n")
        self.process.stdin.flush()
        return self.read()

    def end(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(timeout=60)


def install(folder: Path, names: list[str]) -> None:
    for name in names:
        python = folder / name / "bin" / "python"
        if not python.exists():
            print(f"installing {PINS[name]} into {folder / name}", file=sys.stderr)
            subprocess.run([sys.executable, "-m", "venv", str(folder / name)], check=True)
            pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", MLX, PINS[name]]
            subprocess.run(pip, check=True)


def prompts(per_kind: int) -> list[tuple[str, list[int]]]:
    """(kind, token ids) of the embedded pair's held-out prompts."""
    sys.path.insert(0, str(ROOT))
    from mlx_dspark.checkpoint.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_folder(DEMO / "target-4bit")
    found: dict[str, list[list[int]]] = defaultdict(list)
    for line in (DEMO / "prompts.jsonl").read_text("utf-8").splitlines():
        value = json.loads(line)
        found[value["kind"]].append(tokenizer.chat_ids(value["messages"], enable_thinking=value["enable_thinking"]))
    return [(kind, ids) for kind, group in found.items() for ids in group[:: max(1, len(group) // per_kind)][:per_kind]]


def measure(workers: list[Worker], jobs: list[tuple[str, list[int]]], trials: int, count: int) -> dict[str, Any]:
    """{arm of a program: {trial: [runs]}}; trial 0 is the rehearsal."""
    found: dict[str, Any] = defaultdict(lambda: defaultdict(list))
    arms = [(worker, arm) for worker in workers for arm in worker.ready["arms"]]
    for trial in range(trials + 1):
        for turn, (kind, ids) in enumerate(jobs):
            shift = (trial + turn) % len(arms)
            for worker, arm in (*arms[shift:], *arms[:shift]):
                found[f"{worker.name} {arm}"][trial].append({"kind": kind, **worker.answer(arm, ids, count)})
        print(f"{'rehearsal' if trial == 0 else f'trial {trial} of {trials}'} done", file=sys.stderr)
    return found


def speeds(runs: dict[int, list[dict[str, Any]]], seconds: str, kind: str | None = None) -> list[float]:
    """Tokens a second, one figure a timed trial."""
    timed = [[r for r in runs[trial] if kind in (None, r["kind"])] for trial in sorted(runs) if trial]
    return [sum(len(r["tokens"]) for r in group) / sum(r[seconds] for r in group) for group in timed]


def summary(found: dict[str, Any], kinds: list[str]) -> dict[str, Any]:
    reference = [r["tokens"] for r in found["ours plain"][0]]
    table = {}
    for name, runs in found.items():
        mine = f"ours {name.split()[1]}"
        ratios = {
            key: statistics.median(a / b for a, b in zip(speeds(found[mine], s, k), speeds(runs, s, k), strict=True))
            for key, s, k in (
                ("wall", "seconds", None),
                ("cpu", "cpu_seconds", None),
                *((k, "seconds", k) for k in kinds),
            )
        }
        table[name] = {
            "tokens_per_second": statistics.median(speeds(runs, "seconds")),
            "tokens_per_cpu_second": statistics.median(speeds(runs, "cpu_seconds")),
            "ours_over_this": ratios,
            "same_answers_as_ours": sum(r["tokens"] == t for r, t in zip(runs[0], reference, strict=True)),
        }
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--only", default=",".join(PINS))
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--per-kind", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--float32", action="store_true", help="hold the peers' activations in float32 as well")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    folder, names = args.folder.resolve(), [name for name in args.only.split(",") if name]
    unknown = [name for name in names if name not in PINS]
    if unknown:
        parser.error(f"--only has {unknown[0]!r}; peers are {', '.join(PINS)}")
    folder.mkdir(parents=True, exist_ok=True)
    if args.install:
        install(folder, names)
    absent = [name for name in names if not (folder / name / "bin" / "python").exists()]
    if absent:
        parser.error(f"{absent[0]} is not installed in {folder}; add --install, or leave it out with --only")
    load_before = os.getloadavg()[0]
    workers = [Worker(name, folder, args.float32) for name in ("ours", *names)]
    jobs = prompts(args.per_kind)
    kinds = list(dict.fromkeys(kind for kind, _ in jobs))
    table = summary(measure(workers, jobs, args.trials, args.max_tokens), kinds)
    for worker in workers:
        worker.end()
    print(f"{'':20}{'tok/s':>8}{'tok/CPU-s':>11}   ours over this: wall, CPU, by kind; same answers as ours plain")
    for name, row in table.items():
        ratios = row["ours_over_this"]
        by_kind = " ".join(f"{kind} {ratios[kind]:.2f}" for kind in kinds)
        print(
            f"{name:20}{row['tokens_per_second']:8.1f}{row['tokens_per_cpu_second']:11.1f}   {ratios['wall']:.2f} "
            f"{ratios['cpu']:.2f}  {by_kind}   {row['same_answers_as_ours']}/{len(jobs)}"
        )
    result = {
        "table": table, "prompts": len(jobs), "max_tokens": args.max_tokens, "trials": args.trials,
        "float32": args.float32, "versions": {w.name: w.ready["version"] for w in workers},
        "load": [load_before, os.getloadavg()[0]],
    }  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
