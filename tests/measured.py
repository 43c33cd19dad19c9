"""Measurements without a model: arms with a script of what their runs give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from mlx_dspark.benchmark.arms import Arm
from mlx_dspark.benchmark.bench import build_report
from mlx_dspark.benchmark.measure import measure
from mlx_dspark.benchmark.options import BenchmarkOptions
from mlx_dspark.benchmark.pressure import Pressure
from mlx_dspark.benchmark.prompts import Prompt
from mlx_dspark.benchmark.report import Curve, Curves, Machine, PairFacts, Report
from mlx_dspark.benchmark.run import Run
from mlx_dspark.benchmark.verdict import CRASHED, DIFFERS, ENDS_EARLY, FAULT_LIMIT, SWAP_LIMIT, SWAPPED

Change = Callable[[Run], Run]
PLAIN_SECONDS = 2.0
SPEEDS = {"plain": 1.0, "auto": 1.6, "cap 2": 1.25, "cap 4": 1.5}
PROMPTS = [
    Prompt(kind, i, ({"role": "user", "content": f"{kind} {i}"},)) for kind in ("chat", "code") for i in range(2)
]
FACTS = PairFacts(
    name="A pair", target="org/target", drafter="org/drafter", maker="Someone", licence="Free", summary="A hybrid.",
    notes="A note.", pattern="M*E-", taps=(0, 2), parameters=12_300_000, active_parameters=4_000_000, disk_bytes=10**7,
    loaded_bytes=2 * 10**7, target_facts=(("layers", "4"),), drafter_facts=(("drafts", "up to 4 a round"),),
    features=("Bit-exact",), commands=("mlx-dspark generate --model org/target",), exact=True,
)  # fmt: skip
MACHINE = Machine("Linux", "A chip", "cpu", "kernels", 2, 2**34, {"mlx-dspark": "0", "mlx": "1"}, (0.5, 1.0))
CURVES = Curves(
    (Curve(64, {n: 2 + 0.4 * n for n in range(1, 9)}), Curve(2048, {n: 3 + 0.6 * n for n in range(1, 9)})),
    dict.fromkeys(range(1, 5), 1.0), 0.1, 0.2, "8k did not fit",
)  # fmt: skip


def arms(names: Sequence[str] = tuple(SPEEDS)) -> list[Arm]:
    tokenizer = SimpleNamespace(has_chat_template=True)
    pair: Any = SimpleNamespace(tokenizer=tokenizer)
    caps = {"plain": 0, "auto": None}
    return [Arm(n, "plain" if n == "plain" else "dspark", caps[n] if n in caps else int(n[4:]), pair) for n in names]


def good_run(arm: Arm, prompt: Prompt, trial: int, settings: dict[str, Any]) -> Run:
    """Nine tokens; drafted ones in rounds of up to three."""
    drafted = arm.name != "plain"
    rounds = 4 if drafted else 8
    seconds = PLAIN_SECONDS / SPEEDS[arm.name] * (1 + 0.01 * trial)
    return Run(
        arm=arm.name, kind=prompt.kind, prompt=prompt.index, trial=trial,
        tokens=tuple(range(100 + prompt.index, 109 + prompt.index)), finish="stop", prompt_tokens=20, rounds=rounds,
        proposed_at=(4, 4) if drafted else (), accepted_at=(3, 1) if drafted else (),
        drafts={2: 4} if drafted else {0: 8}, reasons={"pays": 3, "parked": 1} if arm.name == "auto" else {}, prefill_seconds=0.5, decode_seconds=seconds,
        phases={"draft": 0.2 * seconds, "verify": 0.6 * seconds, "rollback": 0.1 * seconds, "observe": 0.05 * seconds},
        peak_memory_bytes=10**8, pressure=Pressure(),
    )  # fmt: skip


def reported(
    change: Change = lambda run: run, *, trials: int = 3, stop_after: int | None = None, curves: Curves | None = CURVES
) -> Report:
    """A report of fake runs, each put through `change`; Ctrl-C after `stop_after` runs."""
    options = BenchmarkOptions(trials=trials)
    made = 0

    def once(*given: Any) -> Run:
        nonlocal made
        if made == stop_after:
            raise KeyboardInterrupt
        made += 1
        return change(good_run(*given))

    measured = measure(arms(), PROMPTS, options, once=once)
    report = build_report(measured, arms(), PROMPTS, options, (FACTS, MACHINE))
    return replace(report, curves=curves)


def only(arm: str, kind: str, trial: int, spoil: Change) -> Change:
    """Change the first prompt's run of one arm, kind and trial."""
    return lambda run: spoil(run) if (run.arm, run.kind, run.trial, run.prompt) == (arm, kind, trial, 0) else run


SPOILT: dict[str, tuple[str, Change]] = {
    "one token differs": (DIFFERS, lambda run: replace(run, tokens=(*run.tokens[:4], 7, *run.tokens[5:]))),
    "it runs on": (DIFFERS, lambda run: replace(run, tokens=(*run.tokens, 7))),
    "crash": (CRASHED, lambda run: Run(run.arm, run.kind, run.prompt, run.trial, error="ValueError: no")),
    "a token short": (ENDS_EARLY, lambda run: replace(run, tokens=run.tokens[:-1])),
    "cut off": (ENDS_EARLY, lambda run: replace(run, finish="cancelled")),
    "swap": (SWAPPED, lambda run: replace(run, pressure=Pressure(SWAP_LIMIT + 1, 0))),
    "page faults": (SWAPPED, lambda run: replace(run, pressure=Pressure(0, FAULT_LIMIT + 1))),
}
