"""The charts of a page, from a report's cells and curves. Draws good runs only: a value that is None has no mark."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from mlx_dspark.benchmark import words
from mlx_dspark.benchmark.arms import AUTO
from mlx_dspark.benchmark.page.svg import Scale, apart, drawing, el, label, line, polyline, ticks
from mlx_dspark.benchmark.report import Cell, Curve, Curves, Report, Spread

WIDTH, HEIGHT = 340.0, 214.0
LEFT, RIGHT, TOP, BOTTOM = 36.0, 14.0, 18.0, 40.0
SLOT = 46.0
COLOURS = ("c1", "c2", "c3", "c4")


def bounds(report: Report) -> tuple[float, float]:
    """The range of speedups of all kinds, with 1 in it, so that their charts compare."""
    found = [c.speedup for c in report.cells if c.speedup]
    return min([0.9, *(s.low for s in found)]), max([1.2, *(s.high for s in found)])


def speed_chart(cells: Sequence[Cell], limits: tuple[float, float]) -> Markup | None:
    """Speedup by cap: plain dashed at 1, drafted solid, the automatic cap apart on the right. None without a figure."""
    good = [cell for cell in cells if cell.speedup]
    if not good:
        return None
    marks = ticks(*limits, most=6)
    y = Scale(marks[0], marks[-1], HEIGHT - BOTTOM, TOP)
    fixed = sorted({int(c.cap) for c in cells if c.cap not in (AUTO, "0")})
    auto = any(c.cap == AUTO for c in good)
    end = WIDTH - RIGHT - (SLOT if auto and fixed else 0)
    x = Scale(fixed[0], fixed[-1], LEFT + 20, end - 16) if fixed else Scale(0, 1, 0, WIDTH)
    auto_x = WIDTH - RIGHT - 20 if fixed else (LEFT + WIDTH - RIGHT) / 2
    parts = [*_grid(marks, y, "×"), line(LEFT, y(1), WIDTH - RIGHT, y(1), "plain")]
    parts += [label(x(cap) if len(fixed) > 1 else (LEFT + end) / 2, HEIGHT - 22, str(cap)) for cap in fixed]
    if fixed:
        parts.append(label((LEFT + end) / 2, HEIGHT - 5, "most drafts a round", "t small"))
    modes = list(dict.fromkeys(c.mode for c in good))
    series = []
    for colour, mode in zip(COLOURS * len(modes), modes, strict=False):
        mine = sorted((c for c in good if c.mode == mode and c.cap != AUTO), key=lambda c: int(c.cap))
        spots = [(x(int(c.cap)) if len(fixed) > 1 else (LEFT + end) / 2, c.speedup) for c in mine if c.speedup]
        parts += _series(spots, y, colour)
        own = [(auto_x, c.speedup) for c in good if c.mode == mode and c.cap == AUTO and c.speedup]
        parts += [mark for _, found in own for mark in _diamond(auto_x, found, y, colour)]
        series += [spots, own]
    parts += _values(series if len(modes) == 1 else [[spot for group in series for spot in group]], y)
    if auto:
        parts.append(label(auto_x, HEIGHT - 22, AUTO, "t strong"))
    return drawing(WIDTH, HEIGHT, _in_words(cells), *parts)


def _series(spots: Sequence[tuple[float, Spread]], y: Scale, colour: str) -> list[Markup]:
    parts = [line(x, y(s.low), x, y(s.high), f"range {colour}") for x, s in spots]
    parts.append(polyline([(x, y(s.median)) for x, s in spots], f"line {colour}"))
    return [*parts, *(el("circle", cx=x, cy=y(s.median), r=3.5, class_=f"dot {colour}") for x, s in spots)]


def _diamond(x: float, found: Spread, y: Scale, colour: str) -> list[Markup]:
    at = y(found.median)
    corners = " ".join(f"{a:.1f},{b:.1f}" for a, b in ((x, at - 6), (x + 6, at), (x, at + 6), (x - 6, at)))
    return [line(x, y(found.low), x, y(found.high), f"range {colour}"), el("polygon", points=corners, class_=colour)]


def _values(groups: Sequence[Sequence[tuple[float, Spread]]], y: Scale) -> list[Markup]:
    """The figure of each group's best mark: over its range, or under it where that is below plain's line."""
    best = [max(group, key=lambda spot: spot[1].median) for group in groups if group]
    return [
        label(x, y(found.low) + 18 if found.high < 1 else y(found.high) - 8, words.ratio(found), "t strong halo")
        for x, found in best
    ]


def dash() -> Markup:
    """The dashed line of plain decoding, to stand in a sentence."""
    return el("svg", line(0, 4, 24, 4, "plain"), viewBox="0 0 24 8", class_="dash", aria_hidden="true")


def _in_words(cells: Sequence[Cell]) -> str:
    found = ", ".join(f"{c.arm} {words.ratio(c.speedup)}" for c in cells if c.speedup)
    return f"Speedup over plain decoding on {cells[0].kind} prompts: {found}"


def accept_chart(cells: Sequence[Cell]) -> Markup | None:
    """Share of drafts kept by position, one line a kind, named at its end."""
    lines = [c for c in cells if len(c.accepted_at_position) > 1]
    if not lines:
        return None
    most = max(len(c.accepted_at_position) for c in lines)
    x, y = Scale(1, most, LEFT + 8, WIDTH - 58), Scale(0, 1, HEIGHT - BOTTOM, TOP)
    parts = [*_grid([0, 0.25, 0.5, 0.75, 1], y, "%")]
    parts += [label(x(i), HEIGHT - 22, str(i)) for i in range(1, most + 1)]
    parts.append(label((LEFT + WIDTH - 58) / 2, HEIGHT - 5, "draft of the block", "t small"))
    ends = apart([y(c.accepted_at_position[-1]) for c in lines], 14, TOP, HEIGHT - BOTTOM)
    for colour, cell, end in zip(COLOURS * len(lines), lines, ends, strict=False):
        points = [(x(i), y(share)) for i, share in enumerate(cell.accepted_at_position, 1)]
        parts += [polyline(points, f"line {colour}"), *(_dot(p, colour) for p in points)]
        parts.append(label(points[-1][0] + 9, end + 4, cell.kind, f"t strong fill {colour}", "start"))
    found = "; ".join(f"{c.kind} {' '.join(words.percent(s) for s in c.accepted_at_position)}" for c in lines)
    return drawing(WIDTH, HEIGHT, f"Share of rounds that kept draft 1, 2 and so on: {found}", *parts)


def verify_chart(curves: Curves, chosen: dict[str, int]) -> Markup:
    """Milliseconds of a verify by rows, one line a depth; rings where `chosen` drafts by kind are verified."""
    top = max(max(c.milliseconds.values()) for c in curves.verify)
    marks = ticks(0, top)
    rows = sorted(curves.verify[0].milliseconds)
    x, y = Scale(rows[0], rows[-1], LEFT + 8, WIDTH - 62), Scale(0, marks[-1], HEIGHT - BOTTOM, TOP)
    parts = [*_grid(marks, y, ""), label(LEFT - 6, TOP - 8, "ms", "t small", "end")]
    parts += [label(x(n), HEIGHT - 22, str(n)) for n in rows]
    parts.append(label((LEFT + WIDTH - 62) / 2, HEIGHT - 5, "rows in one verify: anchor and drafts", "t small"))
    shallow = curves.verify[0]
    parts += _proportional(shallow, x, y)
    ends = apart([y(c.milliseconds[max(c.milliseconds)]) for c in curves.verify], 13, TOP, HEIGHT - BOTTOM)
    for colour, curve, end in zip(COLOURS * len(ends), curves.verify, ends, strict=False):
        points = [(x(n), y(ms)) for n, ms in sorted(curve.milliseconds.items())]
        parts += [polyline(points, f"line {colour}"), *(_dot(p, colour) for p in points)]
        parts.append(
            label(points[-1][0] + 12, end + 4, f"at {_depth(curve.depth)}", f"t strong fill {colour}", "start")
        )
    by_rows: dict[int, list[str]] = {}
    for kind, drafts in chosen.items():
        by_rows.setdefault(drafts + 1, []).append(kind)
    for n, kinds in sorted(by_rows.items()):
        if n in shallow.milliseconds:
            at = y(shallow.milliseconds[n])
            parts.append(el("circle", cx=x(n), cy=at, r=7.0, class_="ring"))
            parts.append(label(x(n), at + 23, ", ".join(kinds), "t strong halo"))
    return drawing(WIDTH, HEIGHT, _curves_in_words(curves), *parts)


def _proportional(curve: Curve, x: Scale, y: Scale) -> list[Markup]:
    """What rows would cost one by one, as far as it fits."""
    one = curve.milliseconds[1]
    last = min(max(curve.milliseconds), y.low + (y.high / one))
    near = (x(last), y(one * last))
    return [line(x(1), y(one), *near, "plain"), label(near[0] + 6, near[1] + 4, "one by one", "t halo", "start")]


def _curves_in_words(curves: Curves) -> str:
    found = "; ".join(
        f"at {_depth(c.depth)}: {', '.join(words.number(ms) for _, ms in sorted(c.milliseconds.items()))}"
        for c in curves.verify
    )
    return f"Milliseconds of one verify of 1, 2 and so on rows, {found}"


def _depth(tokens: int) -> str:
    return f"{tokens / 1024:g}k" if tokens >= 1024 and tokens % 512 == 0 else f"{tokens:,}"


def _dot(point: tuple[float, float], colour: str) -> Markup:
    return el("circle", cx=point[0], cy=point[1], r=2.5, class_=f"dot {colour}")


def _grid(marks: Sequence[float], y: Scale, unit: str) -> list[Markup]:
    parts = []
    for mark in marks:
        text = f"{100 * mark:.0f}" if unit == "%" else f"{mark:g}"
        parts.append(line(LEFT, y(mark), WIDTH - RIGHT, y(mark), "grid"))
        parts.append(label(LEFT - 6, y(mark) + 4, text + ("" if unit == "" else unit), "t small", "end"))
    return parts
