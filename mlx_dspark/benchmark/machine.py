"""This machine, as it is at the time of a measurement: system, chip, device, versions, load."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path

import mlx.core as mx

from mlx_dspark.benchmark.report import Machine
from mlx_dspark.engine.memory import machine_bytes
from mlx_dspark.engine.pair import Pair
from mlx_dspark.version import __version__

PACKAGES = ("mlx", "mlx-dspark-cpu")


def look_at(pair: Pair, load: tuple[float, ...] = ()) -> Machine:
    """Facts of this machine while `pair` is loaded; `load` are load averages taken so far."""
    return Machine(
        system=f"{platform.system()} {platform.release()}",
        chip=_chip(),
        device=str(pair.names["device"]),
        kernels=str(pair.names["kernels"]),
        cores=_cores(),
        memory_bytes=machine_bytes(),
        versions=_versions(),
        load=load,
    )


def load_average() -> float:
    """Processes that ran or wanted to run in the last minute."""
    return round(os.getloadavg()[0], 2)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform.startswith("linux") else os.cpu_count() or 1


def _versions() -> dict[str, str]:
    found = {"mlx-dspark": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _chip() -> str:
    """The chip in the vendor's words."""
    if sys.platform == "darwin":
        done = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=False
        )
        return done.stdout.strip() or platform.machine()
    name = str(mx.device_info().get("device_name", ""))
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return model or name or platform.machine()
