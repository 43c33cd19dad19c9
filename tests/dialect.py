"""The embedded pair under the family's own dialect: its tokenizer with checkpoint/nemotron.jinja as the template."""

from __future__ import annotations

import shutil
from pathlib import Path

import mlx_dspark

DEMO = Path(mlx_dspark.__file__).parent / "demo" / "target-4bit"
TEMPLATE = Path(__file__).parent / "checkpoint" / "nemotron.jinja"


def write(folder: Path) -> Path:
    """A tokenizer's folder."""
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copyfile(DEMO / name, folder / name)
    shutil.copyfile(TEMPLATE, folder / "chat_template.jinja")
    return folder
