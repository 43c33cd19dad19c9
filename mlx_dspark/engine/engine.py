"""The one thread that touches MLX: takes Jobs from a bounded queue, first come first served, and reports events.

Each turn of its loop admits waiting jobs, gives every prefilling one a chunk and decodes one round over all others,
so a cancel takes effect within a round or a chunk and several rows a round need no other loop. Listeners are called
on this thread and must return at once. Knows Pairs and events; knows no HTTP and no asyncio.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mlx_dspark.decode.round import run_round
from mlx_dspark.engine.events import Failed, Finished, Job, Listener
from mlx_dspark.engine.prefix_cache import PrefixCache
from mlx_dspark.engine.result import Tally
from mlx_dspark.engine.running import Running
from mlx_dspark.engine.stats import Stats
from mlx_dspark.errors import DsparkError

if TYPE_CHECKING:
    from mlx_dspark.engine.pair import Pair

log = logging.getLogger(__name__)


class EngineBusy(DsparkError):
    """The queue is full."""


class EngineClosed(DsparkError):
    """The engine takes no more jobs."""


@dataclass(eq=False)
class Ticket:
    """A submitted job. `cancel` may be called from any thread, any number of times."""

    job: Job
    listener: Listener
    engine: Engine
    submitted: float = field(default_factory=time.perf_counter)
    cancelled: bool = False

    def cancel(self) -> None:
        self.engine.cancel(self)


class Engine:
    """`load` runs on the engine's thread. `rows` sessions share a round at most; `max_queue` jobs may wait."""

    def __init__(self, load: Callable[[], Pair], *, max_queue: int = 32, rows: int = 1, cache_bytes: int = 0):
        self._load, self._max_queue, self._rows = load, max_queue, rows
        self.cache = PrefixCache(cache_bytes)
        self.stats = Stats()
        self._wake = threading.Condition()
        self._queue: deque[Ticket] = deque()
        self._active: dict[Ticket, Running | None] = {}
        self._open, self._ending = True, False
        self._loaded = threading.Event()
        self._pair: Pair | None = None
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="mlx-engine", daemon=True)

    def start(self) -> Pair:
        """Load, and return the pair once it is ready; raises what loading raised."""
        self._thread.start()
        self._loaded.wait()
        if self._problem is not None:
            raise self._problem
        return self.pair

    @property
    def pair(self) -> Pair:
        assert self._pair is not None, "start() first"
        return self._pair

    @property
    def counts(self) -> tuple[int, int]:
        """(jobs being answered, jobs waiting)."""
        with self._wake:
            return len(self._active), len(self._queue)

    @property
    def accepting(self) -> bool:
        return self._open and self._thread.is_alive()

    def submit(self, job: Job, listener: Listener) -> Ticket:
        """Queue a job. Raises EngineBusy if too many wait, EngineClosed once stopped."""
        with self._wake:
            if not self.accepting:
                raise EngineClosed("the server is shutting down; try another one, or later")
            if len(self._active) + len(self._queue) >= self._rows + self._max_queue:
                raise EngineBusy(
                    f"{len(self._queue)} requests are waiting, and --max-queue is {self._max_queue}; try again later"
                )
            ticket = Ticket(job, listener, self)
            self._queue.append(ticket)
            self._wake.notify()
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """End a job before its next round or chunk; one that waits leaves the queue at once."""
        with self._wake:
            ticket.cancelled = True
            waiting = ticket in self._queue
            if waiting:
                self._queue.remove(ticket)
            self._wake.notify()
        if waiting:
            self._report_unstarted(ticket)

    def stop_accepting(self) -> None:
        """Refuse new jobs; those accepted go on."""
        with self._wake:
            self._open = False

    def cancel_all(self) -> None:
        with self._wake:
            tickets = [*self._queue, *self._active]
        for ticket in tickets:
            ticket.cancel()

    def close(self, timeout: float | None = None) -> None:
        """Cancel everything and end the thread."""
        self.stop_accepting()
        self.cancel_all()
        with self._wake:
            self._ending = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _main(self) -> None:
        try:
            self._pair = self._load()
        except BaseException as error:
            self._problem = error
            return
        finally:
            self._loaded.set()
        while self._admit():
            self._turn()

    def _admit(self) -> bool:
        """Move waiting jobs into free rows; waits while there is nothing to do. False ends the thread."""
        with self._wake:
            while not (self._queue or self._active or self._ending):
                self._wake.wait()
            while self._queue and len(self._active) < self._rows:
                self._active[self._queue.popleft()] = None
            return bool(self._active) or not self._ending

    def _turn(self) -> None:
        for ticket, running in list(self._active.items()):
            self._guarded([ticket], lambda t=ticket, r=running: self._prepare(t, r))  # type: ignore[misc]
        ready = [(t, r) for t, r in self._active.items() if r is not None and not r.prefilling]
        if ready:
            self._guarded([t for t, _ in ready], lambda: self._decode([r for _, r in ready]))
        with self._wake:
            for ticket, running in list(self._active.items()):
                if running is not None and running.done:
                    del self._active[ticket]

    def _prepare(self, ticket: Ticket, running: Running | None) -> None:
        """Start a job, or give it a chunk of prefill, or end it if nobody wants it any more."""
        if ticket.cancelled and running is None:
            self._drop([ticket])
            self._report_unstarted(ticket)
        elif ticket.cancelled and running is not None:
            self.stats.finish(running.finish())
        elif running is None:
            running = Running(self.pair, self.cache, ticket.job, ticket.listener, ticket.submitted)
            self._active[ticket] = running
        elif running.prefilling:
            running.prefill()

    def _decode(self, ready: list[Running]) -> None:
        live = [r for r in ready if not r.done]
        if not live:
            return
        rounds = run_round(self.pair.target, [r.session for r in live])
        for running, done in zip(live, rounds, strict=True):
            self.stats.round(done, first=not running.began)
            running.advance(done)
            if done.finish is not None:
                self.stats.finish(running.finish())

    def _guarded(self, tickets: list[Ticket], step: Callable[[], None]) -> None:
        """A step that breaks fails its own jobs and no others."""
        try:
            step()
        except Exception as error:
            log.exception("a request failed")
            self._drop(tickets)
            message = str(error) if isinstance(error, DsparkError) else "an internal error ended this request"
            for ticket in tickets:
                self.stats.fail()
                ticket.listener(Failed(message))

    def _drop(self, tickets: list[Ticket]) -> None:
        with self._wake:
            for ticket in tickets:
                self._active.pop(ticket, None)

    def _report_unstarted(self, ticket: Ticket) -> None:
        tally = Tally(prompt_tokens=len(ticket.job.ids))
        event = Finished(self.pair.result(tally, "", ""), 0, 0.0)
        self.stats.finish(event)
        ticket.listener(event)
