"""A folder that appears whole or not at all: built beside its destination, under a name no loader picks up.

Knows paths, locks and signals; nothing of tensors. What a killed process left is recognised by its free lock and
removed by the next run; a folder that is being replaced is put back if the swap cannot be finished.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType

from mlx_dspark.errors import ConversionError

REPLACEABLE = (
    "*.safetensors", "*.json", "*.md", "*.txt", "*.jinja", "*.model", "LICENSE*", "LICENCE*", "NOTICE*", "COPYING*",
    ".gitattributes",
)  # fmt: skip


def check_destination(dst: Path, source: Path, inputs: list[Path], *, force: bool) -> None:
    """Refuse a destination that is, holds or lies in the source, or that exists and may not be replaced."""
    mine, theirs = dst.resolve(), source.resolve()
    if mine == theirs or mine in theirs.parents or theirs in mine.parents:
        raise ConversionError(f"{dst} is, contains or lies inside the source {source}; choose another destination")
    if dst.is_symlink() and not dst.exists():
        raise ConversionError(f"{dst} is a link to nothing; remove it or choose another destination")
    if dst.exists() and not dst.is_dir():
        raise ConversionError(f"{dst} exists and is no folder; choose another destination")
    present = sorted(dst.iterdir()) if dst.is_dir() else []
    for path in present:
        if path.is_file() and any(os.path.samefile(path, other) for other in inputs):
            raise ConversionError(f"{path} is the same file as one of the source (a link); choose another destination")
    if present and not force:
        raise ConversionError(
            f"{dst} exists and is not empty; give --force to replace it, or choose another destination"
        )
    for path in present:
        if not path.is_file() or not any(path.match(pattern) for pattern in REPLACEABLE):
            raise ConversionError(
                f"{dst} holds {path.name}, which no checkpoint folder has, so --force will not replace it; "
                "choose another destination or empty the folder yourself"
            )


def check_space(dst: Path, needed: int) -> None:
    free = free_bytes(dst)
    if free < needed:
        raise ConversionError(
            f"{dst} needs {needed} bytes, but its disk has {free} free; make room or choose another disk"
        )


def free_bytes(dst: Path) -> int:
    """Free bytes on the disk that will hold `dst`."""
    return shutil.disk_usage(next(p for p in (dst, *dst.absolute().parents) if p.is_dir())).free


class Staging:
    """Context manager for building `dst`: files go to `folder`, `publish` swaps it in; else nothing remains."""

    def __init__(self, dst: Path):
        self.dst = dst.resolve()
        self.folder = self.dst.parent / f".{self.dst.name}.part"
        self.backup = self.dst.parent / f".{self.dst.name}.old.part"
        self._made: list[Path] = []
        self._lock = -1
        self._published = False

    def __enter__(self) -> Staging:
        try:
            self._make_parents()
            self._acquire()
            self._recover()
        except OSError as error:
            self._clean()
            raise ConversionError(
                f"{self.dst.parent} cannot be written: {error.strerror}; choose another place"
            ) from None
        except BaseException:
            self._clean()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clean()

    def publish(self) -> None:
        """Make the folder durable and give it its name; an older folder of that name goes only now."""
        sync_folder(self.folder)
        if self.dst.is_dir() and any(self.dst.iterdir()):
            self.dst.rename(self.backup)
            try:
                self.folder.rename(self.dst)
            except BaseException:
                self.backup.rename(self.dst)
                raise
            shutil.rmtree(self.backup)
        else:
            self.folder.rename(self.dst)
        self._made, self._published = [], True
        sync_folder(self.dst.parent)

    def _make_parents(self) -> None:
        missing = [p for p in self.dst.parents if not p.exists()]
        for path in reversed(missing):
            path.mkdir()
            self._made.append(path)

    def _acquire(self) -> None:
        """Make the folder and lock it: a lock goes with its process, so a folder without one is a killed run's."""
        self.folder.mkdir(exist_ok=True)
        handle = os.open(self.folder, os.O_RDONLY)
        if not _lock(handle) or not _is(self.folder, handle):
            os.close(handle)
            raise ConversionError(
                f"another conversion to {self.dst} is running; wait for it or choose another destination"
            )
        self._lock = handle

    def _recover(self) -> None:
        """Remove what a killed run left here; bring back a folder whose replacement it did not finish."""
        for path in self.folder.iterdir():
            path.unlink()
        if self.backup.is_dir():
            if self.dst.exists():
                shutil.rmtree(self.backup)
            else:
                self.backup.rename(self.dst)

    def _clean(self) -> None:
        if self._lock >= 0:
            if not self._published:
                shutil.rmtree(self.folder, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1
        for path in reversed(self._made):
            with contextlib.suppress(OSError):
                path.rmdir()


def sync_folder(folder: Path) -> None:
    """fsync a directory, where the system allows it."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _lock(handle: int) -> bool:
    """False if another process holds it; file systems without locks count as free."""
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True


def _is(path: Path, handle: int) -> bool:
    """Whether the path still names the open folder."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except OSError:
        return False


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into KeyboardInterrupt for a while, so that they clean up as Ctrl-C does.

    One that is ignored, as under nohup, stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
