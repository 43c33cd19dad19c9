"""The pair's calibrated costs as Curves for a report."""

from __future__ import annotations

from mlx_dspark.benchmark.report import Curve, Curves
from mlx_dspark.decode.cost import CostTable


def curves_of(table: CostTable | None) -> Curves | None:
    """A CostTable in milliseconds; None where none was measured."""
    if table is None:
        return None
    return Curves(
        verify=tuple(
            Curve(depth, {rows: 1000 * seconds for rows, seconds in enumerate(table.verify[depth], 1)})
            for depth in table.depths
        ),
        draft_milliseconds={drafts: 1000 * s for drafts, s in enumerate(table.draft) if drafts},
        lookup_milliseconds=1000 * table.lookup,
        overhead_milliseconds=1000 * table.overhead,
        note=table.note,
    )
