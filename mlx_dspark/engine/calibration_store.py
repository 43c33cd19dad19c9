"""Measured cost tables on disk: one JSON file a key in the user's cache folder, whole or absent.

What cannot be read, or is not what its key says, counts as absent. Knows files alone; measures nothing.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_dspark.decode.cost import CostTable
from mlx_dspark.errors import CalibrationError

FORM = 3
Key = Mapping[str, Any]
"""What a measurement holds for: machine, device, kernels, both checkpoints, how they are held, versions."""


@dataclass(frozen=True)
class Calibration:
    """A table and when it was measured (ISO date and time)."""

    table: CostTable
    measured: str


def cache_folder() -> Path:
    """`XDG_CACHE_HOME`, else the system's usual place. Raises OSError where there is no home."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    if named and Path(named).is_absolute():
        return Path(named) / "mlx-dspark"
    try:
        home = Path.home()
    except RuntimeError as error:
        raise OSError(str(error)) from None
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "mlx-dspark"


def path_of(key: Key) -> Path:
    name = hashlib.sha256(_text(key).encode()).hexdigest()[:16]
    return cache_folder() / "calibration" / f"{name}.json"


def stored(key: Key) -> Calibration | None:
    """The calibration kept under `key`, or None."""
    try:
        found = json.loads(path_of(key).read_text("utf-8"))
        if not isinstance(found, dict) or found.get("form") != FORM or _text(found.get("key")) != _text(key):
            return None
        return Calibration(CostTable.from_json(found.get("table")), str(found.get("measured", "")))
    except (OSError, ValueError, RecursionError, CalibrationError):
        return None


def keep(key: Key, table: CostTable) -> Calibration:
    """Write it, replacing an older one at once. Raises OSError where the folder cannot be written."""
    calibration = Calibration(table, datetime.datetime.now().astimezone().isoformat(timespec="seconds"))
    content = {"form": FORM, "key": dict(key), "measured": calibration.measured, "table": table.to_json()}
    path = path_of(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".part-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    return calibration


def _text(key: Any) -> str:
    return json.dumps(key, sort_keys=True)
