"""The extras: `cpu` takes the accelerator from this checkout if there is one, else its release of this version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class ExtrasHook(MetadataHookInterface):
    """`[tool.hatch.metadata.hooks.custom.extras]` as optional-dependencies, with the accelerator added to `cpu`."""

    def update(self, metadata: dict[str, Any]) -> None:
        native = Path(self.root) / "native" / "cpu"
        source = f" @ {native.as_uri()} ;" if native.is_dir() else f"=={metadata['version']};"
        extras = {name: list(needs) for name, needs in self.config["extras"].items()}
        extras["cpu"].append(f"mlx-dspark-cpu{source} sys_platform == 'linux'")
        metadata["optional-dependencies"] = extras
