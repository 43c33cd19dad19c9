"""Progress on a terminal: a status line while loading, a bar over a long prompt; silent in a pipe."""

from __future__ import annotations

from types import TracebackType
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

LONG_PROMPT = 512


class Progress:
    """Context manager; `say` sets the status, `prefill` and `step` move the bar, `warn` prints, `done` clears."""

    def __init__(self, out: TextIO, *, enabled: bool):
        console = Console(file=out)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._console, self._shown = console, enabled
        self._enabled = enabled and console.is_terminal
        self._status = console.status("loading") if self._enabled else None
        self._bar = Bar(*columns, console=console, transient=True)
        self._task: Any = None

    def __enter__(self) -> Progress:
        if self._status:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.done()

    def say(self, line: str) -> None:
        if self._status:
            self._status.update(line)

    def warn(self, line: str) -> None:
        """A line that stays, silent where progress is."""
        if self._shown:
            self._console.print(line, markup=False, highlight=False)

    def prefill(self, done: int, total: int) -> None:
        if not self._enabled or total < LONG_PROMPT:
            return
        if self._status:
            self._status.stop()
        if self._task is None:
            self._bar.start()
            self._task = self._bar.add_task("reading the prompt", total=total)
        self._bar.update(self._task, completed=done)

    def step(self, done: int, total: int, what: str) -> None:
        """Move the bar of a job of many steps."""
        if not self._enabled:
            return
        if self._status:
            self._status.stop()
        if self._task is None:
            self._bar.start()
            self._task = self._bar.add_task(what, total=total)
        self._bar.update(self._task, completed=done, description=what)

    def done(self) -> None:
        if self._status:
            self._status.stop()
            self._status = None
        if self._task is not None:
            self._bar.stop()
            self._task = None
