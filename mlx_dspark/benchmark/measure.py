"""The measuring loop: every arm answers every prompt in turn, trial after trial, so that drift meets all arms alike.

Arms take turns at going first. Ctrl-C ends it and keeps what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlx_dspark.benchmark.arms import PLAIN, Arm
from mlx_dspark.benchmark.options import BenchmarkOptions
from mlx_dspark.benchmark.prompts import Prompt
from mlx_dspark.benchmark.run import REHEARSAL, Run, run_once
from mlx_dspark.benchmark.verdict import Fault, judge

Show = Callable[[int, int, str], None]
"""(runs done, runs in all, what comes next)"""


@dataclass
class Measured:
    """Runs in the order they were made and what is wrong with any; `partial` where it was stopped."""

    runs: list[Run] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    partial: bool = False


def settings_of(options: BenchmarkOptions, chat_template: bool) -> dict[str, Any]:
    """What all arms have in common; without a chat template prompts are continued as they are."""
    return {
        "chat_template": chat_template,
        "max_tokens": options.max_tokens,
        "thinking": options.thinking,
        "temperature": options.temperature,
        "seed": options.seed,
    }


def measure(
    arms: Sequence[Arm],
    prompts: Sequence[Prompt],
    options: BenchmarkOptions,
    show: Show = lambda done, total, what: None,
    once: Callable[[Arm, Prompt, int, dict[str, Any]], Run] = run_once,
) -> Measured:
    """A rehearsal of everything, then the timed trials. `once` makes a run (tests have their own)."""
    found, settings = Measured(), settings_of(options, arms[0].pair.tokenizer.has_chat_template)
    total = len(arms) * len(prompts) * (options.trials + 1)
    try:
        for trial in range(REHEARSAL, options.trials + 1):
            for turn, prompt in enumerate(prompts):
                shift = (trial + turn) % len(arms)
                for arm in (*arms[shift:], *arms[:shift]):
                    name = f"trial {trial}/{options.trials}" if trial else "rehearsal"
                    show(len(found.runs), total, f"{name} · {prompt.kind} {prompt.index + 1} · {arm.name}")
                    found.runs.append(once(arm, prompt, trial, settings))
        show(total, total, "done")
    except KeyboardInterrupt:
        found.partial = True
    found.faults = judge_all(found.runs)
    return found


def judge_all(runs: Sequence[Run]) -> list[Fault]:
    """Every run against the first plain run of its prompt, the plain ones too."""
    plain: dict[tuple[str, int], tuple[int, ...] | None] = {}
    for run in runs:
        if run.arm == PLAIN:
            plain.setdefault((run.kind, run.prompt), None if run.error else run.tokens)
    found = ((run, plain.get((run.kind, run.prompt), run.tokens)) for run in runs)
    return [fault for run, reference in found if (fault := judge(run, reference))]
