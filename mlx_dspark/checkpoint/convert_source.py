"""Reading a source that must not change: files stay open, each read is of the length asked for, stats are compared.

Knows files and byte ranges only. Reads into reused buffers; nothing is mapped, so memory does not grow with the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path
from types import TracebackType

from mlx_dspark.checkpoint.safetensors import TensorInfo
from mlx_dspark.errors import ConversionError

PIECE = 1 << 17


class Source:
    """The files of one folder, open for reading; a context manager."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._files: dict[Path, FileIO] = {}
        self._before = {path: _stamp(path) for path in folder.glob("*.safetensors")}
        self._buffer = memoryview(bytearray(PIECE))

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()

    def open(self, paths: Iterable[Path]) -> None:
        for path in sorted(paths):
            try:
                self._files[path] = FileIO(path)
            except OSError as error:
                raise ConversionError(f"{path} cannot be opened: {error.strerror}; check its permissions") from None

    @property
    def paths(self) -> list[Path]:
        return list(self._files)

    def read_into(self, info: TensorInfo, offset: int, view: memoryview) -> None:
        """Fill `view` from the tensor's bytes at `offset`. Raises ConversionError if the file ends before."""
        file, at = self._files[info.file], info.begin + offset
        file.seek(at)
        done = 0
        while done < view.nbytes:
            try:
                count = file.readinto(view[done:])
            except OSError as error:
                raise ConversionError(f"{info.file} cannot be read at byte {at + done}: {error.strerror}") from None
            if not count:
                raise ConversionError(
                    f"{info.file} ends at byte {at + done} inside tensor {info.name}, though it was longer before; "
                    "it changed while being read, so try again when it is complete"
                )
            done += count

    def read(self, info: TensorInfo) -> bytes:
        """A small tensor's bytes."""
        data = bytearray(info.nbytes)
        self.read_into(info, 0, memoryview(data))
        return bytes(data)

    def pieces(self, info: TensorInfo, size: int = PIECE) -> Iterator[memoryview]:
        """The tensor's bytes in order; each piece is valid until the next one is asked for."""
        if size > self._buffer.nbytes:
            self._buffer = memoryview(bytearray(size))
        for at in range(0, info.nbytes, size):
            view = self._buffer[: min(size, info.nbytes - at)]
            self.read_into(info, at, view)
            yield view

    def check_unchanged(self) -> None:
        """Raise ConversionError if a file is no longer the one whose header was read."""
        for path in self._files:
            if _stamp(path) != self._before.get(path):
                raise ConversionError(f"{path} changed while it was being read; try again when it is complete")


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ino
