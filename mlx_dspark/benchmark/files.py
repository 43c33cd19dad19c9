"""Files that appear whole or not at all: written under another name, then renamed. Asked about before any measuring."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from mlx_dspark.errors import OptionError

STANDARD_OUTPUT = "-"


def check_writable(flag: str, name: str | None) -> None:
    """OptionError where this file could not be written later. None and - are always fine."""
    if name in (None, STANDARD_OUTPUT):
        return
    path = Path(str(name))
    if path.is_dir():
        raise OptionError(f"{flag} {name} is a folder; give a file in it")
    parent = path.parent
    if not parent.is_dir():
        raise OptionError(f"{flag} {name} cannot be written: there is no folder {parent}; make it first")
    if not os.access(parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise OptionError(f"{flag} {name} cannot be written: no permission; choose another file")


def write_whole(path: Path, text: str) -> None:
    """Write UTF-8 text under a temporary name beside `path`, then give it the name."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        raise OptionError(f"{path} cannot be written ({error.strerror}); choose another file") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
