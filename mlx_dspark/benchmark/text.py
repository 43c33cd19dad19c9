"""A report as text: aligned columns for a terminal, or Markdown. One table of words, two ways to lay it out."""

from __future__ import annotations

from collections.abc import Sequence

from mlx_dspark.benchmark import words
from mlx_dspark.benchmark.describe import bytes_text
from mlx_dspark.benchmark.report import Cell, Report

HEADER = (
    "", "tok/s", "speedup", "range", "accept", "kept by position", "draft", "verify", "rollback", "other", "prefill",
    "peak",
)  # fmt: skip
MOST_FAULTS = 20


def row(cell: Cell) -> list[str]:
    """One arm of a kind, in the order of HEADER."""
    shares = cell.shares
    parts = (None,) * 4 if shares is None else (shares.draft, shares.verify, shares.rollback, shares.other)
    return [
        cell.arm,
        words.speed(cell.tokens_per_second),
        "1×" if cell.mode == "plain" and cell.tokens_per_second else words.ratio(cell.speedup),
        "" if cell.mode == "plain" else words.span(cell.speedup),
        f"{cell.accept_length:.2f}",
        " ".join(f"{100 * share:.0f}" for share in cell.accepted_at_position),
        *(words.percent(part) for part in parts),
        words.speed(cell.prefill_tokens_per_second),
        bytes_text(cell.peak_memory_bytes),
    ]


def terminal(report: Report) -> str:
    """The whole report in columns."""
    lines = [f"{report.pair.name} · {report.made[:10]}", words.machine(report), report.machine.kernels, ""]
    for kind in report.kinds:
        lines += _columns([(kind, *HEADER[1:]), *(row(cell) for cell in report.of_kind(kind))])
        lines += [f"  {words.best(report, kind)}"]
        lines += [f"  {c.arm} chose {words.decisions(c)}" for c in report.of_kind(kind) if words.decisions(c)] + [""]
    lines += [*_totals(report), words.method(report), words.verdict(report)]
    return "\n".join([*lines, *_faults(report), *filter(None, [words.partial(report)])]) + "\n"


def markdown(report: Report) -> str:
    """The whole report as Markdown."""
    lines = [f"# {report.pair.name}", "", f"{report.made[:10]} · {words.machine(report)}", ""]
    lines += [f"**{words.partial(report)}**", ""] if report.partial else []
    for kind in report.kinds:
        table = [(kind, *HEADER[1:]), ("---",) * len(HEADER), *(row(cell) for cell in report.of_kind(kind))]
        lines += [f"| {' | '.join(cells)} |" for cells in table]
        lines += ["", words.best(report, kind), ""]
    faults = [f"- {line.strip()}" for line in _faults(report)]
    lines += [*_totals(report), words.method(report), "", f"**{words.verdict(report)}**", *faults]
    return "\n".join(lines) + "\n"


def _totals(report: Report) -> list[str]:
    found = [f"{t.arm} {words.ratio(t.speedup)} ({words.span(t.speedup)})" for t in report.totals if t.speedup]
    return [f"All kinds together: {', '.join(found)}", ""] if found else []


def _faults(report: Report) -> list[str]:
    """Marked runs, one a line; a broken arm of a kind has no speedup."""
    lines = [f"  {fault.sentence}" for fault in report.faults[:MOST_FAULTS]]
    more = len(report.faults) - len(lines)
    return [*lines, f"  and {more} more, see --json"] if more > 0 else lines


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """First column left, the others right."""
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(text.ljust(w) if i == 0 else text.rjust(w) for i, (text, w) in enumerate(zip(r, widths, strict=True)))
        for r in rows
    ]
