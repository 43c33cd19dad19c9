"""Priors of survival, measured; written by bench/calibration.py, not by hand."""

from __future__ import annotations

from mlx_dspark.decode.survival import Prior

UNKNOWN = Prior(offsets=(0.0,), blind=(0.5,), doubt=0.7)
PRIORS: dict[tuple[str, bool], Prior] = {}


def prior_of(source: str, sampled: bool) -> Prior:
    """The prior of a drafter's blocks, of greedy or of sampled answers."""
    return PRIORS.get((source, sampled), UNKNOWN)
