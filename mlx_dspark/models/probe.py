"""Do k rows at once give the bits of k single rows on this device? Measured at load, kind by kind, width by width.

The first way of meeting rows that is exact is chosen for each kind of op (see ops/rows.py); what stays inexact
even one by one cannot be, so the plan found is exact wherever a kernel is deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import mlx.core as mx

from mlx_dspark.models.mixers import Segment
from mlx_dspark.models.nemotron_h import NemotronH
from mlx_dspark.models.state import Row
from mlx_dspark.ops.rows import MAX_WIDTH, RowPlan, Rows, one_by_one, padded, together

CONTEXT = 24
KINDS = {"M": "mamba", "*": "attention", "E": "experts", "-": "mlp"}
Check = Callable[[RowPlan], dict[int, bool]]


@dataclass(frozen=True)
class WidthReport:
    """The plan in use and, per kind of op, whether each width 2..MAX_WIDTH gave the bits of width 1."""

    plan: RowPlan
    exact_at: dict[str, dict[int, bool]]

    @property
    def exact(self) -> bool:
        return all(ok for widths in self.exact_at.values() for ok in widths.values())

    def describe(self) -> str:
        if self.exact:
            ways = sorted(set(self.plan.describe().values()))
            return f"bit-exact at widths 1-{MAX_WIDTH} ({', '.join(ways)})"
        bad = [f"{kind} at {', '.join(str(w) for w, ok in found.items() if not ok)}" for kind, found in
               self.exact_at.items() if not all(found.values())]  # fmt: skip
        return "not bit-exact: " + "; ".join(bad)


def probe_widths(target: NemotronH, widths: Sequence[int] = tuple(range(2, MAX_WIDTH + 1))) -> WidthReport:
    """Choose the plan for `target` on the current device and report what was found; changes nothing."""
    checks = _checks(target, widths)
    plan = RowPlan(attention=one_by_one)
    linear_kinds = [kind for kind in checks if kind != "experts"]
    plan = _choose(plan, "linear", (together, padded, one_by_one), [checks[k] for k in linear_kinds])
    if "attention" in checks:
        plan = _choose(plan, "attention", (together, one_by_one), [checks["attention"]])
    else:
        plan = replace(plan, attention=together)
    if "experts" in checks:
        plan = _choose(plan, "experts", (together, padded, one_by_one), [checks["experts"]])
    return WidthReport(plan, {kind: check(plan) for kind, check in checks.items()})


def _choose(plan: RowPlan, field: str, ways: Sequence[Rows], checks: Sequence[Check]) -> RowPlan:
    for way in ways:
        candidate: RowPlan = replace(plan, **{field: way})
        if all(all(check(candidate).values()) for check in checks):
            return candidate
    return replace(plan, **{field: ways[-1]})


def _checks(target: NemotronH, widths: Sequence[int]) -> dict[str, Check]:
    """One check a kind of layer the target has, and one for the head, each on fixed random rows."""
    key = mx.random.key(7)
    rows = mx.random.normal((CONTEXT + MAX_WIDTH, target.config.hidden_size), key=key).astype(target.dtype)
    checks: dict[str, Check] = {"head": lambda plan: _head_check(target, rows[CONTEXT:], plan, widths)}
    for index, letter in enumerate(target.config.pattern):
        if KINDS[letter] not in checks:
            checks[KINDS[letter]] = _layer_check(target, index, rows, widths)
    return checks


def _head_check(target: NemotronH, rows: mx.array, plan: RowPlan, widths: Sequence[int]) -> dict[int, bool]:
    def run(x: mx.array) -> mx.array:
        return plan.linear(target.logits, x)

    single = mx.concatenate([run(rows[i : i + 1]) for i in range(MAX_WIDTH)])
    return {w: _same(run(rows[:w]), single[:w]) for w in widths}


def _layer_check(target: NemotronH, index: int, rows: mx.array, widths: Sequence[int]) -> Check:
    mixer = target.layers[index].mixer
    warm = target.new_state().rows[0]
    mixer(rows[:CONTEXT], [Segment(0, 0, CONTEXT)], [warm.layers[index]], RowPlan())
    mx.eval(warm.arrays())

    def feed(row: Row, x: mx.array, plan: RowPlan) -> mx.array:
        y, _ = mixer(x, [Segment(0, 0, x.shape[0])], [row.layers[index]], plan)
        return y

    def check(plan: RowPlan) -> dict[int, bool]:
        found = {}
        stepped = warm.copy()
        single, states = [], []
        for i in range(MAX_WIDTH):
            single.append(feed(stepped, rows[CONTEXT + i : CONTEXT + i + 1], plan))
            states.append(stepped.copy())
        for width in widths:
            block = warm.copy()
            y = feed(block, rows[CONTEXT : CONTEXT + width], plan)
            left, right = block.copy().arrays(), states[width - 1].arrays()
            found[width] = _same(y, mx.concatenate(single[:width])) and all(map(_same, left, right))
        return found

    return check


def _same(a: mx.array, b: mx.array) -> bool:
    """Bit equality (so that NaN equals itself and the sign of zero counts)."""
    view = {2: mx.uint16, 4: mx.uint32}[a.dtype.size]
    return a.shape == b.shape and bool(mx.array_equal(mx.contiguous(a).view(view), mx.contiguous(b).view(view)))
