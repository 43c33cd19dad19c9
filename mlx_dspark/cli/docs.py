"""Writes the option tables between the markers of a Markdown file: `python -m mlx_dspark.cli.docs README.md`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from mlx_dspark.checkpoint.convert_options import ConvertOptions
from mlx_dspark.cli.agents import AgentOptions
from mlx_dspark.cli.calibrate import CalibrateOptions
from mlx_dspark.cli.flags import table
from mlx_dspark.cli.main import BENCHMARK, GENERATE, NOT_IN_BENCHMARK, SERVE
from mlx_dspark.cli.models import ModelsOptions

TABLES = {
    "options": GENERATE,
    "serve": SERVE,
    "agents": (AgentOptions,),
    "calibrate": (CalibrateOptions,),
    "convert": (ConvertOptions,),
    "benchmark": BENCHMARK,
    "models": (ModelsOptions,),
}
LEFT_OUT = {"benchmark": NOT_IN_BENCHMARK}


def updated(text: str) -> str:
    """The text with each command's flags between its markers, `<!-- options:start -->` and so on."""
    for name, owners in TABLES.items():
        begin, end = f"<!-- {name}:start -->", f"<!-- {name}:end -->"
        filled = f"{begin}\n{table(*owners, leave=LEFT_OUT.get(name, ()))}\n{end}"
        text = re.sub(f"{begin}.*?{end}", filled.replace("\\", r"\\"), text, flags=re.DOTALL)
    return text


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(updated(path.read_text("utf-8")), "utf-8")
