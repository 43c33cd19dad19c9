"""THE loop body, over B sequences: cap -> propose -> learn -> trim -> verify -> pick -> accept -> commit -> rollback ->
observe.

A draft stands while it equals what the target picks, so every kind of decoding is this function. It waits for the
device once; a cap policy that reads its block before the verify waits once more. Drafting begins while the verify is
still being built.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from mlx_dspark.decode.accept import accept
from mlx_dspark.decode.cap import Choice, Outcome
from mlx_dspark.decode.scores import Score, score
from mlx_dspark.decode.session import Session
from mlx_dspark.models.drafter import DraftBlock, Drafter
from mlx_dspark.models.state import State
from mlx_dspark.models.target import Target


@dataclass(frozen=True)
class Round:
    """What one round did for one sequence. `proposed` drafts were verified, `tokens` committed, `pieces` is the text
    each one completed; `times` are seconds by phase; `scores` are there if the session asked for log-probabilities;
    `depth` tokens had been consumed before it, and `choice` says how the cap decided."""

    proposed: int
    accepted: int
    tokens: tuple[int, ...]
    text: str
    source: str
    finish: str | None
    times: dict[str, float] = field(default_factory=dict)
    pieces: tuple[str, ...] = ()
    scores: tuple[Score, ...] = ()
    depth: int = 0
    choice: Choice | None = None


class LazyClock:
    """Splits a round's time into phases; `arrays` are what a phase has made.

    Leaves the device alone: phases get the time of building, `wait` gets the one synchronisation.
    """

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self._laps: dict[str, float] = {}

    def lap(self, phase: str, arrays: Sequence[mx.array]) -> None:
        now = time.perf_counter()
        self._laps[phase] = self._laps.get(phase, 0.0) + now - self._last
        self._last = now

    def laps(self) -> dict[str, float]:
        return dict(self._laps)

    def seconds(self) -> float:
        """All phases so far."""
        return sum(self._laps.values())


class SyncClock(LazyClock):
    """Waits for the device at the end of each phase, so that times are true shares (slower: for traces)."""

    def lap(self, phase: str, arrays: Sequence[mx.array]) -> None:
        mx.eval(list(arrays))
        super().lap(phase, arrays)


def run_round(target: Target, sessions: Sequence[Session], clock: type[LazyClock] = LazyClock) -> list[Round]:
    """Advance every session by one round, in one target forward. Each must be prefilled and unfinished."""
    watch = clock()
    depths = [s.position for s in sessions]
    proposed = _propose(sessions)
    mx.async_eval([array for b in proposed if len(b) for array in b.arrays()])  # type: ignore[no-untyped-call]
    for s in sessions:
        s.cap.learn()
    blocks = [s.cap.trim(b) for s, b in zip(sessions, proposed, strict=True)]
    watch.lap("draft", [b.tokens for b in blocks])

    state = State([s.row for s in sessions])
    layers = sorted({layer for s in sessions for layer in s.taps})
    ids = [_with_anchor(s.anchor, b) for s, b in zip(sessions, blocks, strict=True)]
    verified = target.verify(state, ids, layers)
    watch.lap("verify", [verified.logits, *verified.taps.values(), *state.arrays()])

    spans = _spans(ids)
    picks = [
        s.sampler.pick(verified.logits[begin:end], s.position + 1, b.tokens if len(b) else None)
        for s, b, (begin, end) in zip(sessions, blocks, spans, strict=True)
    ]
    mx.eval(picks, [b.tokens for b in blocks])
    watch.lap("wait", [])

    committed = []
    for s, b, pick in zip(sessions, blocks, picks, strict=True):
        drafts = b.ids()
        found = accept(drafts, _ids(pick))
        committed.append((found.length, s.commit([*drafts[: found.length], found.next_token])))
    scores = [
        score(verified.logits[begin : begin + len(c.tokens)], c.tokens, s.top_logprobs)
        for s, (_, c), (begin, _) in zip(sessions, committed, spans, strict=True)
    ]
    target.rollback(state, verified.trace, [len(c.tokens) for _, c in committed])
    watch.lap("rollback", state.arrays())

    for s, (_, c), (begin, _) in zip(sessions, committed, spans, strict=True):
        s.observe(verified.taps, begin, len(c.tokens))
    watch.lap("observe", [])
    for s, b, (_, c) in zip(sessions, blocks, committed, strict=True):
        s.cap.observe(Outcome(len(b), c.tokens, watch.seconds()))
        if s.finish:
            s.cap.learn()
    watch.lap("policy", [])
    times = watch.laps()
    return [
        Round(len(b), min(length, len(c.tokens)), c.tokens, c.text, b.source, c.finish, times, c.pieces, found, depth,
              s.cap.choice)
        for s, b, (length, c), found, depth in zip(sessions, blocks, committed, scores, depths, strict=True)
    ]  # fmt: skip


def _propose(sessions: Sequence[Session]) -> list[DraftBlock]:
    """One block a session; sessions that share a drafter are asked together."""
    groups: dict[int, tuple[Drafter, list[int]]] = {}
    for index, session in enumerate(sessions):
        groups.setdefault(id(session.drafter), (session.drafter, []))[1].append(index)
    blocks: dict[int, DraftBlock] = {}
    for drafter, members in groups.values():
        requests = [sessions[i].draft_request(len(sessions)) for i in members]
        blocks.update(zip(members, drafter.propose(requests), strict=True))
    return [blocks[i] for i in range(len(sessions))]


def _with_anchor(anchor: int, block: DraftBlock) -> mx.array:
    first = mx.array([anchor], mx.int32)
    return mx.concatenate([first, block.tokens.astype(mx.int32)]) if len(block) else first


def _spans(ids: Sequence[mx.array]) -> list[tuple[int, int]]:
    spans, begin = [], 0
    for block in ids:
        spans.append((begin, begin + block.shape[0]))
        begin += block.shape[0]
    return spans


def _ids(tokens: mx.array) -> list[int]:
    return [int(t) for t in tokens.tolist()]  # type: ignore[union-attr, arg-type]
