"""A report's figures as words, the same in every output: speeds, ratios, verdict, method. Computes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlx_dspark.benchmark.arms import AUTO
from mlx_dspark.benchmark.report import Cell, Report, Spread
from mlx_dspark.benchmark.summary import automatic, best_fixed

NOTHING = "–"


def speed(spread: Spread | None) -> str:
    """Tokens a second: 91.3, 314."""
    return NOTHING if spread is None else number(spread.median)


def number(value: float) -> str:
    """Three digits that mean something."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def ratio(spread: Spread | None) -> str:
    """1.27×."""
    return NOTHING if spread is None else f"{spread.median:.2f}×"


def span(spread: Spread | None) -> str:
    """1.22–1.31, the least and the most; nothing where they read the same."""
    low, high = (f"{spread.low:.2f}", f"{spread.high:.2f}") if spread else ("", "")
    return f"{low}–{high}" if low != high else NOTHING


def percent(share: float | None) -> str:
    return NOTHING if share is None else f"{100 * share:.0f} %"


def counted(count: int, what: str) -> str:
    """1 prompt, 18 prompts."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def verdict(report: Report) -> str:
    """Whether drafted text was the plain text, over how much."""
    count = f"{counted(report.compared_runs, 'drafted run')}, {counted(report.compared_tokens, 'token')}"
    spoiled = sum(not fault.lossy for fault in report.faults)
    if report.lossless:
        timing = f" But {counted(spoiled, 'run')} swapped; the speed of their arms is left out." if spoiled else ""
        return f"Lossless: {count}, every one equal to plain decoding.{timing}"
    if not report.compared_runs:
        return "Nothing was compared."
    bad = sum(fault.lossy for fault in report.faults)
    return f"NOT lossless: {bad} of {len(report.runs):,} runs differ from plain decoding, crash or end early."


def partial(report: Report) -> str:
    """What a stopped measurement is worth; empty for a whole one."""
    if not report.partial:
        return ""
    m = report.method
    return (
        f"Partial: stopped after {m.trials} of {counted(m.trials_asked, 'trial')}; figures are of complete trials only."
    )


def method(report: Report) -> str:
    """How it was measured, in two sentences."""
    m = report.method
    count = ", ".join(f"{n} {kind}" for kind, n in m.prompts.items())
    asked = "prompt" if sum(m.prompts.values()) == 1 else "prompts"
    picked = "greedy" if m.temperature == 0 else f"sampled at temperature {m.temperature:g}, seed {m.seed}"
    suite = "" if m.suite == "built-in" else f" of {m.suite}"
    thinking = "on" if m.thinking else "off"
    return (
        f"{count} {asked}{suite}, answers of up to {m.max_tokens} tokens, {picked}, thinking {thinking}; plain and "
        f"drafted runs alternate in one process, {counted(m.trials, 'timed trial')} after a rehearsal. Figures are "
        "medians over trials, ranges the least and the most; a speedup is plain over drafted decoding time of the same "
        "prompts in the same trial."
    )


def machine(report: Report) -> str:
    """The machine in one line."""
    m = report.machine
    load = f", load {m.load[0]:g} when it began" if m.load else ""
    versions = ", ".join(f"{name} {version}" for name, version in m.versions.items())
    memory = f"{m.memory_bytes / 2**30:.0f} GiB"
    return f"{m.chip}, {m.cores} cores, {memory}, {m.system}, {m.device}; {versions}{load}"


def best(report: Report, kind: str) -> str:
    """The best fixed cap of a kind and the automatic one beside it, mode by mode."""
    modes = dict.fromkeys(total.mode for total in report.totals)
    found = [_best([c for c in report.of_kind(kind) if c.mode == mode], report, kind) for mode in modes]
    return "; ".join(filter(None, found)) or "no drafted run is good"


def _best(cells: Sequence[Cell], report: Report, kind: str) -> str:
    fixed, auto = best_fixed(cells), automatic(cells)
    parts = [f"best fixed {fixed.arm}, {ratio(fixed.speedup)}"] if fixed else []
    if auto:
        share = next((t.of_best_fixed.get(kind) for t in report.totals if t.arm == auto.arm), None)
        parts.append(f"{auto.arm} {ratio(auto.speedup)}" + (f" ({share:.2f} of that speed)" if share else ""))
    return ", ".join(parts)


def decisions(cell: Cell) -> str:
    """What an automatic cap did, most often first: "4 drafts in 72 % of rounds (pays 90 %, parked 10 %)"."""
    total = sum(cell.drafts.values())
    if cell.cap != AUTO or not total:
        return ""
    most = max(cell.drafts, key=lambda n: cell.drafts[n])
    count = counted(most, "draft") if most else "no drafts"
    why = ", ".join(f"{reason} {percent(n / total)}" for reason, n in _often(cell.reasons))
    return f"{count} in {percent(cell.drafts[most] / total)} of rounds" + (f" ({why})" if len(cell.reasons) > 1 else "")


def _often(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: -item[1])
