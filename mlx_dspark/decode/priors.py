"""Priors of survival, measured; written by bench/calibration.py, not by hand."""

from __future__ import annotations

from mlx_dspark.decode.survival import Prior

UNKNOWN = Prior(offsets=(0.0,), blind=(0.5,), doubt=0.7)
PRIORS: dict[tuple[str, bool], Prior] = {
    ("dspark", False): Prior(
        knots=(0.0, 0.5, 1.0, 2.0, 3.0, 4.5, 6.0, 8.0, 11.0),
        odds=(-1.74, -0.31, -0.18, 0.92, 1.11, 2.16, 3.55, 4.99, 4.99),
        offsets=(0.0, 1.0, 0.93, 0.8, 1.0, 1.09, 1.38),
        blind=(0.98, 1.96, 1.82, 1.76, 2.06, 1.97, 2.33),
        doubt=4.0,
    ),
    ("dspark", True): Prior(
        knots=(0.0, 0.5, 1.0, 2.0, 3.0, 4.5, 6.0, 8.0, 11.0),
        odds=(-0.8, -0.66, -0.63, -0.56, 0.12, 1.08, 2.85, 3.54, 3.69),
        offsets=(0.0, 0.26, 0.57, 0.43, 0.63, 0.31, 1.3),
        blind=(0.04, 0.58, 0.91, 0.76, 1.14, 1.09, 1.92),
        doubt=4.0,
    ),
    ("lookup", False): Prior(
        knots=(2.0, 3.0, 4.5),
        odds=(-0.18, -0.04, 3.3),
        offsets=(0.0, -0.37, 0.25, -0.42, -0.62, 0.12, 1.12),
        blind=(0.12, 0.01, 0.75, 0.1, 0.0, 0.0, 1.1),
        doubt=4.0,
    ),
    ("lookup", True): Prior(
        knots=(2.0, 3.0, 4.5),
        odds=(-0.27, -0.27, 2.05),
        offsets=(0.0, -0.81, 0.29, -0.77, -1.36, -0.59),
        blind=(-0.23, -1.0, 0.22, -0.63, -1.25, -0.69),
        doubt=4.0,
    ),
}


def prior_of(source: str, sampled: bool) -> Prior:
    """The prior of a drafter's blocks, of greedy or of sampled answers."""
    return PRIORS.get((source, sampled), UNKNOWN)
