"""One admitted job on the engine's thread: resume from the prefix cache, prefill to the next mark, decode, finish.

A mark is a prompt position whose states are kept for prompts that share the tokens before it. Where the target's
prefill has a grid only positions on it are kept or resumed, so that warm and cold answers have the same bits.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mlx_dspark.decode.round import Round
from mlx_dspark.engine.events import Advanced, Finished, Job, Listener, Prefilled, Started
from mlx_dspark.engine.prefix_cache import PrefixCache
from mlx_dspark.engine.result import Tally

if TYPE_CHECKING:
    from mlx_dspark.engine.pair import Pair

WORTH = 16  # tokens a divergence point must lie beyond the entry found, to be kept


class Running:
    """`done` once an event has ended the job; until then one of `prefill` and a round is due."""

    def __init__(self, pair: Pair, cache: PrefixCache, job: Job, listener: Listener, submitted: float):
        self.job, self._listen, self._submitted = job, listener, submitted
        self._pair, self._cache = pair, cache
        self._tally = Tally()
        self._first_token = 0.0
        self.done = False
        self.session = pair.session(job.ids, job.options, job.sampling)
        self.session.top_logprobs = job.top_logprobs
        self._marks = self._resume()
        self._tally.start(prompt_tokens=len(job.ids))
        listener(Started(self.cached_tokens))

    @property
    def prefilling(self) -> bool:
        return self.session.row.length < self.session.position and not self.session.stops.count

    @property
    def began(self) -> bool:
        """Has a token been decoded?"""
        return bool(self._tally.tokens)

    def prefill(self) -> None:
        """One chunk of the prompt, ending at the next mark at the latest."""
        session = self.session
        session.prefill_chunk(until=self._marks[0] if self._marks else None)
        if self._marks and session.row.length == self._marks[0]:
            self._keep(self._marks.pop(0))
        self._listen(Prefilled(session.row.length, session.position))

    def advance(self, done: Round) -> None:
        """A round of this session is over."""
        if not self.began:
            self._first_token = time.perf_counter() - self._submitted
        self._tally.add(done)
        self._listen(Advanced(done))

    def finish(self) -> Finished:
        """End the job, whole or cut short, and say so."""
        session = self.session
        session.cancel()
        assert session.finish is not None
        if session.finish != "cancelled" and self._pair.target.prefill_grid is None:
            self._keep(session.row.length)
        self._tally.end(session.finish)
        result = self._pair.result(self._tally, "", "")
        event = Finished(result, self.cached_tokens, self._first_token, session.stops.matcher.matched)
        self.done = True
        self._listen(event)
        return event

    def _resume(self) -> list[int]:
        """Take the longest cached prefix; returns the marks still ahead, in order."""
        ids, grid, last = self.job.ids, self._pair.target.prefill_grid or 1, len(self.job.ids) - 1
        found = self._cache.find(ids)
        self.cached_tokens = found.entry.length if found.entry else 0
        if found.entry:
            self.session.resume(found.entry.snapshot, found.entry.draft_state)
        wanted = {mark for mark in self.job.marks if not self._cache.touch(ids[:mark])}
        if found.shared >= self.cached_tokens + WORTH:
            wanted.add(found.shared)
        placed = {min(mark, last) // grid * grid for mark in wanted} if self._cache.limit else set()
        return sorted(mark for mark in placed if mark > self.cached_tokens)

    def _keep(self, length: int) -> None:
        """Put the states at this moment into the cache."""
        session, drafter = self.session, self.session.drafter
        if not self._cache.limit or self._cache.touch(session.ids[:length]):
            return
        session.catch_up()
        draft_state = drafter.copy_state(session.draft_state) if drafter.max_draft else None
        nbytes = drafter.state_nbytes(draft_state) if drafter.max_draft else 0
        self._cache.put(session.ids[:length], session.state.snapshot().detached(), draft_state, nbytes)
