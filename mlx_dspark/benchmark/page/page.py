"""A report as one self-contained HTML page: words and charts for the template, which escapes all it is given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from mlx_dspark.benchmark import text, words
from mlx_dspark.benchmark.arms import AUTO, PLAIN
from mlx_dspark.benchmark.describe import big, bytes_text
from mlx_dspark.benchmark.page.charts import accept_chart, bounds, dash, speed_chart, verify_chart
from mlx_dspark.benchmark.page.strips import PARTS, layer_legend, layer_strip, share_bar
from mlx_dspark.benchmark.report import Cell, Report, Total
from mlx_dspark.benchmark.summary import automatic, best_fixed
from mlx_dspark.checkpoint.registry import KNOWN_PAIRS

HERE = Path(__file__).parent
MOST_FAULTS = 12


def page(report: Report) -> str:
    """The whole page. Nothing in it is fetched from anywhere."""
    return render(
        "page.html",
        report=report,
        pair=report.pair,
        card=json.dumps(card(report), ensure_ascii=False),
        date=report.made[:10],
        version=report.machine.versions.get("mlx-dspark", ""),
        chips=_chips(report),
        partial=words.partial(report),
        verdict=words.verdict(report),
        headline=_headline(report),
        kinds=[_kind(report, kind) for kind in report.kinds],
        dash=dash(),
        parts=PARTS,
        modes=list(dict.fromkeys(c.mode for c in report.cells if c.speedup)),
        accept=_accept(report),
        curves=_curves(report),
        layers=layer_strip(report.pair.pattern, report.pair.taps),
        layer_legend=layer_legend(report.pair.pattern),
        header=("", *text.HEADER[1:]),
        faults=_faults(report),
        method=words.method(report),
        machine=_machine(report),
        figures=next((p.figures for p in KNOWN_PAIRS if p.title == report.pair.name), ()),
    )


def render(template: str, **values: Any) -> str:
    """A template of this folder, with autoescaping and the style in `style`."""
    loader = jinja2.FileSystemLoader(HERE)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    style = Markup((HERE / "style.css").read_text("utf-8").strip())
    return environment.get_template(template).render(style=style, **values) + "\n"


def headline_total(report: Report) -> Total | None:
    """The automatic cap's total, else the best there is; None where a run was not lossless or no arm is good."""
    good = [total for total in report.totals if total.speedup and report.lossless]
    auto = next((total for total in good if total.cap == AUTO), None)
    return auto or max(good, key=lambda t: t.speedup.median if t.speedup else 0.0, default=None)


def card(report: Report) -> dict[str, Any]:
    """What an index says about this page."""
    best = headline_total(report)
    return {
        "name": report.pair.name,
        "summary": report.pair.summary,
        "headline": words.ratio(best.speedup) if best else None,
        "kinds": {kind: words.ratio(cell.speedup) for kind in report.kinds if (cell := shown_cell(report, kind))},
        "lossless": report.lossless,
        "partial": report.partial,
        "chip": report.machine.chip,
        "date": report.made[:10],
    }


def shown_cell(report: Report, kind: str) -> Cell | None:
    """The arm that stands for a kind: the headline's, else the automatic cap, else the best fixed one."""
    cells, best = report.of_kind(kind), headline_total(report)
    cell = report.cell(kind, best.arm) if best else automatic(cells) or best_fixed(cells)
    return cell if cell and cell.speedup else None


def _headline(report: Report) -> dict[str, Any] | None:
    best = headline_total(report)
    if best is None:
        return None
    how = "with the cap chosen by itself" if best.cap == AUTO else f"with at most {best.cap} drafts a round"
    mode = "" if len({t.mode for t in report.totals}) == 1 else f"{best.mode}, "
    return {
        "ratio": words.ratio(best.speedup),
        "less": best.speedup is not None and best.speedup.median < 1,
        "words": f"the speed of plain decoding over {words.counted(sum(report.method.prompts.values()), 'prompt')}, "
        f"{mode}{how}.",
        "span": "" if words.span(best.speedup) == words.NOTHING else f"Single trials: {words.span(best.speedup)}.",
    }


def _kind(report: Report, kind: str) -> dict[str, Any]:
    cells, cell = report.of_kind(kind), shown_cell(report, kind)
    plain = next((c for c in cells if c.mode == PLAIN), None)
    speeds = f"plain {words.speed(plain.tokens_per_second)}" if plain else ""
    if cell:
        speeds += f" → {words.speed(cell.tokens_per_second)} tok/s"
    broken = [c for c in cells if c.faults]
    measured = cell if cell and cell.shares else None
    return {
        "name": kind,
        "ratio": words.ratio(cell.speedup) if cell else words.NOTHING,
        "speeds": speeds,
        "plain": f"plain, {words.speed(plain.tokens_per_second)} tok/s" if plain else "",
        "chart": speed_chart(cells, bounds(report)),
        "best": _best(report, kind),
        "broken": [f"{c.arm}: {words.counted(c.faults, 'marked run')}, left out" for c in broken],
        "rows": [{"cells": text.row(c), "broken": c.faults > 0} for c in cells],
        "shares": None
        if measured is None or measured.shares is None
        else {
            "arm": measured.arm,
            "bar": share_bar(measured.shares),
            "parts": " · ".join(f"{100 * getattr(measured.shares, name):.0f}" for name in PARTS) + " %",
        },
    }


def _best(report: Report, kind: str) -> str:
    """A sentence under a chart; with several modes the best mark alone, since the table has the rest."""
    cells = report.of_kind(kind)
    if len({cell.mode for cell in cells if cell.speedup}) > 1:
        best = max((c for c in cells if c.speedup), key=lambda c: c.speedup.median if c.speedup else 0.0)
        return f"Best: {best.arm}, {words.ratio(best.speedup)}."
    auto = automatic(cells)
    usual = words.decisions(auto) if auto else ""
    sentence = words.best(report, kind)
    return f"{sentence[0].upper()}{sentence[1:]}." + (f" It chose {usual}." if usual else "")


def _accept(report: Report) -> dict[str, Any] | None:
    """The chart of the widest good arm, the same one for all kinds."""
    fixed = {c.arm: int(c.cap) for c in report.cells if c.speedup and c.cap not in (AUTO, "0")}
    if not fixed:
        return None
    arm = max(fixed, key=lambda name: fixed[name])
    cells = [c for kind in report.kinds if (c := report.cell(kind, arm)) and c.speedup]
    chart = accept_chart(cells)
    if chart is None:
        return None
    lengths = ", ".join(f"{c.kind} {c.accept_length:.2f}" for c in cells)
    return {
        "chart": chart,
        "words": f"Percent of rounds that proposed this draft and kept it, with {arm}. Tokens a round: {lengths}.",
    }


def _curves(report: Report) -> dict[str, Any] | None:
    if report.curves is None:
        return None
    chosen = {}
    for kind in report.kinds:
        cell = automatic(report.of_kind(kind)) or best_fixed(report.of_kind(kind))
        if cell and cell.drafts:
            chosen[kind] = max(cell.drafts, key=lambda n: cell.drafts[n])
    one = report.curves.verify[0].milliseconds
    most = max(one)
    words_ = f"{most} rows cost {one[most] / one[1]:.1f} times one. Rings: the rows most often verified, by kind."
    note = f" {report.curves.note[0].upper()}{report.curves.note[1:]}." if report.curves.note else ""
    return {"chart": verify_chart(report.curves, chosen), "words": words_ + note}


def _chips(report: Report) -> list[tuple[str, str]]:
    pair = report.pair
    size = f"{big(pair.parameters)} parameters"
    if pair.active_parameters < pair.parameters:
        size += f", {big(pair.active_parameters)} active"
    chips = [("Maker", pair.maker or ""), ("Size", size), ("On disk", bytes_text(pair.disk_bytes))]
    chips += [("In memory", bytes_text(pair.loaded_bytes)), ("Licence", pair.licence or "")]
    return [(what, value) for what, value in chips if value]


def _machine(report: Report) -> list[tuple[str, str]]:
    m = report.machine
    rows = [
        ("chip", f"{m.chip}, {m.cores} cores, {m.memory_bytes / 2**30:.0f} GiB"),
        ("system", m.system),
        ("device", m.device),
        ("kernels", m.kernels),
        ("versions", ", ".join(f"{name} {version}" for name, version in m.versions.items())),
    ]
    if m.load:
        rows.append(("load", f"{' → '.join(f'{value:g}' for value in m.load)} (average over a minute, start and end)"))
    return rows


def _faults(report: Report) -> list[str]:
    shown = [fault.sentence for fault in report.faults[:MOST_FAULTS]]
    more = len(report.faults) - len(shown)
    return [*shown, f"and {more} more"] if more > 0 else shown
