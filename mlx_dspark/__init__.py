"""mlx-dspark: lossless speculative decoding for hybrid language models on MLX.

`load` gives a `Pair`; `Pair.generate` and `Pair.stream` answer. Importing this package imports nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlx_dspark.errors import DsparkError
from mlx_dspark.version import __version__

if TYPE_CHECKING:
    from mlx_dspark.decode.round import Round
    from mlx_dspark.engine.pair import Pair, Part
    from mlx_dspark.engine.result import Result

__all__ = ["DsparkError", "Pair", "Part", "Result", "Round", "__version__", "load"]

_HOMES = {
    "Pair": "mlx_dspark.engine.pair",
    "Part": "mlx_dspark.engine.pair",
    "Result": "mlx_dspark.engine.result",
    "Round": "mlx_dspark.decode.round",
}


def load(model: str = "demo", drafter: str | None = None, **settings: Any) -> Pair:
    """Load a target and its drafter: local folders, hub repositories, or the embedded pair ("demo").

    Settings: mode, lookup_drafts, drafter_bits, dtype (see `mlx-dspark generate --help`).
    """
    from mlx_dspark.engine.load import load as load_pair

    return load_pair(model, drafter, **settings)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'mlx_dspark' has no attribute {name!r}")
