"""`mlx-dspark benchmark`: load, measure with a bar, print, write the files that were asked for."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlx_dspark.benchmark.options import BenchmarkOptions
from mlx_dspark.cli.flags import collect
from mlx_dspark.engine.settings import LoadOptions
from mlx_dspark.errors import OptionError

if TYPE_CHECKING:
    from mlx_dspark.benchmark.report import Report

GOOD, BROKEN, STOPPED = 0, 1, 130


def run(values: dict[str, Any]) -> int:
    """The whole command from parsed flag values; the exit code."""
    options: BenchmarkOptions = collect(BenchmarkOptions, values)
    loading: LoadOptions = collect(LoadOptions, values)
    from mlx_dspark.benchmark.files import STANDARD_OUTPUT, check_writable

    for flag in ("json", "html", "markdown"):
        check_writable(f"--{flag}", getattr(options, flag))
    if options.html == STANDARD_OUTPUT:
        raise OptionError("--html is -, but a page needs a file; give a name like page.html")
    report = _earlier(options.earlier) if options.earlier else _measure(loading, options)
    if report.partial and not report.method.trials:
        print("mlx-dspark: stopped before one trial was complete; nothing is written", file=sys.stderr)
        return STOPPED
    _show(report, options)
    return STOPPED if report.partial else GOOD if report.ok else BROKEN


def _earlier(name: str) -> Report:
    from mlx_dspark.benchmark.report import from_json

    try:
        return from_json(Path(name).read_text("utf-8"), name)
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"--from {name} cannot be read ({error}); give a file that --json wrote") from None


def _measure(loading: LoadOptions, options: BenchmarkOptions) -> Report:
    from mlx_dspark.benchmark.bench import benchmark, prompts_of
    from mlx_dspark.cli.progress import Progress
    from mlx_dspark.engine.load import load

    prompts = prompts_of(options)
    with Progress(sys.stderr, enabled=True) as progress:
        settings = {k: v for k, v in asdict(loading).items() if k not in ("model", "drafter")} | {
            "lookup_drafts": False
        }
        pair = load(loading.model, loading.drafter, say=progress.say, warn=progress.warn, **settings)
        return benchmark(pair, options, prompts, progress.step)


def _show(report: Report, options: BenchmarkOptions) -> None:
    """Write files, then print: the tables, unless something else was asked to go to standard output."""
    from mlx_dspark.benchmark.files import STANDARD_OUTPUT, write_whole
    from mlx_dspark.benchmark.page.page import page
    from mlx_dspark.benchmark.report import to_json
    from mlx_dspark.benchmark.text import markdown, terminal

    printed = False
    for name, write in ((options.json, to_json), (options.markdown, markdown), (options.html, page)):
        if name == STANDARD_OUTPUT:
            print(write(report), end="")
            printed = True
        elif name is not None:
            write_whole(Path(name), write(report))
            print(f"wrote {name}", file=sys.stderr)
    if not printed:
        print(terminal(report), end="")
    if report.partial or report.faults:
        problems = [fault.sentence for fault in report.faults[:1]]
        print("mlx-dspark:", *(["partial results"] if report.partial else problems), file=sys.stderr)
