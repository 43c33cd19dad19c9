"""One answer of one arm, as a record: what came out, what its rounds did, how long they took. Judges nothing."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from mlx_dspark.benchmark.arms import Arm
from mlx_dspark.benchmark.pressure import Pressure, read_pressure
from mlx_dspark.benchmark.prompts import Prompt
from mlx_dspark.decode.round import LazyClock, Round, SyncClock
from mlx_dspark.engine.result import Result, Tally

REHEARSAL = 0


@dataclass(frozen=True)
class Run:
    """Seconds and counts of one answer; those of rounds leave out the first, which belongs to the prompt.

    `trial` 0 is the rehearsal: it waits for the device after each phase, so `phases` (seconds by phase) are true
    there and its speed is not. `proposed_at[i]` rounds proposed draft i, `accepted_at[i]` kept it; `drafts` counts
    rounds by how many drafts they verified, `reasons` by why the cap wanted so many. `error` is set where the
    run broke off.
    """

    arm: str
    kind: str
    prompt: int
    trial: int
    tokens: tuple[int, ...] = ()
    finish: str = ""
    prompt_tokens: int = 0
    rounds: int = 0
    proposed_at: tuple[int, ...] = ()
    accepted_at: tuple[int, ...] = ()
    drafts: dict[int, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    peak_memory_bytes: int = 0
    pressure: Pressure = field(default_factory=Pressure)
    error: str | None = None

    @property
    def decoded(self) -> int:
        """Tokens that `decode_seconds` paid for: all but the first."""
        return max(0, len(self.tokens) - 1)

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that differ where tokens differ."""
        return hashlib.sha256(",".join(map(str, self.tokens)).encode()).hexdigest()[:16]


def run_once(arm: Arm, prompt: Prompt, trial: int, settings: dict[str, Any]) -> Run:
    """Answer a prompt; an error becomes a Run with its name. Ctrl-C passes through."""
    clock = SyncClock if trial == REHEARSAL else LazyClock
    tally, rounds = Tally(), []
    before = read_pressure()
    where: dict[str, Any] = {"arm": arm.name, "kind": prompt.kind, "prompt": prompt.index, "trial": trial}
    try:
        question = prompt.messages if arm.pair.tokenizer.has_chat_template else prompt.text
        for part in arm.pair.stream(question, tally=tally, clock=clock, max_draft=arm.cap, **settings):
            if part.round:
                rounds.append(part.round)
        result = arm.pair.result(tally, "", "")
    except Exception as error:  # whatever it is, it is this run's result, and the other runs go on
        return Run(**where, error=f"{type(error).__name__}: {error}", tokens=tuple(tally.tokens))
    return _record(where, result, tally, rounds[1:], read_pressure().since(before))


def _record(where: dict[str, Any], result: Result, tally: Tally, rounds: list[Round], pressure: Pressure) -> Run:
    phases: Counter[str] = Counter()
    for done in rounds:
        phases.update(done.times)
    return Run(
        **where,
        tokens=tuple(result.tokens),
        finish=result.finish_reason,
        prompt_tokens=result.prompt_tokens,
        rounds=result.rounds,
        proposed_at=tuple(tally.proposed_at),
        accepted_at=tuple(tally.accepted_at),
        drafts=dict(sorted(Counter(done.proposed for done in rounds).items())),
        reasons=dict(Counter(done.choice.reason for done in rounds if done.choice)),
        prefill_seconds=result.prefill_seconds,
        decode_seconds=result.decode_seconds,
        phases=dict(phases),
        peak_memory_bytes=result.peak_memory_bytes,
        pressure=pressure,
    )
