"""What this machine runs and how exactly: versions, device, kernels, a pair's width probe, where models are sought.

Finds things out and words them; prints nothing. A model that cannot be loaded is a finding, not a failure.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import mlx.core as mx

from mlx_dspark.checkpoint.resolve import places
from mlx_dspark.engine.load import device_name, load
from mlx_dspark.engine.pair import Pair
from mlx_dspark.errors import DsparkError
from mlx_dspark.version import __version__

PACKAGES = ("mlx", "numpy", "tokenizers", "huggingface_hub", "mlx-lm")
Lines = list[tuple[str, str]]


@dataclass
class Examination:
    """Sections in order, each a list of (what, finding); `healthy` is false where something asked for does not work."""

    sections: dict[str, Lines] = field(default_factory=dict)
    healthy: bool = True

    def add(self, section: str, what: str, finding: str) -> None:
        self.sections.setdefault(section, []).append((what, finding))


def examine(model: str, drafter: str | None = None, say: Callable[[str], None] = lambda line: None) -> Examination:
    """Look at the machine, then load the pair and probe it."""
    found = Examination()
    for what, finding in _versions():
        found.add("versions", what, finding)
    for what, finding in _device():
        found.add("device", what, finding)
    for what, finding in places():
        found.add("models are looked for in", what, finding)
    try:
        pair = load(model, drafter, say=say, calibrate=False)
    except DsparkError as error:
        found.healthy = False
        found.add("pair", model, f"cannot be loaded: {error}")
        return found
    found.add("device", "kernels", str(pair.names["kernels"]))
    for what, finding in _pair(pair):
        found.add("pair", what, finding)
    for what, finding in _costs(pair):
        found.add("costs on this machine", what, finding)
    found.healthy = pair.widths.exact
    return found


def _versions() -> Lines:
    lines = [("mlx-dspark", __version__), ("python", platform.python_version()), ("system", platform.platform())]
    for name in PACKAGES:
        try:
            lines.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            lines.append((name, "not installed"))
    return lines


def _device() -> Lines:
    lines = [("device", device_name())]
    if sys.platform.startswith("linux"):
        lines.append(("cores", f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}"))
    memory = mx.device_info().get("memory_size")
    if memory:
        lines.append(("memory", f"{int(memory) / 2**30:.0f} GiB"))
    return lines


def _pair(pair: Pair) -> Lines:
    lines = [
        ("target", str(pair.names["model"])),
        ("drafter", f"{pair.names['drafter'] or 'none'} ({pair.drafter.name})"),
        ("weights", f"{pair.nbytes / 2**20:.0f} MiB"),
        ("chat template", _template(pair.tokenizer.template_sha256)),
        ("rows in a verify", pair.widths.describe()),
    ]
    for kind, widths in pair.widths.exact_at.items():
        bad = [str(width) for width, ok in widths.items() if not ok]
        lines.append((kind, f"differs at {', '.join(bad)} rows" if bad else f"same bits at {_span(list(widths))} rows"))
    return lines


def _template(digest: str | None) -> str:
    return "none: prompts are plain texts" if digest is None else f"sha256 {digest}"


def _costs(pair: Pair) -> Lines:
    """The stored curves, or how to make them."""
    if pair.calibration:
        return [("measured", pair.calibration.measured), *pair.calibration.table.describe()]
    if not pair.drafter.max_draft:
        return [("not measured", "nothing is drafted")]
    return [("not measured", "generate and serve do it when they first need it, or: mlx-dspark calibrate")]


def _span(widths: list[int]) -> str:
    return f"{min(widths)}-{max(widths)}" if widths else "no"
