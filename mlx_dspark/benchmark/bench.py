"""A whole benchmark: a loaded pair and options in, a Report out. Puts the parts together, computes nothing itself."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mlx_dspark.benchmark.arms import PLAIN, Arm, choose_arms
from mlx_dspark.benchmark.curves import curves_of
from mlx_dspark.benchmark.describe import describe
from mlx_dspark.benchmark.machine import load_average, look_at
from mlx_dspark.benchmark.measure import Measured, Show, measure
from mlx_dspark.benchmark.options import BenchmarkOptions
from mlx_dspark.benchmark.prompts import SUITE, Prompt, read_prompts
from mlx_dspark.benchmark.report import SCHEMA, Machine, Method, PairFacts, Report
from mlx_dspark.benchmark.summary import Summary, run_lines
from mlx_dspark.engine.pair import Pair


def prompts_of(options: BenchmarkOptions) -> list[Prompt]:
    """The prompts to measure; fails before anything is loaded."""
    return read_prompts(Path(options.prompts or SUITE), options.kind_names(), options.per_kind)


def benchmark(
    pair: Pair, options: BenchmarkOptions, prompts: Sequence[Prompt], show: Show = lambda done, total, what: None
) -> Report:
    """Measure a pair. Ctrl-C makes the report partial."""
    arms = choose_arms(pair, options)
    facts, before = describe(pair), load_average()
    found = measure(arms, prompts, options, show)
    machine = look_at(pair, (before, load_average()))
    return replace(
        build_report(found, arms, prompts, options, (facts, machine)),
        curves=curves_of(pair.calibration.table if pair.calibration else None),
    )


def build_report(
    found: Measured,
    arms: Sequence[Arm],
    prompts: Sequence[Prompt],
    options: BenchmarkOptions,
    about: tuple[PairFacts, Machine],
) -> Report:
    """Records of what was measured, with today's date."""
    plan = dict(Counter(prompt.kind for prompt in prompts))
    summary = Summary(found.runs, found.faults, arms, plan)
    cells = summary.cells()
    compared = [run for run in found.runs if run.arm != PLAIN]
    facts, machine = about
    return Report(
        schema=SCHEMA,
        made=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        partial=found.partial,
        lossless=bool(compared) and not any(fault.lossy for fault in found.faults),
        compared_runs=len(compared),
        compared_tokens=sum(len(run.tokens) for run in compared),
        pair=facts,
        machine=machine,
        method=Method(
            trials=min((len(summary.trials(kind)) for kind in plan), default=0),
            trials_asked=options.trials,
            prompts=plan,
            max_tokens=options.max_tokens,
            thinking=options.thinking,
            temperature=options.temperature,
            seed=options.seed,
            suite="built-in" if options.prompts is None else Path(options.prompts).name,
        ),
        curves=None,
        cells=cells,
        totals=summary.totals(cells),
        faults=tuple(found.faults),
        runs=run_lines(found.runs, found.faults),
    )
