"""What converting costs beside copying: processor time as a ratio to `cp` of the same file, and peak memory.

    python bench/make_nvfp4_source.py SRC
    python bench/convert.py SRC [--runs 5] [--scratch FOLDER]

Each run converts to each format, with and without sha256 of every tensor, and copies the source's weights once, in
turn; the source is read once before, so it is cached for all. Processor time is user + system of the whole process,
interpreter start included. A ratio is one of medians. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CODE = "import sys; from mlx_dspark.cli.convert import run; run(sys.argv[1], sys.argv[2], format={!r}, hashes={})"
KINDS = {
    f"{name}{'' if hashes else ' without hashes'}": (name, hashes)
    for name in ("bf16", "mlx-nvfp4")
    for hashes in (True, False)
}


def measure(command: list[str]) -> dict[str, float]:
    """CPU seconds, wall seconds and peak MiB of one process."""
    began = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{command[0]} ended with {child.returncode}")
    scale = 1024 if sys.platform.startswith("linux") else 1 << 20
    wall = time.perf_counter() - began
    return {"cpu": usage.ru_utime + usage.ru_stime, "wall": wall, "rss": usage.ru_maxrss / scale}


def one_round(src: Path, scratch: Path, runs: dict[str, list[dict[str, float]]]) -> None:
    weights, copy, out = src / "model.safetensors", scratch / "copy.bin", scratch / "out"
    runs.setdefault("cp", []).append(measure(["cp", str(weights), str(copy)]))
    copy.unlink()
    for kind, (name, hashes) in KINDS.items():
        command = [sys.executable, "-c", CODE.format(name, hashes), str(src), str(out)]
        runs.setdefault(kind, []).append(measure(command))
        shutil.rmtree(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("src", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--scratch", type=Path, help="where results are written and removed (default: beside SRC)")
    args = parser.parse_args()
    runs: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(dir=args.scratch or args.src.absolute().parent) as folder:
        with (args.src / "model.safetensors").open("rb") as file:
            while file.read(1 << 20):
                pass
        for _ in range(args.runs):
            one_round(args.src, Path(folder), runs)
    result = {}
    base = statistics.median(r["cpu"] for r in runs["cp"])
    for kind, found in runs.items():
        cpu = [round(r["cpu"], 2) for r in found]
        wall, rss = statistics.median(r["wall"] for r in found), max(r["rss"] for r in found)
        middle = statistics.median(cpu)
        result[kind] = {
            "cpu_s": middle,
            "cpu_runs": cpu,
            "to_cp": round(middle / base, 2),
            "wall_s": round(wall, 2),
            "rss_mib": round(rss, 1),
        }
        print(f"{kind:28} {middle:6.2f} s CPU  {middle / base:5.2f} x cp  {wall:6.2f} s wall  {rss:6.1f} MiB  {cpu}")
    print(json.dumps({"bench": "convert", "bytes": (args.src / "model.safetensors").stat().st_size, "results": result}))


if __name__ == "__main__":
    main()
