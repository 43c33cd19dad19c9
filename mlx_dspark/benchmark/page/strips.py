"""Bars that fill a column whatever its width: a round's time by part, and a target's layers. Their words are HTML."""

from __future__ import annotations

from dataclasses import astuple, fields

from markupsafe import Markup

from mlx_dspark.benchmark import words
from mlx_dspark.benchmark.page.svg import el
from mlx_dspark.benchmark.report import Shares

PARTS = tuple(field.name for field in fields(Shares))
KINDS = {"M": "Mamba-2", "*": "attention", "E": "experts", "-": "dense MLP"}
CLASSES = {"M": "mamba", "*": "attention", "E": "experts", "-": "mlp"}
UNIT = 10.0


def share_bar(shares: Shares) -> Markup:
    """One bar of four parts."""
    begin, parts = 0.0, []
    for name, share in zip(PARTS, astuple(shares), strict=True):
        parts.append(
            el("rect", x=1000 * begin, y=0, width=max(0.0, 1000 * share - 4), height=12, class_=f"part {name}")
        )
        begin += share
    said = ", ".join(f"{name} {words.percent(share)}" for name, share in zip(PARTS, astuple(shares), strict=True))
    return _strip(1000, 12, f"Time of a round: {said}", *parts)


def layer_strip(pattern: str, taps: tuple[int, ...]) -> Markup:
    """One cell a layer, with a mark under each layer the drafter reads."""
    gap = min(2.0, 0.03 * len(pattern))
    cells = [
        el("rect", x=UNIT * i, y=0, width=UNIT - gap, height=22, class_=f"layer {CLASSES[letter]}")
        for i, letter in enumerate(pattern)
    ]
    marks = [el("rect", x=UNIT * i, y=26, width=UNIT - gap, height=4, class_="tap") for i in taps]
    said = f"{len(pattern)} layers, {pattern}" + (f"; the drafter reads {', '.join(map(str, taps))}" if taps else "")
    return _strip(UNIT * len(pattern), 30, said, *cells, *marks)


def layer_legend(pattern: str) -> list[tuple[str, str]]:
    """(class, words) of the kinds of layer there are."""
    return [(CLASSES[k], f"{pattern.count(k)} {name}") for k, name in KINDS.items() if k in pattern]


def _strip(width: float, height: float, said: str, *children: Markup) -> Markup:
    box, style = f"0 0 {width:g} {height:g}", f"height:{height:g}px"
    shape = {"viewBox": box, "preserveAspectRatio": "none", "class_": "strip", "style": style}
    return el("svg", el("title", said), *children, role="img", aria_label=said, **shape)
