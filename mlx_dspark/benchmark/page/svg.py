"""Drawing by hand: SVG elements that escape what they hold, scales and ticks. Knows no figure and no colour."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

Attribute = str | float | None
Child = str | Markup


def el(name: str, *children: Child, **attributes: Attribute) -> Markup:
    """An element; `class_` is class, underscores in other names are dashes, None leaves an attribute out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_value(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{written}>{''.join(escape(child) for child in children)}</{name}>")


def drawing(width: float, height: float, label: str, *children: Child, class_: str = "chart") -> Markup:
    """An inline SVG that scales with its column; `label` says in words what it shows."""
    box = f"0 0 {_value(width)} {_value(height)}"
    return el("svg", el("title", label), *children, viewBox=box, role="img", aria_label=label, class_=class_)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return el("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def label(x: float, y: float, text: str, class_: str = "t", anchor: str = "middle") -> Markup:
    """Text whose baseline is at `y`."""
    return el("text", text, x=x, y=y, class_=class_, text_anchor=anchor)


def polyline(points: Sequence[tuple[float, float]], class_: str) -> Markup:
    joined = " ".join(f"{_value(x)},{_value(y)}" for x, y in points)
    return el("polyline", points=joined, class_=class_)


@dataclass(frozen=True)
class Scale:
    """Values `low`..`high` on the pixels `start`..`end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low or 1.0
        return self.start + (value - self.low) / span * (self.end - self.start)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round values, at most `most`, from the last one at or below `low` to the first at or above `high`."""
    span = high - low or abs(high) or 1.0
    power = 10 ** math.floor(math.log10(span / most))
    for step in (1, 2, 2.5, 5, 10, 20, 25, 50, 100):
        size = step * power
        first, last = math.floor(low / size + 1e-9), math.ceil(high / size - 1e-9)
        if last - first + 1 <= most:
            return [round(i * size, 10) for i in range(first, last + 1)]
    return [low, high]


def apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """The wanted positions, moved as little as a sweep can so that they lie `gap` apart within low..high."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed = [0.0] * len(wanted)
    floor = low
    for i in order:
        placed[i] = max(wanted[i], floor)
        floor = placed[i] + gap
    ceiling = high
    for i in reversed(order):
        placed[i] = min(placed[i], ceiling)
        ceiling = placed[i] - gap
    return placed


def _value(value: Attribute) -> str:
    return f"{round(value, 2):g}" if isinstance(value, float) else str(value)
