"""`mlx-dspark doctor`: prints the examination, for people or as JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

from mlx_dspark.cli.flags import collect
from mlx_dspark.options import check_options, option


@dataclass(frozen=True)
class DoctorOptions:
    """What to examine and how to print it."""

    model: str = option("demo", "The pair to load and probe: 'demo', a folder or a hub repository.")
    drafter: str | None = option(None, "Its drafter (default: the one known for the target).")
    json: bool = option(False, "Print one JSON object.", flag="--json")

    def __post_init__(self) -> None:
        check_options(self)


def run(values: dict[str, Any]) -> int:
    """Examine and print; the exit code is 1 where the pair does not load or is not bit-exact."""
    options: DoctorOptions = collect(DoctorOptions, values)
    from mlx_dspark.cli.progress import Progress
    from mlx_dspark.engine.doctor import examine

    with Progress(sys.stderr, enabled=not options.json) as progress:
        found = examine(options.model, options.drafter, progress.say)
    if options.json:
        print(json.dumps({"healthy": found.healthy, **{k: dict(v) for k, v in found.sections.items()}}, indent=1))
    else:
        for section, lines in found.sections.items():
            width = max(len(what) for what, _ in lines)
            print(section, *(f"  {what:{width}}  {finding}" for what, finding in lines), "", sep="\n")
        print("all well" if found.healthy else "not well: see above")
    return 0 if found.healthy else 1
