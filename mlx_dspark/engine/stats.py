"""Finished jobs and rounds folded into counters: the only source of /metrics, /health and the page's figures.

Written by the engine's thread, read by any: `copy` is one consistent view.
"""

from __future__ import annotations

import copy
import threading
from dataclasses import dataclass, field

from mlx_dspark.decode.round import Round
from mlx_dspark.engine.events import Finished

FIRST_TOKEN_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass
class Counters:
    """Totals since the engine started. `finished` counts jobs by how they ended, errors as "error".

    `first_token` are counts by FIRST_TOKEN_BUCKETS (not cumulative, one more for the rest), `first_token_seconds`
    their sum. `rounds`, `drafted` and `accepted` leave a job's first round out, which never drafts.
    """

    finished: dict[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    rounds: int = 0
    decoded_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    first_token: list[int] = field(default_factory=lambda: [0] * (len(FIRST_TOKEN_BUCKETS) + 1))
    first_token_seconds: float = 0.0

    @property
    def accept_length(self) -> float:
        """Tokens a round, bonus included."""
        return self.decoded_tokens / self.rounds if self.rounds else 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.decoded_tokens / self.decode_seconds if self.decode_seconds else 0.0


class Stats:
    """Counters behind a lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters = Counters()

    def round(self, done: Round, first: bool) -> None:
        with self._lock:
            c = self._counters
            c.completion_tokens += len(done.tokens)
            if not first:
                c.rounds += 1
                c.decoded_tokens += len(done.tokens)
                c.drafted += done.proposed
                c.accepted += done.accepted

    def finish(self, done: Finished) -> None:
        with self._lock:
            c, result = self._counters, done.result
            c.finished[result.finish_reason] = c.finished.get(result.finish_reason, 0) + 1
            c.prompt_tokens += result.prompt_tokens
            c.cached_tokens += done.cached_tokens
            c.prefill_seconds += result.prefill_seconds
            c.decode_seconds += result.decode_seconds
            if result.completion_tokens:
                waited = done.first_token_seconds
                c.first_token[sum(waited > bucket for bucket in FIRST_TOKEN_BUCKETS)] += 1
                c.first_token_seconds += waited

    def fail(self) -> None:
        with self._lock:
            self._counters.finished["error"] = self._counters.finished.get("error", 0) + 1

    def copy(self) -> Counters:
        with self._lock:
            return copy.deepcopy(self._counters)
