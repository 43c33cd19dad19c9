"""What an answer cost: a Tally folds Rounds into counts, a Result is the record of one finished answer."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import mlx.core as mx

from mlx_dspark.decode.round import Round


@dataclass(frozen=True)
class Result:
    """One answer.

    `tokens` and `completion_tokens` include the eos token. The first token belongs to the prompt: `prefill_seconds`
    ends with it, and `rounds`, `accept_length` (tokens a round, bonus included), `decode_seconds` and
    `tokens_per_second` begin after it. `accepted_per_position[i]` is the share of rounds that proposed draft i and
    kept it.
    """

    text: str
    reasoning: str
    tokens: list[int]
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str
    rounds: int
    accept_length: float
    accepted_per_position: list[float]
    drafted: int
    prefill_seconds: float
    decode_seconds: float
    tokens_per_second: float
    peak_memory_bytes: int
    mode: str
    model: str | None
    drafter: str | None
    device: str
    exact: bool


@dataclass
class Tally:
    """Counts of one answer while it is made."""

    tokens: list[int] = field(default_factory=list)
    rounds: int = 0
    drafted: int = 0
    proposed_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    finish: str = "cancelled"
    _mark: float = 0.0

    def start(self, prompt_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        mx.reset_peak_memory()
        self._mark = time.perf_counter()

    def add(self, done: Round) -> None:
        """Count one round; the first one only ends the prompt."""
        now = time.perf_counter()
        first = not self.tokens
        self.tokens += done.tokens
        if first:
            self.prefill_seconds, self._mark = now - self._mark, now
            return
        self.rounds += 1
        self.drafted += done.proposed
        while len(self.proposed_at) < done.proposed:
            self.proposed_at.append(0)
            self.accepted_at.append(0)
        for i in range(done.proposed):
            self.proposed_at[i] += 1
            self.accepted_at[i] += i < done.accepted
        self.decode_seconds = now - self._mark

    def end(self, finish: str) -> None:
        self.finish = finish

    def result(
        self, *, text: str, reasoning: str, mode: str, model: str | None, drafter: str | None, device: str, exact: bool
    ) -> Result:
        count, seconds = len(self.tokens), self.decode_seconds
        later = max(0, count - 1)
        return Result(
            text=text,
            reasoning=reasoning,
            tokens=list(self.tokens),
            prompt_tokens=self.prompt_tokens,
            completion_tokens=count,
            finish_reason=self.finish,
            rounds=self.rounds,
            accept_length=later / self.rounds if self.rounds else 0.0,
            accepted_per_position=[a / p for a, p in zip(self.accepted_at, self.proposed_at, strict=True)],
            drafted=self.drafted,
            prefill_seconds=self.prefill_seconds,
            decode_seconds=seconds,
            tokens_per_second=later / seconds if seconds else 0.0,
            peak_memory_bytes=mx.get_peak_memory(),
            mode=mode,
            model=model,
            drafter=drafter,
            device=device,
            exact=exact,
        )
