"""The pair's calibrated costs as Curves for a report."""

from __future__ import annotations

from mlx_dspark.benchmark.report import Curves
from mlx_dspark.engine.pair import Pair


def curves_of(pair: Pair) -> Curves | None:
    """Costs that calibration measured for this pair; None where it did not run."""
    return None
