"""`mlx-dspark calibrate`: measures this machine's costs for a pair anew and prints the table, for people or as JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mlx_dspark.cli.flags import collect
from mlx_dspark.engine.settings import LoadOptions
from mlx_dspark.errors import OptionError
from mlx_dspark.options import check_options, option

if TYPE_CHECKING:
    from mlx_dspark.engine.calibration_store import Calibration


@dataclass(frozen=True)
class CalibrateOptions:
    """How long to measure and how to print it."""

    seconds: float = option(60.0, "Begin no measurement after so many seconds.", low=1, high=3600)
    json: bool = option(False, "Print one JSON object.", flag="--json")

    def __post_init__(self) -> None:
        check_options(self)


def run(values: dict[str, Any]) -> None:
    """Load, measure, keep, print."""
    options: CalibrateOptions = collect(CalibrateOptions, values)
    loading: LoadOptions = collect(LoadOptions, {**values, "calibrate": False})
    from mlx_dspark.cli.progress import Progress
    from mlx_dspark.engine.calibrate import recalibrated
    from mlx_dspark.engine.load import load

    warnings: list[str] = []
    with Progress(sys.stderr, enabled=not options.json) as progress:
        settings = {k: v for k, v in asdict(loading).items() if k not in ("model", "drafter")}
        pair = load(loading.model, loading.drafter, say=progress.say, **settings)
        if not pair.drafter.max_draft:
            raise OptionError(f"{loading.model} drafts nothing here, so there is nothing to measure; give --drafter")
        found = recalibrated(pair, seconds=options.seconds, say=progress.say, warn=warnings.append)
    for line in warnings:
        print(line, file=sys.stderr)
    if options.json:
        print(json.dumps({"measured": found.measured, "key": dict(pair.key), "table": found.table.to_json()}, indent=1))
    else:
        print("\n".join(described(found)))


def described(found: Calibration) -> list[str]:
    """The table as aligned lines."""
    lines = found.table.describe()
    width = max(len(what) for what, _ in lines)
    return [f"{what:{width}}  {finding}" for what, finding in lines]
