"""`mlx-dspark convert`: a progress bar, then what was done; the work is `checkpoint.convert`'s."""

from __future__ import annotations

import sys
import time
from collections import Counter

from mlx_dspark.checkpoint.convert import Report, convert
from mlx_dspark.checkpoint.convert_options import ConvertOptions


def run(
    src: str,
    dst: str,
    *,
    format: str = "bf16",
    dry_run: bool = False,
    verify: bool = False,
    force: bool = False,
    hashes: bool = True,
) -> int:
    """Convert and print the summary on standard output. Raises DsparkError; returns the exit code, 0."""
    options = ConvertOptions(src, dst, format, dry_run, verify, force, hashes)
    began = time.perf_counter()
    report = _with_bar(options) if sys.stderr.isatty() else convert(options)
    print(*summary(report, time.perf_counter() - began), sep="\n")
    return 0


def _with_bar(options: ConvertOptions) -> Report:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    what = TextColumn("{task.description}")
    columns = (what, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("converting", total=None)

        def show(done: int, total: int) -> None:
            again = done < bar.tasks[0].completed
            bar.update(task, completed=done, total=total, description="proving" if again else None)

        return convert(options, show)


def summary(report: Report, seconds: float) -> list[str]:
    """What a report says, as lines."""
    revision = f" at {report.revision[:12]}" if report.revision else ""
    verb = {"bf16": "decoded to bf16", "mlx-nvfp4": "repacked into MLX's NVFP4 form"}[report.format]
    lines = [
        f"{report.source}{revision}: {report.modules} NVFP4 matrices {verb}, {report.copied} tensors passed through, "
        f"{report.parameters:,} parameters"
    ]
    if not report.written and not report.verified:
        lines += [f"  {line}" for line in plan_table(report)]
    lines += [f"dropped {name}: a weight-only result has no use for it" for name in report.dropped]
    lines += [f"left out {name}" for name in report.left_out]
    lines += [f"warning: {text}" for text in report.warnings]
    size = f"{report.bytes_in:,} -> {report.bytes_out:,} tensor bytes"
    if report.written:
        proved = ", every tensor proved" if report.verified else ""
        lines.append(f"wrote {report.destination}: {size} in {seconds:.1f} s{proved}")
    elif report.verified:
        lines.append(f"verified {report.destination}: every tensor is what the source gives, {seconds:.1f} s")
    else:
        lines.append(f"would write {report.destination}: {size}; nothing was written")
    return lines


def plan_table(report: Report) -> list[str]:
    """One line a tensor to write, then counts by what is done to it."""
    lines = []
    for item in report.items:
        was = " + ".join(f"{i.dtype} {list(i.shape)}" for i in item.sources)
        lines.append(f"{item.how:9} {item.spec.name}  {was} -> {item.spec.dtype} {list(item.spec.shape)}")
    counts = Counter(item.how for item in report.items)
    return [*lines, ", ".join(f"{n} {how}" for how, n in sorted(counts.items()))]
