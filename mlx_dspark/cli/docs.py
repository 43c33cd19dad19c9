"""Writes the option table between the markers of a Markdown file: `python -m mlx_dspark.cli.docs README.md`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from mlx_dspark.cli.flags import table
from mlx_dspark.cli.main import GENERATE

BEGIN, END = "<!-- options:start -->", "<!-- options:end -->"


def updated(text: str) -> str:
    """The text with the table of `generate`'s flags between its markers."""
    return re.sub(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}\n{table(*GENERATE)}\n{END}", text, flags=re.DOTALL)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(updated(path.read_text("utf-8")), "utf-8")
