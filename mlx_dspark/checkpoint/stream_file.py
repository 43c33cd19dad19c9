"""A file written once, front to back, and made durable: past the system's page cache where the system can.

Knows bytes only. A large file that is fsynced anyway gains nothing from the cache and pays for it with half the
processor time; where unbuffered writing is refused (tmpfs, some network disks), it writes as usual.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from pathlib import Path
from types import TracebackType

FLUSH = 1 << 20
ROOM = 1 << 18
SECTOR = 4096
DIRECT = getattr(os, "O_DIRECT", 0)  # Linux
NO_CACHE = getattr(fcntl, "F_NOCACHE", 48)  # macOS


class StreamFile:
    """Context manager; `room` lends space to be filled, `advance` takes it; leaving flushes and fsyncs."""

    def __init__(self, path: Path):
        self.position = 0
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0), 0o644)
        self._buffer = memoryview(mmap.mmap(-1, FLUSH + ROOM))  # page-aligned, as unbuffered writing needs
        self._filled = 0
        self._direct = self._skip_cache(True)

    def __enter__(self) -> StreamFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._flush(self._filled)
                os.fsync(self._file)
        finally:
            os.close(self._file)

    def room(self, count: int) -> memoryview:
        """Writable space for the next `count` bytes, at most ROOM."""
        return self._buffer[self._filled : self._filled + count]

    def advance(self, count: int) -> None:
        """The first `count` bytes of the room are now part of the file."""
        self._filled += count
        self.position += count
        if self._filled >= FLUSH:
            self._flush(self._filled - self._filled % SECTOR)

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        for at in range(0, view.nbytes, ROOM):
            piece = view[at : at + ROOM]
            self.room(piece.nbytes)[:] = piece
            self.advance(piece.nbytes)

    def _flush(self, count: int) -> None:
        """Write the buffer's first `count` bytes; what is left of it moves to the front."""
        done = 0
        while done < count:
            if self._direct and (count - done) % SECTOR:
                self._direct = self._skip_cache(False)
            try:
                done += os.write(self._file, self._buffer[done:count])
            except OSError as error:
                if not self._direct or error.errno != errno.EINVAL:
                    raise
                self._direct = self._skip_cache(False)
        left = self._filled - count
        self._buffer[:left] = self._buffer[count : self._filled]
        self._filled = left

    def _skip_cache(self, wanted: bool) -> bool:
        """Switch unbuffered writing on or off; whether it is now on with its rule of whole sectors (Linux)."""
        try:
            if DIRECT:
                flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
                fcntl.fcntl(self._file, fcntl.F_SETFL, flags | DIRECT if wanted else flags & ~DIRECT)
                return wanted
            fcntl.fcntl(self._file, NO_CACHE, int(wanted))
        except OSError:
            return False
        return False
